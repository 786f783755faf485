"""What clients send: taken down on its way, kept in `tests/foreign/recorded`, and sent again.

Ids of tasks and contexts are kept by their order, `task-1` and `context-1` for the first ones that
a client was told of, so that its requests mean the tasks of whatever server they are sent to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER = Path(__file__).parents[1] / "foreign" / "recorded"

_KEPT = ("accept", "a2a-version", "content-type")
"""Headers that say what a client speaks."""
HTTP_ERROR = 400
EVENT = re.compile(r"^data: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Request:
    """One request of a client, with its dialect, and what its answer was."""

    dialect: str
    method: str
    path: str
    headers: dict[str, str]
    body: Any = None
    task: str = ""
    """The task of which the answer told first."""
    is_refused: bool = False

    def with_ids(self, ids: Mapping[str, str]) -> Request:
        """The same request with other ids of tasks and contexts: `ids` by those of this one."""
        text = json.dumps([self.path, self.body])
        for old, new in ids.items():
            text = re.sub(rf"{re.escape(old)}(?![0-9])", new, text)
        path, body = json.loads(text)
        return replace(self, path=path, body=body)


@dataclass(frozen=True)
class Answer:
    """What an answer, or the stream so far, says of a task and of its request."""

    task: str = ""
    context: str = ""
    is_error: bool = False

    @classmethod
    def of(cls, status: int, text: str) -> Answer:
        answers = [json.loads(data) for data in EVENT.findall(text)]
        if not answers and text.startswith(("{", "[")):
            answers = [json.loads(text)]
        is_error = status >= HTTP_ERROR or any("error" in one for one in answers)
        found = [task for answer in answers for task in _tasks(answer)]
        task = found[0] if found else {}
        return cls(str(task.get("id", "")), str(task.get("contextId", "")), is_error)

    def ids(self, number: int) -> dict[str, str]:
        """The names under which these ids are kept, of the task that comes as `number`."""
        named = {self.task: f"task-{number}", self.context: f"context-{number}"}
        return {real: name for real, name in named.items() if real}


@dataclass
class Recorder:
    """An application before another one, that takes down what passes."""

    app: ASGIApp
    seen: list[Request] = field(default_factory=list)
    _ids: dict[str, str] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent, told, status, place = bytearray(), bytearray(), [0], len(self.seen)

        async def receive_some() -> Message:
            message = await receive()
            sent.extend(message.get("body", b""))
            return message

        async def send_some(message: Message) -> None:
            if not told and len(self.seen) == place:
                self.seen.append(self._request(scope, bytes(sent)))  # in the order of the answers
            status[0] = message.get("status", status[0])
            told.extend(message.get("body", b""))
            self._note(place, Answer.of(status[0], told.decode() if _is_whole(told) else ""))
            await send(message)

        await self.app(scope, receive_some, send_some)

    def _request(self, scope: Scope, body: bytes) -> Request:
        given = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = scope["query_string"].decode()
        value = json.loads(body) if body else None
        return Request(
            self._dialect(scope["path"], value),
            scope["method"],
            scope["path"] + (f"?{query}" if query else ""),
            {name: given[name] for name in _KEPT if name in given},
            value,
        )

    def _note(self, place: int, answer: Answer) -> None:
        """Keep what the answer to a request has told so far."""
        if answer.task and answer.task not in self._ids:
            number = 1 + sum(name.startswith("task-") for name in self._ids.values())
            self._ids = {**answer.ids(number), **self._ids}
        task = self._ids.get(answer.task, self.seen[place].task)
        named = self.seen[place].with_ids(self._ids)
        self.seen[place] = replace(named, task=task, is_refused=answer.is_error)

    def _dialect(self, path: str, body: Any) -> str:
        """Version and binding, as "0.3 HTTP+JSON"; empty for the card."""
        if path == "/":
            is_1_0 = body["method"] in JsonRpcDispatcher.METHOD_TO_MODEL
            return f"{'1.0' if is_1_0 else '0.3'} JSON-RPC"
        if path.startswith("/v1/"):
            return "0.3 HTTP+JSON"
        return "" if path.endswith(("card.json", "agent.json", "/agentCard")) else "1.0 HTTP+JSON"


def _is_whole(told: bytearray) -> bool:
    """Whether what has come is JSON, or ends with a whole event."""
    return told.endswith((b"}", b"]", b"\n\n"))


def _tasks(value: Any) -> Iterator[dict[str, Any]]:
    """The tasks in an answer, outermost first."""
    if isinstance(value, list):
        for inner in value:
            yield from _tasks(inner)
    if not isinstance(value, dict):
        return
    if "status" in value and "id" in value:
        yield value
    for inner in value.values():
        yield from _tasks(inner)


def recorded() -> dict[str, list[Request]]:
    """The requests of each client, in their order, by its name."""
    return {
        path.stem: [Request(**request) for request in json.loads(path.read_text(encoding="utf-8"))]
        for path in sorted(FOLDER.glob("*.json"))
    }


def keep(client: str, requests: list[Request]) -> None:
    """Write the requests of a client down for the suite."""
    text = json.dumps([asdict(request) for request in requests], indent=1, ensure_ascii=False)
    (FOLDER / f"{client}.json").write_text(f"{text}\n", encoding="utf-8")

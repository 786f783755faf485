"""The client of `benchmarks.peers`: JSON-RPC, in A2A 1.0 or 0.3, on one connection pool.

Its checks are the same for every system: a wrong answer of a server is a `WrongAnswerError`.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx

from benchmarks.peers.agent import ANSWER

ENDED: Final = frozenset({"completed", "canceled", "failed", "rejected"})
PATIENCE_S: Final = 120.0
CONNECTIONS: Final = 64

METHODS: Final[Mapping[str, Mapping[str, str]]] = {
    "1.0": {
        "send": "SendMessage",
        "stream": "SendStreamingMessage",
        "get": "GetTask",
        "list": "ListTasks",
        "cancel": "CancelTask",
        "subscribe": "SubscribeToTask",
    },
    "0.3": {
        "send": "message/send",
        "stream": "message/stream",
        "get": "tasks/get",
        "list": "tasks/list",
        "cancel": "tasks/cancel",
        "subscribe": "tasks/resubscribe",
    },
}


class WrongAnswerError(Exception):
    """A server answered something else than the request asks for."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event of a stream, or the task of an answer, in the terms of 1.0."""

    kind: str
    """`task`, `status` or `artifact`."""
    task_id: str
    state: str
    """The task's state, such as `completed`; empty for an artifact."""
    texts: tuple[str, ...]
    """The chunks that an artifact update brings, or that a task has."""
    at_ns: int
    event_id: str = ""
    said: tuple[str, ...] = ()
    """The texts of a status's message."""


@dataclass(frozen=True, kw_only=True)
class Client:
    """Calls one server."""

    http: httpx.AsyncClient = field(repr=False)
    url: str
    dialect: str

    async def send(
        self, text: str, *, waits: bool = True, ids: Mapping[str, str] | None = None
    ) -> Event:
        """Send a message; with `waits` return when the task has ended.

        `ids` are the ids of message and context; by default the message has a new id.
        """
        configuration: dict[str, Any] = {"blocking": waits}
        if self.dialect != "0.3":
            configuration = {"returnImmediately": not waits}
        params = {"message": self._message(text, ids), "configuration": configuration}
        return _event_of(await self._call("send", params))

    async def get(self, task_id: str) -> Event:
        """Return the task."""
        return _event_of(await self._call("get", {"id": task_id}))

    async def cancel(self, task_id: str) -> Event:
        """Cancel the task."""
        return _event_of(await self._call("cancel", {"id": task_id}))

    async def page(self, *, history: bool) -> int:
        """Return how many tasks the first page of 50 has; each one has its history, or none has."""
        length = {} if history else {"historyLength": 0}
        answer = await self._call("list", {"pageSize": 50, **length})
        tasks = answer.get("tasks") if isinstance(answer, dict) else None
        if not isinstance(tasks, list):
            raise WrongAnswerError(f"A list came as {json.dumps(answer)[:200]}")
        for task in tasks:
            if not isinstance(task, dict) or bool(task.get("history")) != history:
                wrong = "without" if history else "with"
                raise WrongAnswerError(f"A task came {wrong} history: {json.dumps(task)[:200]}")
        return len(tasks)

    @asynccontextmanager
    async def stream(self, text: str) -> AsyncIterator[AsyncIterator[Event]]:
        """Send a message, and yield the events of its task."""
        async with self._events("stream", {"message": self._message(text)}) as events:
            yield events

    @asynccontextmanager
    async def subscribe(
        self, task_id: str, *, after: str = ""
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Yield the events of a task, from behind the event with the id `after`, if it is given."""
        async with self._events("subscribe", {"id": task_id}, after) as events:
            yield events

    def _message(self, text: str, ids: Mapping[str, str] | None = None) -> dict[str, Any]:
        plain = dict(ids or {"messageId": uuid.uuid4().hex})
        if self.dialect != "0.3":
            return plain | {"role": "ROLE_USER", "parts": [{"text": text}]}
        parts = [{"kind": "text", "text": text}]
        return plain | {"kind": "message", "role": "user", "parts": parts}

    def _request(self, method: str, params: object) -> dict[str, Any]:
        name = METHODS.get(self.dialect, METHODS["1.0"])[method]
        return {"jsonrpc": "2.0", "id": "1", "method": name, "params": params}

    def _headers(self, after: str = "") -> dict[str, str]:
        headers = {"A2A-Version": "1.0"} if self.dialect != "0.3" else {}
        return headers | ({"Last-Event-ID": after} if after else {})

    async def _call(self, method: str, params: object) -> Any:
        request = self._request(method, params)
        answer = await self.http.post(self.url, json=request, headers=self._headers())
        return _result_of(answer.text)

    @asynccontextmanager
    async def _events(
        self, method: str, params: object, after: str = ""
    ) -> AsyncIterator[AsyncIterator[Event]]:
        request = self._request(method, params)
        headers = self._headers(after) | {"Accept": "text/event-stream"}
        async with self.http.stream("POST", self.url, json=request, headers=headers) as answer:
            if "text/event-stream" not in answer.headers.get("content-type", ""):
                raise WrongAnswerError((await answer.aread()).decode(errors="replace")[:300])
            yield _events_of(answer.aiter_lines(), self.dialect)


@asynccontextmanager
async def connected() -> AsyncIterator[httpx.AsyncClient]:
    """Yield the connections of all clients."""
    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S, limits=limits) as http:
        yield http


async def _events_of(lines: AsyncIterator[str], dialect: str) -> AsyncIterator[Event]:
    event_id = ""
    async for line in lines:
        at_ns = time.monotonic_ns()
        name, _, value = line.partition(":")
        if name == "id":
            event_id = value.strip()
        elif name == "data":
            event = _event_of(_result_of(value), at_ns, event_id)
            yield _of_langgraph(event) if dialect == "langgraph" else event


def _of_langgraph(event: Event) -> Event:
    """Return an event of LangGraph's server as other servers send it.

    It streams what an agent emits as messages of a working status; its artifact is the answer.
    """
    if event.kind == "task":
        return event
    is_chunk = bool(event.said) and event.said != (ANSWER,)
    kind, texts = ("artifact", event.said) if is_chunk else ("status", ())
    return replace(event, kind=kind, texts=texts)


def _result_of(text: str) -> Any:
    try:
        answer = json.loads(text)
    except ValueError:
        raise WrongAnswerError(text[:300]) from None
    if not isinstance(answer, dict):
        raise WrongAnswerError(text[:300])
    if "result" not in answer:
        raise WrongAnswerError(json.dumps(answer.get("error", answer))[:300])
    return answer["result"]


def _event_of(result: Any, at_ns: int = 0, event_id: str = "") -> Event:
    try:
        return _read_event(result, at_ns, event_id)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise WrongAnswerError(f"No event: {json.dumps(result)[:200]}") from None


def _read_event(result: Any, at_ns: int, event_id: str) -> Event:
    kind, body = result.get("kind"), result
    if kind is None and "id" in result:  # 1.0 answers GetTask and CancelTask with a bare task
        kind = "task"
    if kind is None:
        ((kind, body),) = result.items()
    kind = kind.removesuffix("-update").removesuffix("Update")
    if kind not in ("task", "status", "artifact"):
        raise WrongAnswerError(f"A {kind} came in place of a task: {json.dumps(body)[:200]}")
    artifacts = body.get("artifacts", []) if kind == "task" else [body.get("artifact", {})]
    parts = [part for artifact in artifacts for part in artifact.get("parts", [])]
    status = body.get("status", {})
    task_id = body["id"] if kind == "task" else body["taskId"]
    texts = tuple(part["text"] for part in parts)
    said = tuple(part.get("text", "") for part in status.get("message", {}).get("parts", []))
    if not all(isinstance(text, str) for text in (task_id, *texts)):
        raise TypeError
    return Event(
        kind=kind,
        task_id=task_id,
        state=status.get("state", "").removeprefix("TASK_STATE_").lower(),
        texts=texts,
        at_ns=at_ns,
        event_id=event_id,
        said=said,
    )

"""Clients of 0.1: one that knows its names and no others, and simple_a2a's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

_numbers = itertools.count()


@dataclass
class Seen:
    """What a client has learned of a task: its id, its states one after the other, its text."""

    task_id: str = ""
    states: list[str] = field(default_factory=list)
    text: str = ""


class RpcError(Exception):
    """A JSON-RPC error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.code = error["code"]


class Client01:
    """A client of A2A 0.1, which knows the names of 0.1 and no others."""

    def __init__(self, http: httpx.AsyncClient, path: str = "/") -> None:
        self.http = http
        self._path = path

    async def call(self, method: str, params: Any) -> Any:
        """The result of a call.

        Raises:
            RpcError: the answer is an error.
        """
        request_id = next(_numbers)
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        answer = (await self.http.post(self._path, json=body)).json()
        assert answer["id"] == request_id
        if "error" in answer:
            raise RpcError(answer["error"])
        return answer["result"]

    async def frames(self, method: str, params: Any) -> list[dict[str, Any]]:
        """The results of a stream; each frame is an answer with the request's id."""
        body = {"jsonrpc": "2.0", "id": "s", "method": method, "params": params}
        response = await self.http.post(self._path, json=body)
        if response.headers["content-type"] == "application/json":
            raise RpcError(response.json()["error"])
        lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
        frames = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert {frame["id"] for frame in frames} == {"s"}
        return [frame["result"] for frame in frames]

    async def send(self, text: str, *, task: Seen | None = None) -> Seen:
        shown = await self.call("tasks/send", sent(text, task))
        texts = [p["text"] for a in shown.get("artifacts", []) for p in typed(a["parts"])]
        return Seen(shown["id"], [shown["status"]["state"]], "".join(texts))

    async def stream(self, text: str, *, task: Seen | None = None) -> Seen:
        params = sent(text, task)
        seen = Seen(params["id"])
        frames = await self.frames("tasks/sendSubscribe", params)
        for frame in frames:
            assert frame["id"] == params["id"]
            if "artifact" in frame:
                assert isinstance(frame["artifact"]["index"], int)
                seen.text += "".join(p["text"] for p in typed(frame["artifact"]["parts"]))
            else:
                seen.states.append(frame["status"]["state"])
        finals = [frame["final"] for frame in frames if "status" in frame]
        assert finals == [*[False] * (len(seen.states) - 1), True]
        return seen

    async def cancel(self, task: Seen) -> str:
        shown = await self.call("tasks/cancel", {"id": task.task_id})
        return str(shown["status"]["state"])


class SimpleA2A(Client01):
    """simple_a2a's client (Ruby), by its source: its requests, and how it takes a stream apart."""

    async def send_task(self, text: str, *, task_id: str = "", context_id: str = "") -> Any:
        chosen = {"id": task_id, "contextId": context_id}
        params = self.params(text) | {name: value for name, value in chosen.items() if value}
        return await self.call("tasks/send", params)

    async def send_subscribe(self, text: str) -> list[dict[str, Any]]:
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": "uuid", "method": "tasks/sendSubscribe"}
        body |= {"params": self.params(text)}
        response = await self.http.post("/", json=body, headers={"accept": "text/event-stream"})
        events = []
        *blocks, rest = response.text.split("\n\n")
        assert rest == ""
        for block in blocks:
            data = [line[6:].rstrip() for line in block.split("\n") if line.startswith("data: ")]
            if data:
                parsed = json.loads(data[-1])
                events.append(parsed.get("result", parsed))
        return events

    @staticmethod
    def params(text: str) -> dict[str, Any]:
        part = {"text": text, "mediaType": "text/plain"}
        names = {"messageId": f"simple-{next(_numbers)}", "referenceTaskIds": [], "extensions": []}
        return {"message": {**names, "role": "user", "parts": [part]}}


def sent(text: str, task: Seen | None = None) -> dict[str, Any]:
    """TaskSendParams; the id of a new task is the client's own."""
    task_id = task.task_id if task else f"my-task-{next(_numbers)}"
    message = {"role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": task_id, "message": message}


def typed(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Text parts as 0.1 tells them."""
    assert {part["type"] for part in parts} == {"text"}
    return parts

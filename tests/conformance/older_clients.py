"""Clients of older versions, for one and the same conversation."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import CancelTaskRequest, Message, Part, Role, SendMessageRequest, StreamResponse

from a2a_serverless.tasks.head import state_name

_numbers = itertools.count()


@dataclass
class Seen:
    """What a client has learned of a task: its id, its states one after the other, its text."""

    task_id: str = ""
    states: list[str] = field(default_factory=list)
    text: str = ""


class Talker(Protocol):
    """A client in a conversation. States have the names of 0.1 and 0.3."""

    async def send(self, text: str, *, task: Seen | None = None) -> Seen: ...

    async def stream(self, text: str, *, task: Seen | None = None) -> Seen: ...

    async def cancel(self, task: Seen) -> str: ...


class Client03:
    """The official SDK's client over its own transports of 0.3."""

    def __init__(self, http: httpx.AsyncClient, binding: str) -> None:
        self._http = http
        self._binding = binding

    async def send(self, text: str, *, task: Seen | None = None) -> Seen:
        return await self._sent(text, task, streaming=False)

    async def stream(self, text: str, *, task: Seen | None = None) -> Seen:
        return await self._sent(text, task, streaming=True)

    async def cancel(self, task: Seen) -> str:
        client = await self._client(streaming=False)
        canceled = await client.cancel_task(CancelTaskRequest(id=task.task_id))
        return _state(canceled.status.state)

    async def _client(self, *, streaming: bool) -> Client:
        card = await A2ACardResolver(self._http, "http://test").get_agent_card()
        spoken = [i for i in card.supported_interfaces if i.protocol_version == "0.3"]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(spoken)
        config = ClientConfig(
            streaming=streaming,
            httpx_client=self._http,
            supported_protocol_bindings=[self._binding],
        )
        return ClientFactory(config).create(card)

    async def _sent(self, text: str, task: Seen | None, *, streaming: bool) -> Seen:
        message = Message(
            message_id=f"m-{next(_numbers)}",
            role=Role.ROLE_USER,
            parts=[Part(text=text)],
            task_id=task.task_id if task else "",
        )
        client = await self._client(streaming=streaming)
        seen = Seen()
        async for event in client.send_message(SendMessageRequest(message=message)):
            _note(event, seen)
        return seen


def _note(event: StreamResponse, seen: Seen) -> None:
    if event.HasField("task"):
        seen.task_id = event.task.id
        seen.states.append(_state(event.task.status.state))
        parts = [part for artifact in event.task.artifacts for part in artifact.parts]
    elif event.HasField("status_update"):
        seen.states.append(_state(event.status_update.status.state))
        parts = []
    else:
        parts = list(event.artifact_update.artifact.parts)
    seen.text += "".join(part.text for part in parts)


def _state(state: Any) -> str:
    return state_name(state).removeprefix("TASK_STATE_").lower().replace("_", "-")


class RpcError(Exception):
    """A JSON-RPC error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.code = error["code"]


class Client01:
    """A client of A2A 0.1, which knows the names of 0.1 and no others."""

    def __init__(self, http: httpx.AsyncClient, path: str = "/") -> None:
        self._http = http
        self._path = path

    async def call(self, method: str, params: Any) -> Any:
        """The result of a call.

        Raises:
            RpcError: the answer is an error.
        """
        request_id = next(_numbers)
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        answer = (await self._http.post(self._path, json=body)).json()
        assert answer["id"] == request_id
        if "error" in answer:
            raise RpcError(answer["error"])
        return answer["result"]

    async def frames(self, method: str, params: Any) -> list[dict[str, Any]]:
        """The results of a stream; each frame is an answer with the request's id."""
        body = {"jsonrpc": "2.0", "id": "s", "method": method, "params": params}
        response = await self._http.post(self._path, json=body)
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
        assert [f["final"] for f in frames if "status" in f] == [
            *[False] * (len(seen.states) - 1),
            True,
        ]
        return seen

    async def cancel(self, task: Seen) -> str:
        shown = await self.call("tasks/cancel", {"id": task.task_id})
        return str(shown["status"]["state"])


class SimpleA2A:
    """simple_a2a's client (Ruby), by its source: its requests, and how it takes a stream apart."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._rpc = Client01(http)

    async def card(self) -> dict[str, Any]:
        card: dict[str, Any] = (await self._http.get("/agentCard")).json()
        return card

    async def send_task(self, text: str, **options: str) -> dict[str, Any]:
        task: dict[str, Any] = await self._rpc.call("tasks/send", self._params(text, **options))
        return task

    async def list_tasks(self, **params: str) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = await self._rpc.call("tasks/list", params)
        return tasks

    async def rpc_call(self, method: str, **params: Any) -> Any:
        """Its private call, by which its own example sets push configurations."""
        return await self._rpc.call(method, params)

    async def send_subscribe(self, text: str) -> list[dict[str, Any]]:
        return await self._streamed("tasks/sendSubscribe", self._params(text))

    async def resubscribe(self, task_id: str) -> list[dict[str, Any]]:
        return await self._streamed("tasks/resubscribe", {"id": task_id})

    @staticmethod
    def _params(text: str, *, task_id: str = "", context_id: str = "") -> dict[str, Any]:
        part = {"text": text, "mediaType": "text/plain"}
        names = {"messageId": f"simple-{next(_numbers)}", "referenceTaskIds": [], "extensions": []}
        message = {**names, "role": "user", "parts": [part]}
        chosen = {"id": task_id, "contextId": context_id}
        return {"message": message, **{name: value for name, value in chosen.items() if value}}

    async def _streamed(self, method: str, params: dict[str, Any]) -> list[dict[str, Any]]:
        body = {"jsonrpc": "2.0", "id": "uuid", "method": method, "params": params}
        headers = {"accept": "text/event-stream"}
        response = await self._http.post("/", json=body, headers=headers)
        events = []
        *blocks, rest = response.text.split("\n\n")
        assert rest == ""
        for block in blocks:
            data = [line[6:].rstrip() for line in block.split("\n") if line.startswith("data: ")]
            if data:
                parsed = json.loads(data[-1])
                events.append(parsed.get("result", parsed))
        return events


def sent(text: str, task: Seen | None = None) -> dict[str, Any]:
    """TaskSendParams; the id of a new task is the client's own."""
    task_id = task.task_id if task else f"my-task-{next(_numbers)}"
    message = {"role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": task_id, "message": message}


def typed(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Text parts as 0.1 tells them."""
    assert {part["type"] for part in parts} == {"text"}
    return parts

"""A server with one task, whose whole log is there from the start, behind an httpx transport.

A test says what happens to each request in turn. Requests without a fault are answered in full.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from a2a import types
from a2a.types import Message, StreamResponse, Task, TaskState, TaskStatus
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.support.messages import artifact

BINDINGS = ["JSONRPC", "HTTP+JSON"]
TASK = "task-1"
URL = "http://agent.test"
CODES = {"TASK_NOT_FOUND": -32001, "UNSUPPORTED_OPERATION": -32004, "INTERNAL_ERROR": -32603}
STATUSES = {"TASK_NOT_FOUND": 404, "UNSUPPORTED_OPERATION": 400, "INTERNAL_ERROR": 500}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to one request.

    `error` is raised instead of an answer, `status` answered without work, `reason` an A2A error;
    `cut` ends the answer's body after that many bytes, `events` after that many events, by
    `error` if there is one, else as if it were complete. `tail` is sent before that end.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    cut: int | None = None
    events: int | None = None
    tail: bytes = b""
    error: Exception | None = None
    hangs: bool = False

    @property
    def is_cut(self) -> bool:
        return self.cut is not None or self.events is not None


LOST = httpx.ReadError("connection reset")
REFUSED = httpx.ConnectError("connection refused")


IDS: Any = {"task_id": TASK, "context_id": "context-1"}


def status(state: TaskState) -> StreamResponse:
    update = types.TaskStatusUpdateEvent(**IDS, status=TaskStatus(state=state))
    return StreamResponse(status_update=update)


def chunk(text: str) -> StreamResponse:
    update = types.TaskArtifactUpdateEvent(**IDS, artifact=artifact("story", text), append=True)
    return StreamResponse(artifact_update=update)


def opened(state: TaskState = TaskState.TASK_STATE_SUBMITTED) -> StreamResponse:
    task = Task(id=TASK, context_id="context-1", status=TaskStatus(state=state))
    return StreamResponse(task=task)


LOG = [
    opened(),
    status(TaskState.TASK_STATE_WORKING),
    chunk("Once "),
    chunk("more, "),
    chunk("more, "),
    chunk("\u6f22\U0001f388\r\n\n"),
    status(TaskState.TASK_STATE_COMPLETED),
]
PAUSED = [*LOG[:3], status(TaskState.TASK_STATE_INPUT_REQUIRED)]


class ScriptedServer(httpx.AsyncBaseTransport):
    """The server and the way to it.

    `ids` says whether its events have ids, `resumes` whether it honours Last-Event-ID. `now` is the
    number of events that have happened when it is asked again. A server that numbers otherwise
    overrides `id_of` and `place_of`.
    """

    def __init__(self, log: Sequence[Any] = LOG, *faults: Fault, ids: bool = True) -> None:
        self.log = list(log)
        self.faults = deque(faults)
        self.ids = ids
        self.resumes = ids
        self.repeats = False
        self.now = len(self.log)
        self.holds_subscriptions = False
        self.requests: list[httpx.Request] = []
        self.accepted: dict[str | None, Message] = {}
        self.messages: list[Message] = []
        self.closed = 0
        self.at_request: Callable[[], None] = lambda: None
        self.at_end: Callable[[], None] = lambda: None
        """Called when a stream's body has been read."""

    def card(self, binding: str, *, streaming: bool = True) -> types.AgentCard:
        interface = types.AgentInterface(url=URL, protocol_binding=binding, protocol_version="1.0")
        made = types.AgentCard(name="Storyteller", version="1", supported_interfaces=[interface])
        made.capabilities.streaming = streaming
        return made

    def methods(self) -> list[str]:
        return [self._method(request) for request in self.requests]

    def sent(self, header: str) -> list[str | None]:
        return [request.headers.get(header) for request in self.requests]

    def as_of(self, count: int) -> StreamResponse:
        """The Task after that many events."""
        response = StreamResponse()
        response.CopyFrom(self.log[0])
        task = response.task
        for event in self.log[1:count]:
            if event.HasField("status_update"):
                task.status.CopyFrom(event.status_update.status)
                continue
            written = event.artifact_update.artifact
            known = [a for a in task.artifacts if a.artifact_id == written.artifact_id]
            if known and event.artifact_update.append:
                known[0].parts.extend(written.parts)
            elif known:
                known[0].CopyFrom(written)
            else:
                task.artifacts.append(written)
        return response

    def id_of(self, number: int, place: int) -> str | None:
        """The id of the log's event `number`, from 1, at that place of its stream, from 0."""
        return f"{number}.0.abcdef" if self.ids else None

    def place_of(self, last_id: str) -> int | None:
        """The number of the event to continue after; None if the id says nothing."""
        return int(last_id.split(".", maxsplit=1)[0]) if self.resumes else None

    def body(self, binding: str) -> bytes:
        request = httpx.Request("POST", URL if binding == "JSONRPC" else f"{URL}/message:stream")
        return b"".join(self._sse(request, n + 1, n, event) for n, event in enumerate(self.log))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.at_request()
        fault = self.faults.popleft() if self.faults else Fault()
        if fault.error is not None and not fault.is_cut:
            raise fault.error
        if fault.status != 200:
            return httpx.Response(fault.status, headers=fault.headers, request=request)
        if fault.reason:
            return self._refusal(request, fault.reason)
        match self._method(request):
            case "GetTask":
                return self._answer(request, self.as_of(self.now).task)
            case "CancelTask":
                return self._answer(request, opened(TaskState.TASK_STATE_CANCELED).task)
            case "SendMessage":
                self._accept(request)
                if fault.is_cut:
                    raise fault.error or LOST
                return self._answer(request, self.as_of(self.now))
            case "SendStreamingMessage":
                first = len(self.log) if self._accept(request) else 1
                return self._stream(request, first, fault)
            case _:
                return self._subscription(request, fault)

    def _subscription(self, request: httpx.Request, fault: Fault) -> httpx.Response:
        last = request.headers.get("last-event-id")
        first = None if last is None else self.place_of(last)
        if first is None:
            first = self.now
            if self.as_of(first).task.status.state == TaskState.TASK_STATE_COMPLETED:
                return self._refusal(request, "UNSUPPORTED_OPERATION")
        return self._stream(request, first, fault)

    def _accept(self, request: httpx.Request) -> bool:
        """Take the message; True if it was there already."""
        params = json.loads(request.content)
        params = params.get("params", params)
        message = ParseDict(params, types.SendMessageRequest(), ignore_unknown_fields=True).message
        self.messages.append(message)
        key = request.headers.get("idempotency-key")
        is_repeated = key is not None and key in self.accepted
        self.accepted[key] = message
        return is_repeated

    def _stream(self, request: httpx.Request, first: int, fault: Fault) -> httpx.Response:
        events = [(first, self.as_of(first))]
        events += list(enumerate(self.log[first:], first + 1))
        if self.repeats:
            events = [pair for pair in events for _ in range(2)]
        blocks = [self._sse(request, number, at, it) for at, (number, it) in enumerate(events)]
        is_held = self.holds_subscriptions and self._method(request) == "SubscribeToTask"
        ends_with_turn = self.resumes and request.headers.get("prefer") == "until=turn"
        is_open = is_held and not (ends_with_turn or fault.is_cut)
        content = b"".join(blocks[: fault.events])[: fault.cut] + fault.tail
        error = fault.error if fault.is_cut else None
        body = _Body(self, content, error, hangs=fault.hangs or is_open)
        headers = {"content-type": "text/event-stream; charset=utf-8", **fault.headers}
        return httpx.Response(200, headers=headers, stream=body, request=request)

    def _sse(self, request: httpx.Request, number: int, place: int, event: StreamResponse) -> bytes:
        data = json.dumps(self._wrapped(request, event), ensure_ascii=False)
        event_id = self.id_of(number, place)
        id_line = "" if event_id is None else f"id: {event_id}\r\n"
        return f": alive\r\n\r\n{id_line}data: {data}\r\n\r\n".encode()

    def _answer(self, request: httpx.Request, answer: Any) -> httpx.Response:
        return httpx.Response(200, json=self._wrapped(request, answer), request=request)

    def _wrapped(self, request: httpx.Request, answer: Any) -> dict[str, Any]:
        result = MessageToDict(answer)
        is_rpc = request.url.path == "/"
        return {"jsonrpc": "2.0", "id": "1", "result": result} if is_rpc else result

    def _refusal(self, request: httpx.Request, reason: str) -> httpx.Response:
        code, content = error_of(reason, is_rpc=request.url.path == "/")
        return httpx.Response(code, json=content, request=request)

    def _method(self, request: httpx.Request) -> str:
        path = request.url.path
        if path == "/":
            return str(json.loads(request.content)["method"])
        names = {
            "/message:send": "SendMessage",
            "/message:stream": "SendStreamingMessage",
            f"/tasks/{TASK}": "GetTask",
            f"/tasks/{TASK}:subscribe": "SubscribeToTask",
            f"/tasks/{TASK}:cancel": "CancelTask",
        }
        return names[path]


def error_of(reason: str, *, is_rpc: bool) -> tuple[int, dict[str, Any]]:
    """HTTP status and content of an A2A error."""
    if is_rpc:
        stated = {"code": CODES.get(reason, -32602), "message": reason}
        return 200, {"jsonrpc": "2.0", "id": "1", "error": stated}
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}]
    code = STATUSES.get(reason, 400)
    return code, {"error": {"code": code, "message": reason, "details": details}}


@dataclass
class _Body(httpx.AsyncByteStream):
    """Pieces of a body that begin and end anywhere, and then its end."""

    server: ScriptedServer
    content: bytes
    error: Exception | None
    hangs: bool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.content), 97):
            yield self.content[start : start + 97]
        self.server.at_end()
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.server.closed += 1

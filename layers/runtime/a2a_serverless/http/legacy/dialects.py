"""Clients from before A2A 0.2: their JSON-RPC methods, translated onto the handler.

`tasks/send`, `tasks/sendSubscribe`, `tasks/get`, `tasks/cancel` and `tasks/resubscribe` are those
of A2A 0.1, and `tasks/list` is what its client simple_a2a has beyond it; `tasks/submit` and
`tasks/status` are a dialect that submits under an id of its own and asks for the result later. All
of them serve only requests that name no version, which is what sets their clients apart; a request
with `A2A-Version` is answered as without this module.

Three of the names live on in 0.3. There the answer is 0.3's with the names of 0.1 beside it, so
that either client finds its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from a2a.compat.v0_3 import conversions
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder, create_event_source_response
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
)
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from a2a_serverless.http import SUBMIT_PATH
from a2a_serverless.http.checks import parsed, read_json
from a2a_serverless.http.context import choose_id, names_version
from a2a_serverless.http.errors import jsonrpc_error, protocol_errors, quoted
from a2a_serverless.http.guard import request_id_of, rewired
from a2a_serverless.http.handler import DurableRequestHandler
from a2a_serverless.http.streaming import Endpoint
from a2a_serverless.tasks.events import Event
from a2a_serverless.tasks.head import is_terminal
from a2a_serverless.tasks.identity import digest, is_unicode

Json = dict[str, Any]
Params = Mapping[str, Any]
Result = Json | list[Json] | AsyncIterator[Json]

_LISTED = 100
"""The most tasks of `tasks/list`, whose answer has no place for a page token."""

_ROLES = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
_STATES_OF_0_1 = {"rejected": "failed", "auth-required": "input-required"}
"""States that 0.1 lacks, by the one of 0.1 on which its clients do the right thing."""


class LegacyDialects:
    """The legacy methods over a handler.

    Args:
        submitted_ttl_s: how long a task of `tasks/submit` is kept, in seconds; those of 0.1 are
            kept as long as any other.
    """

    def __init__(
        self,
        handler: DurableRequestHandler,
        context: ServerCallContextBuilder,
        *,
        submitted_ttl_s: float,
    ) -> None:
        self._handler = handler
        self._context = context
        self._submitted_ttl_s = submitted_ttl_s
        self._methods: Mapping[str, Callable[[Params, ServerCallContext], Awaitable[Result]]] = {
            "tasks/send": self._send,
            "tasks/sendSubscribe": self._send_subscribe,
            "tasks/get": self._get,
            "tasks/list": self._list,
            "tasks/cancel": self._cancel,
            "tasks/resubscribe": self._resubscribe,
            "tasks/submit": self._submit,
            "tasks/status": self._status,
        }

    @property
    def methods(self) -> frozenset[str]:
        """Return the methods that are served to requests that name no version."""
        return frozenset(self._methods)

    def routes(self, jsonrpc: Sequence[BaseRoute]) -> list[BaseRoute]:
        """Return the JSON-RPC routes with the legacy methods, and once more under `SUBMIT_PATH`."""
        routes = rewired(jsonrpc, lambda route: self._before(route.endpoint))
        again = [
            Route(SUBMIT_PATH, route.endpoint, methods=["POST"])
            for route in routes
            if isinstance(route, Route)
        ]
        return [*routes, *again]

    def _before(self, endpoint: Endpoint) -> Endpoint:
        async def with_dialects(request: Request) -> Response:
            envelope = read_json(await request.body())
            method = self._methods.get(_method_of(envelope))
            if method is None or names_version(request):
                return await endpoint(request)
            request_id = request_id_of(envelope)
            try:
                with protocol_errors("older_dialect"):
                    context = self._context.build(request)
                    return await _answer(request_id, await method(_params(envelope), context))
            except A2AError as error:
                return jsonrpc_error(error, request_id)

        return with_dialects

    # -- A2A 0.1 -------------------------------------------------------------------------------

    async def _send(self, params: Params, context: ServerCallContext) -> Result:
        return Shapes(is_0_1=True).task(await self._finished(self._sent(params, context), context))

    async def _send_subscribe(self, params: Params, context: ServerCallContext) -> Result:
        request = self._sent(params, context)
        events = self._handler.on_message_send_stream(request, context)
        shapes = Shapes(is_0_1=True)
        return (shapes.own_events(event) async for event in events)

    async def _get(self, params: Params, context: ServerCallContext) -> Result:
        # As in 0.3, where 0 messages of the history mean all of them.
        asked = {"id": _task_id(params), "historyLength": params.get("historyLength") or None}
        task = await self._handler.on_get_task(parsed(asked, GetTaskRequest), context)
        return Shapes().task(task)

    async def _list(self, params: Params, context: ServerCallContext) -> Result:
        """Return the caller's newest tasks, whole, at most `_LISTED` of them."""
        request = ListTasksRequest(page_size=_LISTED, include_artifacts=True)
        if params.get("contextId") is not None:
            request.context_id = _text(params, "contextId")
        found = await self._handler.on_list_tasks(request, context)
        return [Shapes(is_0_1=True).task(task) for task in found.tasks]

    async def _cancel(self, params: Params, context: ServerCallContext) -> Result:
        request = CancelTaskRequest(id=_task_id(params))
        return Shapes().task(await self._handler.on_cancel_task(request, context))

    async def _resubscribe(self, params: Params, context: ServerCallContext) -> Result:
        request = SubscribeToTaskRequest(id=_task_id(params))
        events, shapes = self._handler.on_subscribe_to_task(request, context), Shapes()
        return (shapes.events(event) async for event in events)

    def _sent(self, params: Params, context: ServerCallContext) -> SendMessageRequest:
        """Return the message for the task that `id` names: a new task, or its next turn."""
        if params.get("pushNotification") is not None:
            raise PushNotificationNotSupportedError(
                message="Notifications have the form of A2A 1.0, which a client of 0.1 cannot read."
            )
        if params.get("id") is not None:
            choose_id(context, _text(params, "id"))
        return request_of(params)

    # -- submit and ask later ------------------------------------------------------------------

    async def _submit(self, params: Params, context: ServerCallContext) -> Result:
        choose_id(context, _text(params, "taskId"), ttl_s=self._submitted_ttl_s)
        task = await self._finished(request_of({"message": params.get("message")}), context)
        return {"task": submitted(task)}

    async def _status(self, params: Params, context: ServerCallContext) -> Result:
        task_id = _text(params, "taskId")
        asked = GetTaskRequest(id=task_id, history_length=0)
        task = await self._handler.find_task(asked, context)
        if task is None:
            return {"task": {"id": task_id, "status": "not_found"}}
        return {"task": submitted(task)}

    async def _finished(self, request: SendMessageRequest, context: ServerCallContext) -> Task:
        """Return the task after its turn, also where the agent answered only with a Message."""
        answer = await self._handler.on_message_send(request, context)
        if isinstance(answer, Task):
            return answer
        length = request.configuration.history_length
        asked = GetTaskRequest(id=answer.task_id, history_length=length)
        task: Task = await self._handler.on_get_task(asked, context)
        return task


async def _answer(request_id: Any, result: Result) -> Response:
    if isinstance(result, dict | list):
        return JSONResponse(_envelope(request_id, result))
    try:
        first = await anext(result)  # an error at its start becomes an answer, not an event
    except StopAsyncIteration:
        first = None

    async def frames() -> AsyncIterator[dict[str, str]]:
        try:
            if first is not None:
                yield {"data": json.dumps(_envelope(request_id, first))}
            async for item in result:
                yield {"data": json.dumps(_envelope(request_id, item))}
        except A2AError as error:
            yield {"event": "error", "data": bytes(jsonrpc_error(error, request_id).body).decode()}

    return create_event_source_response(frames())


def _envelope(request_id: Any, result: Json | list[Json]) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def _method_of(envelope: Any) -> str:
    """Return the called method; empty for an invalid call, which the dispatcher refuses."""
    is_call = (
        isinstance(envelope, dict)
        and envelope.get("jsonrpc") == "2.0"
        and request_id_of(envelope) == envelope.get("id")
    )
    return str(envelope.get("method")) if is_call else ""


def _params(envelope: Params) -> Params:
    params = envelope.get("params")
    if not isinstance(params, dict):
        raise InvalidParamsError(message="The method needs params, an object.")
    return params


def _task_id(params: Params) -> str:
    return _text(params, "id" if params.get("id") is not None else "taskId")


def _text(params: Params, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value or not is_unicode(value):
        raise InvalidParamsError(message=f"{name} is missing or not a text: it names the task.")
    return value


def request_of(params: Mapping[str, Any]) -> SendMessageRequest:
    """Convert the params of `tasks/send` or `tasks/submit` (0.1: TaskSendParams).

    Parts may also have the form of 1.0. A message without an id gets one that is made of its
    content, so that a repetition is recognised. 0.1 returns a history only on request.

    Raises:
        InvalidParamsError: there is no message, or one that 1.0 cannot express.
    """
    message = params.get("message")
    if not isinstance(message, Mapping):
        raise InvalidParamsError(message="message is missing.")
    parts = message.get("parts")
    if not isinstance(parts, list):
        raise InvalidParamsError(message="message.parts is missing or not a list.")
    content = json.dumps(message, sort_keys=True)
    contexts = (params.get("sessionId"), params.get("contextId"), message.get("contextId"))
    return parsed(
        {
            "message": {
                "messageId": message.get("messageId") or digest("older-message", content),
                "contextId": next((c for c in contexts if c is not None), None),
                "role": _ROLES.get(str(message.get("role", "user")), message.get("role")),
                "parts": [_part_of(part) for part in parts],
                "metadata": message.get("metadata"),
            },
            "configuration": {
                "historyLength": params.get("historyLength") or 0,
                "acceptedOutputModes": params.get("acceptedOutputModes"),
            },
            "metadata": params.get("metadata"),
        },
        SendMessageRequest,
    )


def _part_of(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    kind = part.get("type", part.get("kind"))
    file = part.get("file")
    match kind:
        case None:
            return part
        case "text" | "data":
            fields = {kind: part.get(kind)}
        case "file" if isinstance(file, Mapping):
            names = {"bytes": "raw", "uri": "url", "name": "filename", "mimeType": "mediaType"}
            fields = {ours: file.get(name) for name, ours in names.items()}
        case _:
            raise InvalidParamsError(message=f"The part type {quoted(str(kind), 20)} is unknown.")
    fields["metadata"] = part.get("metadata")
    return {name: value for name, value in fields.items() if value is not None}


class Shapes:
    """Turns tasks and events into JSON: that of 0.3, with the names of 0.1 beside its own.

    One instance serves one answer: it numbers the artifacts, which have no ids in 0.1.

    Args:
        is_0_1: whether the client can only be one of 0.1, which knows fewer states.
    """

    def __init__(self, *, is_0_1: bool = False) -> None:
        self._is_0_1 = is_0_1
        self._numbers: dict[str, int] = {}

    def task(self, task: Task) -> Json:
        shape = _dumped(conversions.to_compat_task(task))
        shape |= {"sessionId": task.context_id, "status": self._status(shape["status"])}
        for name, translated in (("artifacts", self._artifact), ("history", _message)):
            if name in shape:
                shape[name] = [translated(item) for item in shape[name]]
        return shape

    def events(self, event: Event) -> Json:
        """Convert an event of a subscription, which begins with the Task."""
        match event:
            case Task():
                return self.task(event)
            case TaskStatusUpdateEvent():
                shape = _dumped(conversions.to_compat_task_status_update_event(event))
                shape["status"] = self._status(shape["status"])
                return self._named(shape, "TaskStatusUpdateEvent")
            case TaskArtifactUpdateEvent():
                shape = _dumped(conversions.to_compat_task_artifact_update_event(event))
                artifact = self._artifact(shape["artifact"])
                artifact |= {"append": event.append, "lastChunk": event.last_chunk}
                return self._named({**shape, "artifact": artifact}, "TaskArtifactUpdateEvent")
            case Message():
                return _message(_dumped(conversions.to_compat_message(event)))

    def own_events(self, event: Event) -> Json:
        """Convert an event of `tasks/sendSubscribe`, where a pause is `final`, too.

        The Task that opens the stream reads as a status.
        """
        shape = self.events(event)
        if isinstance(event, Task | TaskStatusUpdateEvent):
            state = event.status.state
            shape["final"] = is_terminal(state) or state == TaskState.TASK_STATE_INPUT_REQUIRED
        return shape

    def _named(self, event: Json, kind: str) -> Json:
        return {**event, "id": event["taskId"], "sessionId": event["contextId"], "type": kind}

    def _status(self, status: Json) -> Json:
        if self._is_0_1:
            status = {**status, "state": _STATES_OF_0_1.get(status["state"], status["state"])}
        if "message" in status:
            status = {**status, "message": _message(status["message"])}
        return status

    def _artifact(self, artifact: Json) -> Json:
        number = self._numbers.setdefault(artifact["artifactId"], len(self._numbers))
        return {**artifact, "index": number, "parts": [_part(p) for p in artifact["parts"]]}


def submitted(task: Task) -> Json:
    """Convert a task for `tasks/submit` and `tasks/status`: its state and newest artifact.

    The status message of an agent that made no artifact takes the artifact's place.
    """
    shape = Shapes(is_0_1=True).task(task)
    artifact = shape["artifacts"][-1] if "artifacts" in shape else None
    said = shape["status"].get("message")
    if artifact is None and said is not None:
        artifact = {"parts": said["parts"]}
    return {"id": task.id, "status": shape["status"]["state"], "artifact": artifact}


def _message(message: Json) -> Json:
    return {**message, "parts": [_part(part) for part in message["parts"]]}


def _part(part: Json) -> Json:
    return {**part, "type": part["kind"]}


def _dumped(model: BaseModel) -> Json:
    dumped: Json = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped

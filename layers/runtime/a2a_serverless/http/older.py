"""Clients from before A2A 0.2: their JSON-RPC methods, translated onto the handler.

`tasks/send`, `tasks/sendSubscribe`, `tasks/get`, `tasks/cancel` and `tasks/resubscribe` are those of
A2A 0.1; `tasks/submit` and `tasks/status` are a dialect that submits under an id of its own and asks
for the result later. All of them serve only requests that name no version, which is what sets
their clients apart; a request with `A2A-Version` is answered as without this module.

Three of the names live on in 0.3. There the answer is 0.3's with the names of 0.1 beside it, so
that either client finds its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder, create_event_source_response
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.constants import VERSION_HEADER
from a2a.utils.errors import (
    A2AError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from a2a_serverless.http.bodies import parsed, read_json
from a2a_serverless.http.context import choose_id
from a2a_serverless.http.errors import jsonrpc_error, protocol_errors
from a2a_serverless.http.guard import rewired
from a2a_serverless.http.handler import DurableRequestHandler
from a2a_serverless.http.older_shapes import Shapes, request_of, submitted
from a2a_serverless.http.streaming import Endpoint
from a2a_serverless.tasks.events import Event

SUBMIT_PATH = "/api/a2a/tasks"
"""Where clients of `tasks/submit` expect the JSON-RPC endpoint; it is the same one."""

Params = Mapping[str, Any]
Result = Mapping[str, Any] | AsyncIterator[Mapping[str, Any]]


class OlderDialects:
    """The older methods over a handler.

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
            "tasks/cancel": self._cancel,
            "tasks/resubscribe": self._resubscribe,
            "tasks/submit": self._submit,
            "tasks/status": self._status,
        }

    def routes(self, jsonrpc: Sequence[BaseRoute]) -> list[BaseRoute]:
        """The JSON-RPC routes with the older methods, and once more under `SUBMIT_PATH`."""
        routes = rewired(jsonrpc, lambda route: self._before(route.endpoint))
        again = [Route(SUBMIT_PATH, r.endpoint, methods=["POST"]) for r in routes if _is_route(r)]
        return [*routes, *again]

    def _before(self, endpoint: Endpoint) -> Endpoint:
        async def with_older_dialects(request: Request) -> Response:
            envelope = read_json(await request.body())
            is_call = isinstance(envelope, dict) and envelope.get("jsonrpc") == "2.0"
            method = self._methods.get(str(envelope.get("method"))) if is_call else None
            if method is None or _names_version(request):
                return await endpoint(request)
            request_id = envelope.get("id")
            try:
                with protocol_errors("older_dialect"):
                    context = self._context.build(request)
                    return await _answer(request_id, await method(_params(envelope), context))
            except A2AError as error:
                return jsonrpc_error(error, request_id)

        return with_older_dialects

    # -- A2A 0.1 -------------------------------------------------------------------------------

    async def _send(self, params: Params, context: ServerCallContext) -> Result:
        request = self._sent(params, context)
        task = await self._finished(request, context)
        length = request.configuration.history_length
        del task.history[: len(task.history) - length if length else len(task.history)]
        return Shapes(is_0_1=True).task(task)

    async def _send_subscribe(self, params: Params, context: ServerCallContext) -> Result:
        request = self._sent(params, context)
        events = self._handler.on_message_send_stream(request, context)
        return _shown(events, Shapes(is_0_1=True).own_events)

    async def _get(self, params: Params, context: ServerCallContext) -> Result:
        # As in 0.3, where 0 messages of the history mean all of them.
        asked = {"id": _task_id(params), "historyLength": params.get("historyLength") or None}
        task = await self._handler.on_get_task(parsed(asked, GetTaskRequest), context)
        return Shapes().task(task)

    async def _cancel(self, params: Params, context: ServerCallContext) -> Result:
        request = CancelTaskRequest(id=_task_id(params))
        return Shapes().task(await self._handler.on_cancel_task(request, context))

    async def _resubscribe(self, params: Params, context: ServerCallContext) -> Result:
        request = SubscribeToTaskRequest(id=_task_id(params))
        return _shown(self._handler.on_subscribe_to_task(request, context), Shapes().events)

    def _sent(self, params: Params, context: ServerCallContext) -> SendMessageRequest:
        """A message for the task that `id` names: a new one under that id, or its next turn."""
        if params.get("pushNotification") is not None:
            raise PushNotificationNotSupportedError
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
        try:
            task = await self._handler.on_get_task(
                GetTaskRequest(id=task_id, history_length=0), context
            )
        except TaskNotFoundError:
            return {"task": {"id": task_id, "status": "not_found"}}
        return {"task": submitted(task)}

    async def _finished(self, request: SendMessageRequest, context: ServerCallContext) -> Task:
        """The task after its turn, also where the agent has answered with a Message alone."""
        answer = await self._handler.on_message_send(request, context)
        if isinstance(answer, Message):
            return await self._handler.on_get_task(GetTaskRequest(id=answer.task_id), context)
        return answer


async def _answer(request_id: Any, result: Result) -> Response:
    if isinstance(result, Mapping):
        return JSONResponse(_envelope(request_id, result))
    try:
        first = await anext(result)  # what refuses the stream is an answer of its own
    except StopAsyncIteration:
        first = None

    async def frames() -> AsyncIterator[dict[str, str]]:
        try:
            if first is not None:
                yield {"data": json.dumps(_envelope(request_id, first))}
            async for shown in result:
                yield {"data": json.dumps(_envelope(request_id, shown))}
        except A2AError as error:
            yield {"event": "error", "data": bytes(jsonrpc_error(error, request_id).body).decode()}

    return create_event_source_response(frames())


async def _shown(
    events: AsyncIterator[Event], shown: Callable[[Event], Mapping[str, Any]]
) -> AsyncIterator[Mapping[str, Any]]:
    async for event in events:
        yield shown(event)


def _envelope(request_id: Any, result: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def _params(envelope: Params) -> Params:
    params = envelope.get("params")
    if not isinstance(params, dict):
        raise InvalidParamsError(message="The method needs params, an object.")
    return params


def _task_id(params: Params) -> str:
    return _text(params, "id" if params.get("id") is not None else "taskId")


def _text(params: Params, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidParamsError(message=f"{name} is missing: a text that names the task.")
    return value


def _names_version(request: Request) -> bool:
    names = {name.lower() for name in (*request.headers, *request.query_params)}
    return VERSION_HEADER.lower() in names


def _is_route(route: BaseRoute) -> bool:
    return isinstance(route, Route)

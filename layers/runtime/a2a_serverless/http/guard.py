"""What a request has to pass before one of the SDK's dispatchers gets it, binding by binding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidRequestError,
    JSONParseError,
)
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from a2a_serverless.http.bodies import (
    check_0_3_body,
    check_0_3_params,
    check_enums,
    check_query,
    parsed,
    read_json,
)
from a2a_serverless.http.errors import jsonrpc_error, rest_error
from a2a_serverless.http.streaming import Endpoint

SUBMIT_PATH = "/api/a2a/tasks"
"""Where clients of `tasks/submit` expect the JSON-RPC endpoint, which is the same one."""
JSONRPC_PATHS = frozenset({"", "/", SUBMIT_PATH})

JSON_TYPES = frozenset({"application/json", "application/a2a+json"})

Check = Callable[[Any], object]
"""Raises InvalidParamsError for what is no valid content."""


def _is(model: type[Message]) -> Check:
    return lambda value: parsed(value, model)


_JSONRPC_PARAMS: Mapping[str, Check] = {
    "SendMessage": _is(SendMessageRequest),
    "SendStreamingMessage": _is(SendMessageRequest),
    "GetTask": _is(GetTaskRequest),
    "ListTasks": _is(ListTasksRequest),
    "CancelTask": _is(CancelTaskRequest),
    "SubscribeToTask": _is(SubscribeToTaskRequest),
    "CreateTaskPushNotificationConfig": _is(TaskPushNotificationConfig),
    "GetTaskPushNotificationConfig": _is(GetTaskPushNotificationConfigRequest),
    "ListTaskPushNotificationConfigs": _is(ListTaskPushNotificationConfigsRequest),
    "DeleteTaskPushNotificationConfig": _is(DeleteTaskPushNotificationConfigRequest),
    "message/send": check_0_3_params,
    "message/stream": check_0_3_params,
}
_REST_BODIES: Mapping[str, Check] = {
    "/message:send": _is(SendMessageRequest),
    "/message:stream": _is(SendMessageRequest),
    "/tasks/{id}/pushNotificationConfigs": _is(TaskPushNotificationConfig),
    "/v1/message:send": check_0_3_body,
    "/v1/message:stream": check_0_3_body,
}
_HTTP_UNSUPPORTED_MEDIA_TYPE = 415


def jsonrpc_guard(endpoint: Endpoint) -> Endpoint:
    """Content type (-32005), JSON (-32700) and parameters (-32602) before the dispatcher.

    Its own complaint about parameters repeats the parser's words, and logs them as a failure.
    """

    async def guarded(request: Request) -> Response:
        request_id = None
        try:
            _check_content_type(request)
            envelope = read_json(await request.body())
            if isinstance(envelope, dict):
                request_id = request_id_of(envelope)
                if not isinstance(envelope.get("method"), str):
                    raise InvalidRequestError(message="The request names no method.")
                check = _JSONRPC_PARAMS.get(str(envelope.get("method")))
                if check is not None and envelope.get("jsonrpc") == "2.0":
                    check(envelope.get("params", {}))
        except A2AError as error:
            return jsonrpc_error(error, request_id)
        return await endpoint(request)

    return guarded


def rest_guard(endpoint: Endpoint, route: Route) -> Endpoint:
    """Content type, JSON and enum values, of body and query, before the dispatcher."""
    check = _REST_BODIES.get(route.path)
    has_body = "POST" in (route.methods or ())
    has_filters = route.path == "/tasks"

    async def guarded(request: Request) -> Response:
        try:
            if has_filters:
                check_enums(dict(request.query_params), ListTasksRequest)
            check_query(request.query_params)
            if has_body:
                _check_content_type(request)
                await _check_rest_body(request, check)
        except ContentTypeNotSupportedError as error:
            # It is HTTP's own header that is wrong here, not a part of a message (400).
            return rest_error(error, status=_HTTP_UNSUPPORTED_MEDIA_TYPE)
        except JSONParseError as error:
            return rest_error(InvalidRequestError(message=error.message))
        except A2AError as error:
            return rest_error(error)
        return await endpoint(request)

    return guarded


def rewired(routes: Sequence[BaseRoute], wrap: Callable[[Route], Endpoint]) -> list[BaseRoute]:
    """The same routes with other endpoints, mounts included."""
    again: list[BaseRoute] = []
    for route in routes:
        if isinstance(route, Mount):
            again.append(Mount(route.path, routes=rewired(route.routes, wrap)))
        elif isinstance(route, Route):
            methods = sorted(route.methods or ())
            again.append(Route(route.path, wrap(route), methods=methods))
        else:
            again.append(route)
    return again


def _check_content_type(request: Request) -> None:
    """Refuse a body that says it is something else than JSON; one that says nothing is tried."""
    stated = request.headers.get("content-type", "")
    essence = stated.partition(";")[0].strip().lower()
    if essence and essence not in JSON_TYPES:
        raise ContentTypeNotSupportedError(
            message=f"The Content-Type {essence[:100]} is not application/json."
        )


async def _check_rest_body(request: Request, check: Check | None) -> None:
    body = await request.body()
    if not body and check is None:
        return
    value = read_json(body)
    if not isinstance(value, dict):
        raise InvalidRequestError(message="The body is not a JSON object.")
    if check is not None:
        check(value)


def request_id_of(envelope: Mapping[str, object]) -> str | int | None:
    """The id of a JSON-RPC request; None when it has none that JSON-RPC allows."""
    request_id = envelope.get("id")
    is_valid = isinstance(request_id, str | int) and not isinstance(request_id, bool)
    return request_id if is_valid else None  # type: ignore[return-value]  # narrowed above

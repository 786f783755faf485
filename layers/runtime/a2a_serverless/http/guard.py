"""Guards before the SDK's dispatchers, one for each binding."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from a2a.compat.v0_3.jsonrpc_adapter import JSONRPC03Adapter
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.types import ListTasksRequest, SendMessageRequest, TaskPushNotificationConfig
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    InvalidRequestError,
    JSONParseError,
    MethodNotFoundError,
)
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router

from a2a_serverless.http import V0_3_PREFIX
from a2a_serverless.http.checks import (
    check_query,
    check_values,
    drop_null_data,
    parsed,
    read_json,
)
from a2a_serverless.http.context import (
    ENVELOPE,
    NAMED_TENANT,
    CallContextBuilder,
    check_version,
    names_1_0,
    names_version,
)
from a2a_serverless.http.errors import jsonrpc_error, quoted, rest_error
from a2a_serverless.http.legacy import v0_3, v0_3_rest
from a2a_serverless.http.streaming import Endpoint
from a2a_serverless.tasks.identity import is_unicode

JSON_TYPES = frozenset({"application/json", "application/a2a+json"})
_MEMBERS = frozenset({"jsonrpc", "id", "method", "params"})

Check = Callable[[Any], object]
"""Raises InvalidParamsError for invalid content."""


def _is(model: type[Message]) -> Check:
    return lambda value: parsed(value, model)


_JSONRPC_PARAMS: Mapping[str, Check] = {
    **{method: _is(model) for method, model in JsonRpcDispatcher.METHOD_TO_MODEL.items()},
    **v0_3.JSONRPC_PARAMS,
}
_REST_BODIES: Mapping[str, Check] = {
    "/message:send": _is(SendMessageRequest),
    "/message:stream": _is(SendMessageRequest),
    "/tasks/{id}/pushNotificationConfigs": _is(TaskPushNotificationConfig),
    **v0_3.REST_BODIES,
}
_HTTP_UNSUPPORTED_MEDIA_TYPE = 415

# At debug level the dispatcher writes every body to the log, and there are secrets in them.
logging.getLogger("a2a.server.routes.jsonrpc_dispatcher").setLevel(logging.INFO)


def jsonrpc_guard(
    endpoint: Endpoint,
    context: CallContextBuilder,
    *,
    legacy_methods: frozenset[str] = frozenset(),
) -> Endpoint:
    """Refuse requests that the dispatcher would refuse uncounted and in its parser's words.

    It checks in this order: content type (-32005), JSON (-32700), envelope (-32600), method
    (-32601), the method's version (-32009) and what that version demands of an envelope, extensions
    (-32008), parameters (-32602). `legacy_methods`: the methods from before 0.3, for requests that
    name no version.
    """
    checks = {**_JSONRPC_PARAMS, **v0_3.JSONRPC_PARAMS_SHARED}

    async def guarded(request: Request) -> Response:
        request_id, is_1_0 = None, names_1_0(request)
        try:
            _check_content_type(request)
            envelope = read_json(await request.body())
            if not isinstance(envelope, dict):
                raise InvalidRequestError(
                    message="The request is not a JSON object; batches are not served."
                )
            request_id = request_id_of(envelope)
            _check_envelope(envelope)
            setattr(request.state, ENVELOPE, envelope)
            is_1_0 |= envelope["method"] in JsonRpcDispatcher.METHOD_TO_MODEL
            is_legacy = bool(legacy_methods) and not names_version(request)
            if not (is_legacy and envelope["method"] in legacy_methods):
                _check_method(request, envelope)
            context.check_extensions(request)
            if drop_null_data(envelope.get("params")):
                request = _with_body(request, envelope)
            check = (_JSONRPC_PARAMS if is_legacy else checks).get(envelope["method"])
            if check is not None:
                check(envelope.get("params", {}))
            elif not isinstance(envelope.get("params", {}), dict | list):
                raise InvalidRequestError(message="The parameters must be an object or a list.")
        except A2AError as error:
            return jsonrpc_error(error, request_id, is_1_0=is_1_0)
        return await endpoint(request)

    return guarded


def rest_guard(endpoint: Endpoint, route: Route, context: CallContextBuilder) -> Endpoint:
    """Check content type, version, extensions, body and query before the dispatcher does."""
    check = _REST_BODIES.get(route.path)
    has_body = "POST" in (route.methods or ())
    has_filters = route.path == "/tasks"
    is_0_3 = route.path.startswith(V0_3_PREFIX)
    form = v0_3_rest.FORMS.get(route.path)
    version = PROTOCOL_VERSION_0_3 if is_0_3 else PROTOCOL_VERSION_1_0

    async def checked(request: Request) -> Response:
        try:
            if has_body:
                _check_content_type(request)
            check_version(request, version)
            context.check_extensions(request)
            if has_filters:
                check_values(dict(request.query_params), ListTasksRequest)
            check_query(request.query_params)
            if is_0_3:
                v0_3_rest.check_query(request.query_params)
            body = await _rest_body(request, is_needed=check is not None) if has_body else {}
            drop_null_data(body)
            if form is not None:
                body = form(body, request.path_params.get("id", ""))
            if check is not None:
                check(body)
                # The dispatcher's parser is another one than this: it reads what was checked.
                request = _with_body(request, body)
            if not is_0_3:  # which has no tenants
                _name_tenant(request, body)
        except ContentTypeNotSupportedError as error:
            # HTTP's own header is wrong: 415. The same error for a part of a message is a 400.
            return rest_error(error, status=_HTTP_UNSUPPORTED_MEDIA_TYPE)
        except JSONParseError as error:
            return rest_error(InvalidRequestError(message=error.message))
        except A2AError as error:
            return rest_error(error)
        return await endpoint(request)

    return checked


def rewired(routes: Sequence[BaseRoute], wrap: Callable[[Route], Endpoint]) -> list[BaseRoute]:
    """Return the routes, including those of mounts, with their endpoints replaced by `wrap`."""
    again: list[BaseRoute] = []
    for route in routes:
        if isinstance(route, Mount):
            inner = Router(rewired(route.routes, wrap), redirect_slashes=False)
            again.append(Mount(route.path, inner))
        elif isinstance(route, Route):
            methods = sorted(route.methods or ())
            again.append(Route(route.path, wrap(route), methods=methods))
        else:
            again.append(route)
    return again


def _check_content_type(request: Request) -> None:
    """Refuse a body whose Content-Type is not JSON; one without a type is tried."""
    stated = request.headers.get("content-type", "")
    essence = stated.partition(";")[0].strip().lower()
    if essence and essence not in JSON_TYPES:
        raise ContentTypeNotSupportedError(
            message=f"The Content-Type {quoted(essence)} is not application/json."
        )


def _check_envelope(envelope: Mapping[str, object]) -> None:
    """Refuse an envelope that JSON-RPC 2.0 does not allow (section 4)."""
    if request_id_of(envelope) != envelope.get("id"):
        raise InvalidRequestError(message="The id must be a string, a whole number or null.")
    if envelope.get("jsonrpc") != "2.0":
        raise InvalidRequestError(message='The member "jsonrpc" is not "2.0".')
    if not envelope.get("method") or not isinstance(envelope["method"], str):
        raise InvalidRequestError(message="The request names no method.")


def _check_method(request: Request, envelope: Mapping[str, object]) -> None:
    """Refuse an unknown method, or one of another version than the request.

    1.0 and 0.3 share no name, so a method's name tells its version.
    """
    method = envelope["method"]
    if method in JsonRpcDispatcher.METHOD_TO_MODEL:
        check_version(request, PROTOCOL_VERSION_1_0)
    elif method in JSONRPC03Adapter.METHOD_TO_MODEL:
        check_version(request, PROTOCOL_VERSION_0_3)
        if envelope.get("id") is None:
            raise InvalidRequestError(message="A request of A2A 0.3 must have an id.")
    else:
        raise MethodNotFoundError(
            message=f"There is no method {quoted(str(method), 50)}: it is of no version of A2A"
            " that is served here."
        )
    if not envelope.keys() <= _MEMBERS:
        raise InvalidRequestError(
            message="A request may have no other fields than jsonrpc, id, method and params."
        )


async def _rest_body(request: Request, *, is_needed: bool) -> dict[str, Any]:
    body = await request.body()
    if not body and not is_needed:
        return {}
    value = read_json(body)
    if not isinstance(value, dict):
        raise InvalidRequestError(message="The body is not a JSON object.")
    return value


def _with_body(request: Request, body: Mapping[str, Any]) -> Request:
    """Return the request with another body."""
    content = json.dumps(body).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    return Request(request.scope, receive)


def _name_tenant(request: Request, body: Mapping[str, Any]) -> None:
    """Remember the tenant that a request names, in path, query or body (section 11.3).

    The protocol's HTTP binding takes every field that is not in the path from the query, or from
    the body where there is one; the SDK's dispatcher reads only the path.

    Raises:
        InvalidParamsError: the request names several tenants, or one that is not a string.
    """
    path, query = request.path_params.get("tenant"), request.query_params.getlist("tenant")
    given = [name for name in (path, *query, body.get("tenant")) if name]
    if any(name != given[0] or not isinstance(name, str) for name in given):
        raise InvalidParamsError(
            message="A request must not name two tenants, and a tenant must be a string."
        )
    setattr(request.state, NAMED_TENANT, given[0] if given else "")


def request_id_of(envelope: Mapping[str, object]) -> str | int | None:
    """Return the id of a JSON-RPC request; None when it has no id that JSON-RPC allows."""
    match envelope.get("id"):
        case bool():
            return None
        case int() as number:
            return number
        case str() as text if is_unicode(text):  # an answer could not repeat another one
            return text
        case _:
            return None

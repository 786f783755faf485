"""The two bindings: HTTP+JSON, with a path for each operation, and JSON-RPC, with one endpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from a2a.types import AgentCard, GetExtendedAgentCardRequest, ListTasksRequest
from a2a.utils import json_utils
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE, PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    InvalidRequestError,
    JSONParseError,
    MethodNotFoundError,
)
from a2a.utils.proto_utils import parse_params
from google.protobuf.message import Message as AnyMessage
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from a2a_serverless.http import SUBMIT_PATH, UPLOADS_PATH, V0_3_PREFIX
from a2a_serverless.http.checks import (
    check_values,
    invalid_field,
    parsed,
    refusing,
)
from a2a_serverless.http.context import (
    CallContext,
    check_version,
    names_1_0,
    protocol_errors,
    requested_extensions,
)
from a2a_serverless.http.errors import (
    invalid_params,
    jsonrpc_error,
    quoted,
    rest_error,
    rest_payload,
)
from a2a_serverless.http.operations import (
    OPERATIONS,
    A2AOperation,
    DurableRequestHandler,
    shown_event,
    task_of,
)
from a2a_serverless.http.streams import StreamEvent, event_source
from a2a_serverless.http.uploads import Uploads
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import Dialect, is_unicode
from a2a_serverless.values import dataclass

if TYPE_CHECKING:
    from a2a_serverless.http.legacy.dialects import LegacyDialects

Endpoint = Callable[[Request], Awaitable[Response]]


_METHODS = {operation.name: operation for operation in OPERATIONS}
_METHODS_0_3 = {operation.name_0_3: operation for operation in OPERATIONS if operation.name_0_3}

_Id = str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """The request of a call, and how its binding and version show what comes of it."""

    asked: AnyMessage
    show: Callable[[Any], Any]
    show_event: Callable[[StreamEvent], Any]
    show_error: Callable[[A2AError], dict[str, str]]
    media_type: str | None = None
    tells_at_once: bool = False
    """Whether a stream shows an error that comes before its first event, too."""


def protocol_routes(
    handler: DurableRequestHandler, card: AgentCard, settings: Settings, uploads: Uploads
) -> list[BaseRoute]:
    """Return the routes of both bindings, in the order in which they are to be tried."""
    dialects = None
    if settings.older_dialects:
        from a2a_serverless.http.legacy.dialects import LegacyDialects  # noqa: PLC0415

        dialects = LegacyDialects(handler, settings)
    return _Bindings(handler, card, settings, uploads, dialects).routes()


@dataclass(frozen=True, slots=True)
class _Bindings:
    """The operations over HTTP+JSON and JSON-RPC, in 1.0 and 0.3."""

    handler: DurableRequestHandler
    card: AgentCard
    settings: Settings
    uploads: Uploads
    dialects: LegacyDialects | None
    """The methods from before 0.3, for requests that name no version; None: they are not served."""

    def routes(self) -> list[BaseRoute]:
        """Return all routes, in the order in which they are to be tried."""
        of_1_0 = [
            route_of(verb, operation.path, self._endpoint(operation))
            for operation in OPERATIONS
            for verb in operation.verbs
        ]
        of_0_3 = [
            route_of(verb, path_in_0_3(operation), self._endpoint(operation, is_0_3=True))
            for operation in OPERATIONS
            if operation.name_0_3
            for verb in operation.verbs
        ]
        of_1_0.append(route_of("POST", UPLOADS_PATH, _refusing(self._upload)))
        # 0.3 first, and tenants last: their routes take every path of two segments or more.
        tenants = Mount("/{tenant}", Router(of_1_0, redirect_slashes=False))
        paths = ("/", SUBMIT_PATH) if self.dialects else ("/",)
        jsonrpc = [route_of("POST", path, self._jsonrpc) for path in paths]
        return [*jsonrpc, *of_0_3, *of_1_0, tenants]

    async def _answered(
        self, operation: A2AOperation, form: _Form, context: CallContext
    ) -> Response:
        """Return the answer of an operation, in one piece or as a stream."""
        answer = operation.handle(self.handler, form.asked, context)
        if operation.streams:
            return await event_source(
                answer,
                form.show_event,
                form.show_error,
                keep_alive_s=self.settings.keep_alive_s,
                tells_at_once=form.tells_at_once,
            )
        result = await answer
        content = form.show(result) or {}
        return self.handler.in_one_piece(
            content, task_of(result), operation.if_too_large, form.media_type
        )

    # -- HTTP+JSON -----------------------------------------------------------------------------

    def _endpoint(self, operation: A2AOperation, *, is_0_3: bool = False) -> Endpoint:
        return _refusing(partial(self._rest_call, operation=operation, is_0_3=is_0_3))

    async def _upload(self, request: Request) -> Response:
        """Answer a request of the extension, which is none of a version of A2A."""
        body = await _body(request, is_needed=True)
        context = CallContext(request, _tenant(request, body))
        return JSONResponse(await self.uploads.answer(body, context))

    async def _rest_call(
        self, request: Request, operation: A2AOperation, *, is_0_3: bool
    ) -> Response:
        """Check version, extensions, query and body, and return the operation's answer."""
        check_version(request, PROTOCOL_VERSION_0_3 if is_0_3 else PROTOCOL_VERSION_1_0)
        _check_extensions(request, self.card)
        if operation.request is ListTasksRequest:
            check_values(dict(request.query_params), ListTasksRequest)
        if request.query_params:
            _check_query(request.query_params)
        body = await _body(request, is_needed=operation.has_body)
        if not is_0_3:
            form = _Form(
                asked=_asked(request, operation, body),
                show=operation.show,
                show_event=shown_event,
                show_error=_rest_event,
                media_type=A2A_JSON_MEDIA_TYPE,
            )
            context = CallContext(request, _tenant(request, body))
            return await self._answered(operation, form, context)
        # It loads the models of 0.3, a tenth of a cold start.
        from a2a_serverless.http.legacy import v0_3  # noqa: PLC0415

        asked, show, show_event = v0_3.over_rest(operation.name, request, body)
        form = _Form(asked=asked, show=show, show_event=show_event, show_error=_rest_event)
        return await self._answered(operation, form, CallContext(request, dialect="0.3"))

    # -- JSON-RPC ------------------------------------------------------------------------------

    async def _jsonrpc(self, request: Request) -> Response:
        """Answer a request over JSON-RPC.

        It is checked in this order: content type (-32005), JSON (-32700), envelope (-32600), method
        (-32601), the method's version (-32009), extensions (-32008), query and parameters (-32602).

        A notification, which has no id, is carried out as any request, and gets no answer, not even
        an error (JSON-RPC 2.0, section 4.1).
        """
        request_id, is_1_0, is_notification = None, names_1_0(request), False
        try:
            with protocol_errors("jsonrpc_request"):
                _check_content_type(request)
                envelope = _read_json(await request.body())
                if not isinstance(envelope, dict):
                    raise InvalidRequestError(
                        message="The request is not a JSON object; batches are not served."
                    )
                request_id = _id_of(envelope)
                _check_envelope(envelope)
                is_notification = "id" not in envelope
                is_1_0 |= envelope["method"] in _METHODS
                dialects = self.dialects
                if dialects is None or not dialects.serve(request, envelope["method"]):
                    dialects = None
                    _check_method(request, envelope)
                _check_extensions(request, self.card)
                _check_once(request.query_params)
                answer = dialects.answer if dialects is not None else self._jsonrpc_call
                response = await answer(request, envelope, request_id)
        except A2AError as error:
            response = JSONResponse(jsonrpc_error(error, request_id, is_1_0=is_1_0))
        return await _unanswered(response) if is_notification else response

    async def _jsonrpc_call(
        self, request: Request, envelope: Mapping[str, Any], id_: _Id
    ) -> Response:
        """Return the answer of the method in 1.0 or 0.3 that a request names."""
        method, params = envelope["method"], envelope.get("params", {})
        is_1_0 = method in _METHODS
        if not is_1_0:
            # It loads the models of 0.3, a tenth of a cold start.
            from a2a_serverless.http.legacy import v0_3  # noqa: PLC0415

            operation = _METHODS_0_3[method]
            asked, show, show_event = v0_3.over_jsonrpc(operation.name, params)
        else:
            operation = _METHODS[method]
            asked = parsed(params, operation.request)
            show, show_event = operation.show, shown_event

        def show_error(error: A2AError) -> dict[str, str]:
            data = json_utils.dumps(jsonrpc_error(error, id_, is_1_0=is_1_0))
            return {"event": "error", "data": data} if is_1_0 else {"data": data}

        form = _Form(
            asked=asked,
            show=lambda result: _enveloped(id_, show(result)),
            show_event=lambda item: _enveloped(id_, show_event(item)),
            show_error=show_error,
            tells_at_once=not is_1_0,
        )
        dialect: Dialect = "1.0" if is_1_0 else "0.3"
        context = CallContext(request, getattr(asked, "tenant", ""), dialect=dialect)
        return await self._answered(operation, form, context)


def _refusing(answer: Endpoint) -> Endpoint:
    """Return an endpoint whose errors have the form of HTTP+JSON."""

    async def endpoint(request: Request) -> Response:
        try:
            if request.method == "POST":
                _check_content_type(request)
        except ContentTypeNotSupportedError as error:
            # HTTP's own header is wrong: 415. The same error for a part of a message is a 400.
            return rest_error(error, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        try:
            with protocol_errors("rest_request"):
                if request.query_params:
                    _check_once(request.query_params)
                return await answer(request)
        except A2AError as error:
            return rest_error(error)

    return endpoint


def _rest_event(error: A2AError) -> dict[str, str]:
    """Return the server-sent event for an error over HTTP+JSON."""
    return {"event": "error", "data": json_utils.dumps(rest_payload(error))}


def route_of(verb: str, path: str, endpoint: Endpoint) -> Route:
    """Return a route for one verb: Starlette would add HEAD to GET."""
    route = Route(path, endpoint, methods=[verb])
    route.methods = {verb}
    return route


def path_in_0_3(operation: A2AOperation) -> str:
    """Return the operation's path in 0.3."""
    path = "/card" if operation.request is GetExtendedAgentCardRequest else operation.path
    return V0_3_PREFIX.rstrip("/") + path


def _check_extensions(request: Request, card: AgentCard) -> None:
    """Refuse a caller that does not declare an extension that the card requires (section 3.3.4).

    Raises:
        ExtensionSupportRequiredError: names the missing extensions.
    """
    required = {e.uri for e in card.capabilities.extensions if e.required}
    missing = required - requested_extensions(request)
    if missing:
        raise ExtensionSupportRequiredError(
            message=f"The agent requires the extension {', '.join(sorted(missing))}."
        )


async def _body(request: Request, *, is_needed: bool) -> dict[str, Any]:
    """Return the object in a request's body; an empty one for a request that needs no body."""
    body = await request.body() if request.method == "POST" else b""
    if not body and not is_needed:
        return {}
    try:
        value = _read_json(body)
    except JSONParseError as error:
        raise InvalidRequestError(message=error.message) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(message="The body is not a JSON object.")
    return value


def _asked(request: Request, operation: A2AOperation, body: Mapping[str, Any]) -> AnyMessage:
    """Return what a request of 1.0 asks for, in its path, and in its body or query."""
    if operation.has_body:
        asked = parsed(body, operation.request)
    else:
        asked = operation.request()
        parse_params(request.query_params, asked)
    of_config = "task_id" in operation.request.DESCRIPTOR.fields_by_name
    for name, value in request.path_params.items():
        if name != "tenant":
            field = "task_id" if of_config and name == "id" else "id"
            setattr(asked, field, value)
    return asked


def _tenant(request: Request, body: Mapping[str, Any]) -> str:
    """Return the tenant that a request names, in path, query or body (section 11.3).

    Raises:
        InvalidParamsError: the request names several tenants, or one that is not a string.
    """
    path, query = request.path_params.get("tenant"), request.query_params.get("tenant")
    tenant, *others = [name for name in (path, query, body.get("tenant")) if name] or [""]
    if not isinstance(tenant, str) or others.count(tenant) != len(others):
        problem = "A request must not name two tenants, and a tenant must be a string."
        raise invalid_params(problem, ("tenant", problem))
    return tenant


async def _unanswered(response: Response) -> Response:
    """Return the answer to a notification, which is empty; leave the stream of `response`, if any.

    The stream is begun before it is left: only then does it close what it reads from.
    """
    events = getattr(response, "body_iterator", None)
    if events is not None:
        async with aclosing(events):
            await anext(events)
    return Response(status_code=HTTPStatus.NO_CONTENT)


def _enveloped(request_id: _Id, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def _check_envelope(envelope: Mapping[str, object]) -> None:
    """Refuse an envelope that JSON-RPC 2.0 does not allow (section 4)."""
    if _id_of(envelope) != envelope.get("id"):
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
    if method in _METHODS:
        check_version(request, PROTOCOL_VERSION_1_0)
    elif method in _METHODS_0_3:
        check_version(request, PROTOCOL_VERSION_0_3)
    else:
        raise MethodNotFoundError(
            message=f"There is no method {quoted(str(method), 50)}: it is of no version of A2A"
            " that is served here."
        )


def _id_of(envelope: Mapping[str, object]) -> _Id:
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


# -- what is read ------------------------------------------------------------------------------

_MAX_VALUES = 10_000
"""The most values of one body.

Request and answer take about 8 microseconds for each value, during which nothing else runs.
"""

_JSON_TYPES = frozenset({"application/json", "application/a2a+json"})
_BESIDE_DATA = ("text", "raw", "url")
"""The other contents that a part may have."""


def _check_content_type(request: Request) -> None:
    """Refuse a body whose Content-Type is not JSON; one without a type is tried."""
    stated = request.headers.get("content-type", "")
    essence = stated.partition(";")[0].strip().lower()
    if essence and essence not in _JSON_TYPES:
        raise ContentTypeNotSupportedError(
            message=f"The Content-Type {quoted(essence)} is not application/json."
        )


def _read_json(body: bytes) -> Any:
    """Parse the JSON text of a request.

    `data: null` is left out of the parts of a message that have another content, in the value or in
    its `params`: clients that write null for whatever they leave out mean nothing by it.

    Raises:
        JSONParseError: not JSON or UTF-8, nested too deeply, or a number that is NaN or infinite,
            also as a double.
        InvalidParamsError: more than `_MAX_VALUES` values.
    """
    try:
        value = json.loads(
            body, parse_constant=_refuse, parse_float=_finite, parse_int=_representable
        )
    except (ValueError, RecursionError) as error:
        raise JSONParseError(message="The body is not valid JSON.") from error
    except OverflowError as error:
        raise JSONParseError(message=_TOO_LARGE) from error
    count, waiting = 0, [value]
    while waiting:
        count += 1
        if count > _MAX_VALUES:
            raise InvalidParamsError(
                message=f"The body holds more than {_MAX_VALUES} values: send them in a file."
            )
        inner = waiting.pop()
        if isinstance(inner, dict):
            waiting.extend(inner.values())
        elif isinstance(inner, list):
            waiting.extend(inner)
    if isinstance(value, dict):
        _drop_null_data(value)
        _drop_null_data(value.get("params"))
    return value


def _drop_null_data(params: Any) -> None:
    # protobuf's parser would take the null for the part's content, and drop the text before it.
    message = params.get("message") if isinstance(params, dict) else None
    parts = message.get("parts") if isinstance(message, dict) else None
    for part in parts if isinstance(parts, list) else ():
        if (
            isinstance(part, dict)
            and part.get("data", ...) is None
            and any(part.get(name) is not None for name in _BESIDE_DATA)
        ):
            del part["data"]


def _check_once(query: QueryParams) -> None:
    """Refuse a query parameter that comes twice: none is a list, so that one value would be lost.

    Raises:
        InvalidParamsError: names the first such parameter.
    """
    for name in query:
        if len(query.getlist(name)) > 1:
            raise invalid_field(name, f"The query parameter {quoted(name)} comes more than once.")


def _check_query(query: Mapping[str, str]) -> None:
    """Refuse query parameters of the wrong form, without the parser's words.

    Raises:
        InvalidParamsError: names a malformed number or time.
    """
    for name, value in query.items():
        with refusing(f"The query parameter {quoted(name)} is malformed.", name):
            parse_params(QueryParams({name: value}), ListTasksRequest())


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise OverflowError
    return number


def _representable(text: str) -> int:
    _finite(text)
    return int(text)


_TOO_LARGE: Final = "A number is larger than a double can be, which is 1.8e308: send it as a text."

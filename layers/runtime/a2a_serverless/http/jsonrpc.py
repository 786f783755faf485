"""The JSON-RPC binding: one endpoint, whose requests name their operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from a2a.types import AgentCard
from a2a.utils import json_utils
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0
from a2a.utils.errors import A2AError, InvalidRequestError, MethodNotFoundError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from a2a_serverless.http.answers import in_one_piece
from a2a_serverless.http.checks import check_content_type, drop_null_data, parsed, read_json
from a2a_serverless.http.context import (
    call_context,
    check_extensions,
    check_version,
    names_1_0,
)
from a2a_serverless.http.errors import jsonrpc_error, protocol_errors, quoted
from a2a_serverless.http.handler import DurableRequestHandler
from a2a_serverless.http.operations import OPERATIONS, shown_event, task_of
from a2a_serverless.http.streams import event_source
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import is_unicode

if TYPE_CHECKING:
    from a2a_serverless.http.legacy.dialects import LegacyDialects

_MEMBERS = frozenset({"jsonrpc", "id", "method", "params"})
_METHODS = {operation.name: operation for operation in OPERATIONS}
_METHODS_0_3 = {operation.name_0_3: operation for operation in OPERATIONS if operation.name_0_3}

_Id = str | int | None


class JsonRpc:
    """The endpoint of the operations in 1.0 and 0.3.

    Args:
        dialects: the methods from before 0.3, for requests that name no version; None if they are
            not served.
    """

    def __init__(
        self,
        handler: DurableRequestHandler,
        card: AgentCard,
        settings: Settings,
        dialects: LegacyDialects | None = None,
    ) -> None:
        self._handler = handler
        self._card = card
        self._settings = settings
        self._dialects = dialects

    async def answer(self, request: Request) -> Response:
        """Answer a request.

        It is checked in this order: content type (-32005), JSON (-32700), envelope (-32600), method
        (-32601), the method's version (-32009) and what that version demands of an envelope,
        extensions (-32008), parameters (-32602).
        """
        request_id, is_1_0 = None, names_1_0(request)
        try:
            with protocol_errors("jsonrpc_request"):
                check_content_type(request)
                envelope = read_json(await request.body())
                if not isinstance(envelope, dict):
                    raise InvalidRequestError(
                        message="The request is not a JSON object; batches are not served."
                    )
                request_id = _id_of(envelope)
                _check_envelope(envelope)
                is_1_0 |= envelope["method"] in _METHODS
                dialects = self._dialects
                if dialects is None or not dialects.serve(request, envelope["method"]):
                    dialects = None
                    _check_method(request, envelope)
                check_extensions(request, self._card)
                drop_null_data(envelope.get("params"))
                if dialects is not None:
                    return await dialects.answer(request, envelope, request_id)
                return await self._called(request, envelope, request_id)
        except A2AError as error:
            return JSONResponse(jsonrpc_error(error, request_id, is_1_0=is_1_0))

    async def _called(self, request: Request, envelope: Mapping[str, Any], id_: _Id) -> Response:
        """Return the answer of the method in 1.0 or 0.3 that a request names."""
        method, params = envelope["method"], envelope.get("params", {})
        is_1_0 = method in _METHODS
        if is_1_0:
            operation = _METHODS[method]
            asked = parsed(params, operation.request)
            show, show_event = operation.show, shown_event
        else:
            # It loads the models of 0.3, a tenth of a cold start.
            from a2a_serverless.http.legacy import v0_3  # noqa: PLC0415

            operation = _METHODS_0_3[method]
            asked = v0_3.read_params(operation.name, params)
            show, show_event = v0_3.shown, v0_3.shown_event
        context = call_context(request, getattr(asked, "tenant", ""))
        answer = operation.handle(self._handler, asked, context)
        if not operation.streams:
            result = await answer
            task_id = task_of(result) if self._handler.answers_in_one_piece else ""
            content = _enveloped(id_, show(result))
            return in_one_piece(content, task_id=task_id, advice=operation.if_too_large)

        def show_error(error: A2AError) -> dict[str, str]:
            data = json_utils.dumps(jsonrpc_error(error, id_, is_1_0=is_1_0))
            return {"event": "error", "data": data} if is_1_0 else {"data": data}

        return await event_source(
            answer,
            lambda item: _enveloped(id_, show_event(item)),
            show_error,
            keep_alive_s=self._settings.keep_alive_s,
            tells_at_once=not is_1_0,
        )


def _enveloped(request_id: _Id, result: Any) -> dict[str, Any]:
    """Return a result in JSON-RPC's envelope."""
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

"""Errors as clients see them: the protocol's own, and refusals before any operation.

A refusal's reason is one of a few fixed words. Nothing that its caller has sent gets into the log
or into the answer, so that a caller can neither forge them nor make them show a credential.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from a2a.utils import errors as protocol
from a2a.utils.error_handlers import (
    A2A_DOMAIN,
    ERROR_INFO_TYPE,
    build_error_details,
    build_rest_error_payload,
)
from a2a.utils.errors import JSON_RPC_ERROR_CODE_MAP, A2AError, InvalidParamsError
from starlette.responses import JSONResponse

from a2a_serverless import errors
from a2a_serverless.http import JSONRPC_PATHS
from a2a_serverless.observability import metrics
from a2a_serverless.observability.logs import correlation_id
from a2a_serverless.tasks.identity import is_task_id

logger = logging.getLogger(__name__)

_PROTOCOL_ERRORS: Mapping[type[errors.A2AServerlessError], type[A2AError]] = {
    errors.InvalidArgumentError: InvalidParamsError,
    errors.AnswerTooLargeError: InvalidParamsError,
    errors.ContextMismatchError: InvalidParamsError,
    errors.IdempotencyConflictError: InvalidParamsError,
    errors.TaskNotFoundError: protocol.TaskNotFoundError,
    errors.TaskTerminalStateError: protocol.UnsupportedOperationError,
    errors.TaskNotAcceptingMessagesError: protocol.UnsupportedOperationError,
    errors.UnsupportedOperationError: protocol.UnsupportedOperationError,
    errors.NewerReleaseError: protocol.UnsupportedOperationError,
    errors.TaskNotCancelableError: protocol.TaskNotCancelableError,
    errors.InvalidAgentEventError: protocol.InvalidAgentResponseError,
}
"""The protocol's error for each of ours and its subclasses. All others are internal errors."""

_SERVER_ERROR = -32000
"""A code of JSON-RPC's range for servers that A2A does not use."""
_INVALID_REQUEST = -32600

_FORMS: Mapping[int, tuple[str, str, int]] = {
    400: ("INVALID_ARGUMENT", "INVALID_REQUEST", _INVALID_REQUEST),
    401: ("UNAUTHENTICATED", "UNAUTHENTICATED", _SERVER_ERROR),
    403: ("PERMISSION_DENIED", "PERMISSION_DENIED", _SERVER_ERROR),
    413: ("INVALID_ARGUMENT", "INVALID_REQUEST", _INVALID_REQUEST),
    414: ("INVALID_ARGUMENT", "INVALID_REQUEST", _INVALID_REQUEST),
    429: ("RESOURCE_EXHAUSTED", "RATE_LIMIT_EXCEEDED", _SERVER_ERROR),
    431: ("INVALID_ARGUMENT", "INVALID_REQUEST", _INVALID_REQUEST),
    503: ("UNAVAILABLE", "UNAVAILABLE", _SERVER_ERROR),
}
"""By HTTP status: the name of google.rpc.Code, the reason for clients, JSON-RPC's code.

Clients learn that their credentials were refused, but not why.
"""

_COUNTED = "a2a_serverless_counted"

_BUSY = "The service is busy; try again."
_SENTENCES: Mapping[type[Exception], str] = {
    errors.UnavailableError: _BUSY,
    errors.ConcurrencyError: _BUSY,
    errors.UnreadableTaskError: "The stored task is damaged: the operator can restore it.",
}
"""The sentences for clients by the internal error; for others it is that the request failed."""


def count_error(error: A2AError) -> None:
    """Count an error as a refusal or as our own fault; only once, even if it passes here again."""
    if getattr(error, _COUNTED, False):
        return
    setattr(error, _COUNTED, True)
    if isinstance(error, protocol.InternalError):
        metrics.count("RequestErrors")
    else:
        log_refusal(type(error).__name__.removesuffix("Error"))


def log_refusal(reason: str) -> None:
    """Log and count a request that is refused; `reason` is one of a few fixed words."""
    logger.info("refused", extra={"action": "refused", "reason": reason})
    metrics.count("RequestsRefused", reason=reason)


def internal_error(error: Exception, action: str, task_id: str = "") -> protocol.InternalError:
    """Log `error`, and return an error for the client that only has the correlation id."""
    reference = correlation_id()
    logger.error(
        "%s failed: %s",
        action,
        type(error).__name__,
        exc_info=error,
        extra={
            "action": action,
            "task_id": task_id if is_task_id(task_id) else "",  # any other is a client's text
            "correlation_id": reference,
        },
    )
    sentence = next(
        (text for kind, text in _SENTENCES.items() if isinstance(error, kind)),
        "The request failed.",
    )
    return protocol.InternalError(message=f"{sentence} Correlation id: {reference}.")


def invalid_params(message: str, *problems: tuple[str, str]) -> InvalidParamsError:
    """Return the error for fields of a request; `problems` are pairs of field and sentence."""
    errors = [{"field": field, "message": problem} for field, problem in problems]
    return InvalidParamsError(message=message, data={"errors": errors})


def quoted(text: str, length: int = 100) -> str:
    """Return a client's own words for the text of an answer: cut, quoted, in printable ASCII."""
    return ascii(text[:length])


def translated(error: errors.A2AServerlessError) -> A2AError | None:
    """Return the protocol's error for one of ours; None for an internal error."""
    kinds = [_PROTOCOL_ERRORS[kind] for kind in type(error).__mro__ if kind in _PROTOCOL_ERRORS]
    field = getattr(error, "field", "")
    if field and kinds[0] is InvalidParamsError:
        return invalid_params(str(error), (field, str(error)))
    return kinds[0](message=str(error)) if kinds else None


def jsonrpc_error(
    error: A2AError, request_id: str | int | None = None, *, is_1_0: bool = True
) -> dict[str, Any]:
    """Return an error in JSON-RPC's form (A2A 1.0.1, section 9.5).

    `is_1_0`: the error's `data` are the details of 1.0. Before 1.0 they were the error's own, if
    any.
    """
    count_error(error)
    code = JSON_RPC_ERROR_CODE_MAP.get(type(error), JSON_RPC_ERROR_CODE_MAP[protocol.InternalError])
    stated: dict[str, Any] = {"code": code, "message": error.message}
    if not is_1_0:
        stated |= {"data": error.data} if isinstance(error.data, dict) else {}
    elif not isinstance(error, protocol.JSONParseError):  # for which 1.0 has no details
        stated["data"] = _details(error)
    return {"jsonrpc": "2.0", "id": request_id, "error": stated}


def rest_error(error: A2AError, *, status: int | None = None) -> JSONResponse:
    """Return an error in HTTP+JSON's form (A2A 1.0.1, section 11.6).

    `status` overrides the HTTP status of the protocol's table, if HTTP has a better one.
    """
    count_error(error)
    payload = rest_payload(error)
    if status is not None:
        payload["error"]["code"] = status
    return JSONResponse(payload, status_code=payload["error"]["code"])


def rest_payload(error: A2AError) -> dict[str, Any]:
    """Return the JSON of an error in HTTP+JSON's form."""
    payload = build_rest_error_payload(error)
    payload["error"]["details"] = _details(error)
    return payload


def _details(error: A2AError) -> list[dict[str, Any]]:
    """Return the details of an error, as ProtoJSON reads them (section 9.5).

    The SDK puts all of an error's data into `ErrorInfo.metadata`, which maps texts to texts.
    """
    details = build_error_details(error)
    told = details[0]["metadata"]
    details[0]["metadata"] = {name: text for name, text in told.items() if isinstance(text, str)}
    return details


def http_error(status: int, name: str, message: str) -> JSONResponse:
    """Return an error of HTTP itself, in the same form; `name` is that of google.rpc.Code."""
    return JSONResponse(
        {"error": {"code": status, "status": name, "message": message}}, status_code=status
    )


class RequestRefusedError(Exception):
    """The request is refused before any operation sees it.

    Args:
        reason: one of a few fixed words, for the log and the metric: `Expired`, `UnknownKey`, …
        status: the answer's: 400, 401, 403, 413, 414, 429, 431 or 503.
        message: a sentence for the client.
        headers: the answer's, such as the challenge.
    """

    def __init__(
        self, reason: str, status: int, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.message = message
        self.headers = headers or {}


def response_of(error: RequestRefusedError, path: str) -> JSONResponse:
    """Log and count a refusal, and return its answer in the form of the path's binding.

    In JSON-RPC the request's id is null, because the body was not read (JSON-RPC 2.0, section 5);
    HTTP+JSON has the form of section 11.6. Both keep HTTP's own status, on which clients act.
    """
    log_refusal(error.reason)
    name, reason, code = _FORMS[error.status]
    details = [{"@type": ERROR_INFO_TYPE, "reason": reason, "domain": A2A_DOMAIN, "metadata": {}}]
    content: dict[str, Any]
    if path in JSONRPC_PATHS:
        stated = {"code": code, "message": error.message, "data": details}
        content = {"jsonrpc": "2.0", "id": None, "error": stated}
    else:
        stated = {"code": error.status, "status": name, "message": error.message}
        content = {"error": {**stated, "details": details}}
    return JSONResponse(content, status_code=error.status, headers=dict(error.headers))

"""Requests that are refused before any operation sees them: logged, counted, and answered.

A refusal's reason is a word of ours. Nothing that the caller has sent gets into the log or into the
answer, so that neither can be forged or made to show a credential.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a.utils.error_handlers import A2A_DOMAIN, ERROR_INFO_TYPE
from starlette.responses import JSONResponse

from a2a_serverless.http.errors import log_refusal
from a2a_serverless.http.guard import JSONRPC_PATHS

_SERVER_ERROR = -32000
"""Of JSON-RPC's range for servers, beside those codes that A2A takes."""
_INVALID_REQUEST = -32600

_FORMS: Mapping[int, tuple[str, str, int]] = {
    401: ("UNAUTHENTICATED", "UNAUTHENTICATED", _SERVER_ERROR),
    403: ("PERMISSION_DENIED", "PERMISSION_DENIED", _SERVER_ERROR),
    413: ("INVALID_ARGUMENT", "INVALID_REQUEST", _INVALID_REQUEST),
    414: ("INVALID_ARGUMENT", "INVALID_REQUEST", _INVALID_REQUEST),
    429: ("RESOURCE_EXHAUSTED", "RATE_LIMIT_EXCEEDED", _SERVER_ERROR),
    431: ("INVALID_ARGUMENT", "INVALID_REQUEST", _INVALID_REQUEST),
    503: ("UNAVAILABLE", "UNAVAILABLE", _SERVER_ERROR),
}
"""By HTTP's status: the name of google.rpc.Code, the reason that clients get, JSON-RPC's code.

Of credentials clients learn that they are not good enough, and never in what.
"""


class RefusedError(Exception):
    """A request goes no further.

    Args:
        reason: one of few words, for the log and the metric: `Expired`, `UnknownKey`, …
        status: of the answer, one of 401, 403, 413, 414, 429, 431 and 503.
        message: a sentence for the client.
        headers: of the answer, such as the challenge.
    """

    def __init__(
        self, reason: str, status: int, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.message = message
        self.headers = headers or {}


def refusal(error: RefusedError, path: str) -> JSONResponse:
    """Log and count a refusal, and give its answer in the form of the path's binding.

    JSON-RPC has the request's id as null, as the body was not read (JSON-RPC 2.0, section 5);
    HTTP+JSON has the form of section 11.6. Both keep HTTP's own status, which clients act on.
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

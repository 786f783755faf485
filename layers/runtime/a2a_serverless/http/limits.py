"""The longest body that is read."""

from __future__ import annotations

from a2a.utils.errors import InvalidRequestError
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from a2a_serverless.http.errors import jsonrpc_error, rest_error
from a2a_serverless.http.guard import JSONRPC_PATHS

_HTTP_CONTENT_TOO_LARGE = 413


class _BodyTooLargeError(Exception):
    pass


class BodyLimit:
    """Refuses bodies of more than `limit` bytes with 413, before or while they are read.

    They are read by this application's own endpoints outside of any handler of exceptions, so
    that the refusal arrives here.
    """

    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = 0

        async def receive_some() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._limit:
                raise _BodyTooLargeError
            return message

        if self._announces_more(scope):
            await self._refusal(scope)(scope, receive, send)
            return
        try:
            await self._app(scope, receive_some, send)
        except _BodyTooLargeError:
            await self._refusal(scope)(scope, receive, send)

    def _announces_more(self, scope: Scope) -> bool:
        stated = Headers(scope=scope).get("content-length", "")
        try:
            return int(stated or "0") > self._limit
        except ValueError:
            return False

    def _refusal(self, scope: Scope) -> JSONResponse:
        error = InvalidRequestError(message=f"The body is longer than {self._limit} bytes.")
        if scope["path"] in JSONRPC_PATHS:
            return jsonrpc_error(error, status=_HTTP_CONTENT_TOO_LARGE)
        return rest_error(error, status=_HTTP_CONTENT_TOO_LARGE)

"""Serving files where no bucket does: their links name the service itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.http.errors import http_error
from a2a_serverless.storage.blobs import PATH, ServedBlobs, disposition

_GONE = "The link is not one of this service, or has expired: get the task again for a new one."
_READ_ONLY = "A link to a file serves GET alone."


class ServedFiles:
    """Answers whatever is asked below `PATH`; a link's signature admits its bearer.

    It stands before everything that asks for credentials, and no route is below its path.
    """

    def __init__(self, app: ASGIApp, blobs: ServedBlobs) -> None:
        self._app = app
        self._blobs = blobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"].startswith(PATH):
            app = await self._answer(Request(scope))
        await app(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Return a file, as a download of the type that its link has fixed."""
        if request.method != "GET":
            return http_error(HTTPStatus.METHOD_NOT_ALLOWED, "UNIMPLEMENTED", _READ_ONLY)
        found = self._blobs.linked(request.url.path, request.query_params)
        if found is None:
            return http_error(HTTPStatus.FORBIDDEN, "PERMISSION_DENIED", _GONE)
        blob, link = found
        chunks = self._blobs.chunks(blob)
        first = await anext(chunks, None)
        if first is None:
            return http_error(HTTPStatus.NOT_FOUND, "NOT_FOUND", _GONE)
        headers = {
            "Content-Length": str(blob.size),
            "Content-Disposition": disposition(link.filename),
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": f"private, max-age={link.seconds}",
        }
        return StreamingResponse(
            _joined(first, chunks), media_type=link.media_type, headers=headers
        )


async def _joined(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in chunks:
        yield chunk

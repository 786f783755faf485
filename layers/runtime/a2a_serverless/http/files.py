"""Serving files where no bucket does: their links name the service itself."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from a2a_serverless.http.errors import http_error
from a2a_serverless.storage.blobs import ServedBlobs, disposition

_GONE = "The link is not one of this service, or has expired: get the task again for a new one."
_READ_ONLY = "A link to a file serves GET alone."


class ServedFiles:
    """Answers whatever is asked below `PATH`; a link's signature admits its bearer.

    It stands before everything that asks for credentials, and no route is below its path.
    """

    def __init__(self, blobs: ServedBlobs) -> None:
        self._blobs = blobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(Request(scope))
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Return a file, as a download of the type that its link has fixed."""
        if request.method != "GET":
            return http_error(HTTPStatus.METHOD_NOT_ALLOWED, "UNIMPLEMENTED", _READ_ONLY)
        found = self._blobs.linked(request.url.path, request.query_params)
        if found is None:
            return http_error(HTTPStatus.FORBIDDEN, "PERMISSION_DENIED", _GONE)
        blob, link = found
        start, end = _asked_for(request.headers.get("Range", ""), blob.size)
        if start >= blob.size:
            headers = {"Content-Range": f"bytes */{blob.size}"}
            return Response(status_code=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers=headers)
        chunks = self._blobs.chunks(blob, start)
        first = await anext(chunks, None)
        if first is None:
            return http_error(HTTPStatus.NOT_FOUND, "NOT_FOUND", _GONE)
        headers = {
            "Content-Length": str(end - start),
            "Accept-Ranges": "bytes",
            "Content-Disposition": disposition(link.filename),
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": f"private, max-age={link.seconds}",
        }
        status = HTTPStatus.OK
        if end - start < blob.size:
            status = HTTPStatus.PARTIAL_CONTENT
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{blob.size}"
        body = _joined(first, chunks, end - start)
        return StreamingResponse(body, status, headers, link.media_type)


def _asked_for(header: str, size: int) -> tuple[int, int]:
    """Return first byte and end of the range that a request asks for, as media players do.

    Several ranges, and what is none, count as the whole, as they may (RFC 9110, section 14.2).
    """
    found = _RANGE.fullmatch(header)
    if found is None:
        return 0, size
    first, last, suffix = found.groups()
    if suffix:
        return size - min(size, int(suffix)), size
    end = min(size, int(last or size) + 1)
    return (int(first), end) if not last or int(first) <= int(last) else (0, size)


async def _joined(first: bytes, chunks: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    yield first[:size]
    left = size - len(first)
    while left > 0 and (chunk := await anext(chunks, None)) is not None:
        yield chunk[:left]
        left -= len(chunk)


_RANGE: Final = re.compile(r"bytes=(?:(\d{1,15})-(\d{0,15})|-(\d{1,15}))")

"""Serving files where no bucket does: their links name the service itself."""

from __future__ import annotations

import asyncio
import hashlib
import re
import tempfile
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from a2a_serverless.http.errors import http_error
from a2a_serverless.storage.blobs import (
    CHUNK_BYTES,
    Link,
    ServedBlobs,
    disposition,
    header_type,
)
from a2a_serverless.tasks.blobs import Blob

_GONE = "The link is not one of this service, or has expired: get the task again for a new one."
_NO_UPLOAD = "The link is not one for an upload here, or has expired: ask for a new one."
_VERBS = "A link to a file serves GET alone, and one for an upload PUT."
_OTHER_TYPE = "The upload has another Content-Type than was asked for: send the headers as given."
_OTHER_SIZE = "The upload has another length than was asked for: ask for a new one for this file."
_OTHER_CONTENT = "The upload has another SHA-256 than was asked for: send it again."
_THERE = "The file is there already: send the message with its part."
_CUT = "The upload has not come to its end: send it again."


class ServedFiles:
    """Answers whatever is asked below `PATH`; a link's signature admits its bearer.

    It stands before everything that asks for credentials, and no route is below its path.
    """

    def __init__(self, blobs: ServedBlobs) -> None:
        self._blobs = blobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(Request(scope, receive))
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method not in {"GET", "PUT"}:
            return http_error(HTTPStatus.METHOD_NOT_ALLOWED, "UNIMPLEMENTED", _VERBS)
        is_put = request.method == "PUT"
        found = self._blobs.linked(request.url.path, request.query_params, request.method)
        if found is None:
            sentence = _NO_UPLOAD if is_put else _GONE
            return http_error(HTTPStatus.FORBIDDEN, "PERMISSION_DENIED", sentence)
        return await (self._put(request, *found) if is_put else self._get(request, *found))

    async def _get(self, request: Request, blob: Blob, link: Link) -> Response:
        """Return a file, or a range of it, as a download of the type that its link has fixed."""
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

    async def _put(self, request: Request, blob: Blob, link: Link) -> Response:
        """Store a file that is what its link has fixed, as S3 does."""
        if request.headers.get("content-type") != header_type(link.media_type):
            return _wrong(_OTHER_TYPE)
        if request.headers.get("content-length", str(blob.size)) != str(blob.size):
            return _wrong(_OTHER_SIZE)
        if await anext(self._blobs.chunks(blob), None) is not None:
            return http_error(HTTPStatus.PRECONDITION_FAILED, "FAILED_PRECONDITION", _THERE)
        sha, size = hashlib.sha256(), 0
        with tempfile.SpooledTemporaryFile(max_size=CHUNK_BYTES) as file:
            try:
                async for chunk in request.stream():
                    sha.update(chunk)
                    size += len(chunk)
                    if size > blob.size:
                        return _wrong(_OTHER_SIZE)
                    await asyncio.to_thread(file.write, chunk)
            except ClientDisconnect:
                return _wrong(_CUT)
            if size != blob.size:
                return _wrong(_OTHER_SIZE)
            if sha.hexdigest() != blob.digest:
                return _wrong(_OTHER_CONTENT)
            # Only now: until here no link finds anything of it.
            await self._blobs.put(blob, file, link.media_type)  # type: ignore[arg-type]
        return Response()


def _wrong(sentence: str) -> Response:
    return http_error(HTTPStatus.BAD_REQUEST, "INVALID_ARGUMENT", sentence)


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

"""Uploads of large files, for agents whose card offers them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import httpx
from a2a.client.errors import A2AClientError
from a2a.extensions.common import HTTP_EXTENSION_HEADER
from a2a.types import AgentCard, Part
from google.protobuf.json_format import ParseDict

from a2a_serverless.client.retries import ExhaustedError, Patience, Retries
from a2a_serverless.sources import UPLOADS_EXTENSION, Measured, Source, measured

_CHUNK_BYTES: Final = 1024 * 1024
_THERE: Final = httpx.codes.PRECONDITION_FAILED
"""The answer to a file that has come before: the answer to that one was lost."""
_ANEW: Final = frozenset({httpx.codes.FORBIDDEN, httpx.codes.CONFLICT})
"""Answers of a link that has expired while it was tried, or of two tries at the same time."""


async def upload(
    http: httpx.AsyncClient,
    card: AgentCard,
    source: Source,
    *,
    media_type: str = "",
    filename: str = "",
    tenant: str = "",
    retries: Retries | None = None,
) -> Part:
    """Upload a file of any size that the agent takes; return the part for the next message.

    The file is read twice, the first time for its digest, and at most 8 MB of it are in memory.
    The headers and the authentication of `http` are for the agent alone: the store of its files
    gets the headers that the agent names, and nothing else.

    >>> part = await upload(http, card, "report.pdf", media_type="application/pdf")
    >>> message = Message(message_id="1", role=Role.ROLE_USER, parts=[part])

    Args:
        http: the client by which the agent is called, with the caller's credentials.
        card: the agent's card, which names the extension.
        source: a path, or an open binary file or stream.
        media_type: the file's, such as `image/png`.
        filename: by default a path's last part.
        tenant: the one of the message.
        retries: how long it is tried. A file that has come whole is not sent again.

    Raises:
        A2AClientError: the agent takes no uploads, or not this one; or it was given up.
        SourceError: `source` is no file that can be read.
    """
    url = _url(card)
    if not filename and isinstance(source, str | os.PathLike):
        filename = Path(source).name
    patience = Patience(retries or Retries())
    async with measured(source) as found:
        wanted = {
            "size": found.size,
            "sha256": found.digest,
            "mediaType": media_type,
            "filename": filename,
            "tenant": tenant,
        }
        return await _sent(http, url, wanted, found, patience)


async def _sent(
    http: httpx.AsyncClient,
    url: str,
    wanted: Mapping[str, Any],
    found: Measured,
    patience: Patience,
) -> Part:
    """Ask for a link and put the file there, until it is there; return the part that names it."""
    asked: Mapping[str, Any] | None = None
    tries = 0
    while True:
        try:
            if asked is None:
                asked, tries = await _asked(http, url, wanted), 0
            await _put(http, asked, found.file, found.size)
            return ParseDict(asked["part"], Part(), ignore_unknown_fields=True)
        except httpx.HTTPError as error:
            status = _status(error)
            tries += 1
            if asked is not None and tries > 1 and status in _ANEW:
                asked = None
                continue
            try:
                await patience.before_next_try(error)
            except ExhaustedError as exhausted:
                raise A2AClientError(f"The upload was given up. {exhausted}") from error
            except httpx.HTTPStatusError:
                raise A2AClientError(f"The upload was refused: {_said(error)}") from error


def _url(card: AgentCard) -> str:
    for extension in card.capabilities.extensions:
        if extension.uri == UPLOADS_EXTENSION:
            return str(extension.params["url"])
    raise A2AClientError("The agent takes no uploads: its card does not name the extension.")


async def _asked(http: httpx.AsyncClient, url: str, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    headers = {HTTP_EXTENSION_HEADER: UPLOADS_EXTENSION}
    answer = await http.post(url, json=wanted, headers=headers)
    answer.raise_for_status()
    asked: Mapping[str, Any] = answer.json()
    return asked


async def _put(
    http: httpx.AsyncClient, asked: Mapping[str, Any], file: BinaryIO, size: int
) -> None:
    # Not by `http.put`, which would send the caller's credentials along.
    headers = {**asked["headers"], "Content-Length": str(size)}
    request = httpx.Request(asked["method"], asked["url"], headers=headers, content=_chunks(file))
    answer = await http.send(request, auth=None, follow_redirects=False)
    if answer.status_code != _THERE:
        answer.raise_for_status()


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    file.seek(0)
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        yield chunk


def _status(error: httpx.HTTPError) -> int:
    return error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0


def _said(error: httpx.HTTPError) -> str:
    """Return the agent's own sentence, or else HTTP's."""
    try:
        return str(error.response.json()["error"]["message"])  # type: ignore[attr-defined]
    except (AttributeError, KeyError, TypeError, ValueError):
        return str(error)

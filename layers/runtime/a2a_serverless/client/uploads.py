"""Uploads of large files, for agents whose card offers them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import httpx
from a2a.client.errors import A2AClientError
from a2a.extensions.common import HTTP_EXTENSION_HEADER
from a2a.types import AgentCard, Part
from google.protobuf.json_format import ParseDict, ParseError

from a2a_serverless.client.origins import AgentOrigins
from a2a_serverless.client.retries import ExhaustedError, Patience, Retries
from a2a_serverless.sources import UPLOADS_EXTENSION, Measured, Source, measured

_CHUNK_BYTES: Final = 1024 * 1024
_THERE: Final = httpx.codes.PRECONDITION_FAILED
"""The answer to a file that has come before: the answer to that one was lost."""
_HEADERS: Final = frozenset({"content-type", "if-none-match", "x-amz-checksum-sha256"})
"""What the answer may ask for of the request that puts the file."""
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
    gets the headers of the extension that the agent names, and nothing else. What the agent names
    gets one PUT, by https or at the origin of one of the card's interfaces, and not on this machine
    unless the agent is there.

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
        A2AClientError: the agent takes no uploads, or not this one; it answers with something else
            than a PUT as above; or it was given up.
        SourceError: `source` is no file that can be read.
    """
    agent = AgentOrigins(*(way.url for way in card.supported_interfaces))
    url = agent.check(_url(card))
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
        return await _sent(http, agent, url, wanted, found, patience)


async def _sent(
    http: httpx.AsyncClient,
    agent: AgentOrigins,
    url: httpx.URL,
    wanted: Mapping[str, Any],
    found: Measured,
    patience: Patience,
) -> Part:
    """Ask for a link and put the file there, until it is there; return the part that names it."""
    asked: _Asked | None = None
    tries = 0
    while True:
        try:
            if asked is None:
                asked, tries = await _asked(http, agent, url, wanted), 0
            return await _put(http, agent, asked, found)
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """An agent's answer: where the file goes, and the part that names it then."""

    url: httpx.URL
    headers: Mapping[str, str]
    part: Part

    @classmethod
    def of(cls, response: httpx.Response, agent: AgentOrigins) -> _Asked:
        """Return what an answer says.

        Raises:
            A2AClientError: it is none of the extension, or asks for something else than a PUT of
                the file.
        """
        try:
            answer = response.json()
            url, headers = agent.check(answer["url"]), dict(answer["headers"])
            part = ParseDict(answer["part"], Part(), ignore_unknown_fields=True)
            is_put = answer["method"] == "PUT"
            are_known = {name.lower() for name in headers} <= _HEADERS and all(
                value.isascii() and value.isprintable() for value in headers.values()
            )
        except (AttributeError, KeyError, ParseError, TypeError, ValueError) as error:
            msg = "The upload is not sent: the agent's answer to the request for it is none."
            raise A2AClientError(msg) from error
        if not (is_put and are_known):
            msg = "The upload is not sent: the agent asks for another method than PUT, or for"
            raise A2AClientError(f"{msg} other headers than {', '.join(sorted(_HEADERS))}.")
        return cls(url, headers, part)


async def _asked(
    http: httpx.AsyncClient, agent: AgentOrigins, url: httpx.URL, wanted: Mapping[str, Any]
) -> _Asked:
    headers = {HTTP_EXTENSION_HEADER: UPLOADS_EXTENSION}
    answer = await http.post(url, json=wanted, headers=headers, extensions=agent.guard(url))
    answer.raise_for_status()
    return _Asked.of(answer, agent)


async def _put(
    http: httpx.AsyncClient, agent: AgentOrigins, asked: _Asked, found: Measured
) -> Part:
    # Not by `http.put`, which would send the caller's credentials along.
    request = httpx.Request(
        "PUT",
        asked.url,
        headers={**asked.headers, "Content-Length": str(found.size)},
        content=_chunks(found.file),
        extensions=agent.guard(asked.url),
    )
    answer = await http.send(request, auth=None, follow_redirects=False)
    if answer.status_code != _THERE:
        answer.raise_for_status()
    return asked.part


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

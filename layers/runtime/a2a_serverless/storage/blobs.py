"""Stores of blobs beside a table, and showing content at the edges."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import quote, urlencode

from a2a.types import Part
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as AnyMessage

from a2a_serverless.clock import Clock, completed, now_s
from a2a_serverless.errors import ConfigurationError, InvalidArgumentError
from a2a_serverless.tasks.blobs import (
    Blob,
    BlobOwner,
    ToStore,
    blob_of,
    filled,
    joins,
    keyed_blob,
    linked_blob,
)
from a2a_serverless.tasks.entries import contents_of, parts_of
from a2a_serverless.values import dataclass

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of a blob that are in memory while it is copied."""
AT_ONCE: Final = 8
"""Blobs that one answer, or one commit, reads or writes at the same time."""
KEYS_A_PAGE: Final = 1000
"""Keys that one request returns, by default."""
ANY_TYPE: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a link to a blob says beside its place; it is fixed by the link's signature."""

    media_type: str
    filename: str
    seconds: int
    base_url: str = ""
    """The service's own address, for a store whose blobs the service itself serves."""


class Upload(NamedTuple):
    """Where the content of a blob may be put, once, and with which headers."""

    url: str
    headers: Mapping[str, str]


class Blobs(ABC):
    """A store of blobs by key: what is stored under a key never changes.

    All of them may raise UnavailableError: no answer within the retry budget.
    """

    @abstractmethod
    async def put(self, blob: Blob, content: bytes | BinaryIO, media_type: str) -> None:
        """Store a blob, from its bytes or from a file that is read from its beginning.

        Raises:
            InvalidArgumentError: the file is not the blob's: it has changed meanwhile.
            ConfigurationError: the store refuses; one sentence says why.
        """

    @abstractmethod
    async def copy(self, source: Blob, blob: Blob) -> bool:
        """Store a blob with the content of another one; False if that is not there."""

    @abstractmethod
    async def get(self, blob: Blob) -> bytes | None:
        """Return a whole content; None if it is not there."""

    @abstractmethod
    def chunks(self, blob: Blob, start: int = 0) -> AsyncIterator[bytes]:
        """Yield a content, or what it has from a byte on, in chunks of at most `CHUNK_BYTES`.

        Nothing if it is not there.
        """

    @abstractmethod
    async def link(self, blob: Blob, link: Link) -> str:
        """Return a link to a blob, which anyone may fetch for `link.seconds`."""

    @abstractmethod
    async def upload(self, blob: Blob, link: Link) -> Upload:
        """Return a link by which anyone may put this content, and no other, for `link.seconds`."""

    @abstractmethod
    async def delete(self, owner: BlobOwner) -> int:
        """Delete all blobs of an owner, and return how many there were; it may be repeated."""

    @abstractmethod
    async def keys(self, start: str, after: str = "", limit: int = KEYS_A_PAGE) -> list[str]:
        """Return the first keys that begin with `start`, in their order, of those behind `after`.

        They are up to `limit`; fewer: there are no more.
        """

    async def scopes(self, start: str) -> list[str]:
        """Return the scopes that begin with `start` for which anything is stored."""
        scopes: list[str] = []
        while found := await self.keys(start, f"{scopes[-1]}/" if scopes else "", limit=1):
            scopes.append(found[0].partition(".")[0])  # no key of it is behind the `/`
        return scopes

    async def uploads(self, scope: str) -> AsyncIterator[Blob]:
        """Yield what the clients of a scope have uploaded, also what no message has named."""
        start, after = BlobOwner.uploads(scope).prefix, ""
        while found := await self.keys(start, after):
            for blob in map(keyed_blob, found):
                if blob is not None:
                    yield blob
            after = found[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineLimits:
    """The raw content that is shown in a message or artifact itself; beyond it there are links."""

    part_bytes: int
    """Of one part."""
    all_bytes: int
    """Of a part together with those before it in its message or artifact."""
    link_s: int = 300
    base_url: str = ""
    tells_refusals: bool = False
    """A sentence stands for a content that the store refuses to give, so that all else is read."""

    def has_room(self, blob: Blob) -> bool:
        """Return True if a blob is shown by its content: it depends on the blob alone."""
        fits = blob.size <= self.part_bytes and blob.behind + blob.size <= self.all_bytes
        return blob.kind != "raw" or fits


WHOLE: Final = InlineLimits(part_bytes=2**62, all_bytes=2**62)
"""Everything is shown by its content."""


async def store(blobs: Blobs, to_store: Sequence[ToStore]) -> None:
    """Store what a commit is going to name.

    Raises:
        InvalidArgumentError: a link names a file that is not stored any more.
        ConfigurationError, UnavailableError: as `Blobs.put`.
    """

    async def one(each: ToStore) -> None:
        if isinstance(each.content, bytes):
            await completed(blobs.put(each.blob, each.content, each.media_type))
        elif not await completed(blobs.copy(each.content, each.blob)):
            raise InvalidArgumentError(
                "A part's link names a file that is not stored: it never came, or has expired."
                " Upload it again, or send the file itself."
            )

    distinct = {each.blob.key: each for each in to_store}
    await _all(partial(one, each) for each in distinct.values())


async def _all(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Make all calls, `AT_ONCE` of them at a time; the first failure ends those that are left."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(call: Callable[[], Awaitable[None]]) -> None:
        async with turns:
            await call()

    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(one(call))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


def inlined(message: AnyMessage, inline: InlineLimits) -> list[Blob]:
    """Return the blob of each part into which `show` puts a content; equal ones are read once."""
    return [blob for blob in map(blob_of, parts_of(message)) if blob and inline.has_room(blob)]


async def show(blobs: Blobs | None, message: AnyMessage | None, inline: InlineLimits) -> None:
    """Replace the references in a message, if it is one, by contents or links, in place.

    A content that is missing, or damaged, is told by a sentence in its place, and in the log.

    Raises:
        UnavailableError: no answer within the retry budget.
    """
    found = [(part, blob) for part in parts_of(message) if (blob := blob_of(part)) is not None]
    if not found:
        return
    texts = [(content, joins(content.parts)) for content in contents_of(message)]
    contents: dict[str, asyncio.Future[bytes | None]] = {}

    async def one(part: Part, blob: Blob) -> None:
        if blobs is None:
            _tell_missing(part, blob)
            return
        try:
            if inline.has_room(blob):
                if blob.key not in contents:  # equal files are one object, which is read once
                    contents[blob.key] = asyncio.ensure_future(whole(blobs, blob))
                _fill(part, blob, await contents[blob.key])
            else:
                part.url = await blobs.link(blob, link_of(part.media_type, part.filename, inline))
        except ConfigurationError as error:
            if not inline.tells_refusals:
                raise
            extra = {"action": "blob_refused", "task_id": blob.owner.task_id}
            logger.error("%s", error, extra=extra)  # noqa: TRY400 - a sentence
            _tell(part, blob, "cannot be read at the moment")

    await _all(partial(one, *each) for each in found)
    for content, numbers in texts:
        for number in reversed(numbers):
            content.parts[number - 1].text += content.parts.pop(number).text


def link_of(media_type: str, filename: str, inline: InlineLimits) -> Link:
    """Return what a link to a file says, in what headers can have: names end as the file's do."""
    return Link(
        media_type=header_type(media_type),
        filename=filename[-_LONGEST:],
        seconds=inline.link_s,
        base_url=inline.base_url,
    )


def header_type(media_type: str) -> str:
    """Return a media type that a header can have; `ANY_TYPE` for one that it cannot."""
    fits = media_type.isascii() and media_type.isprintable() and 0 < len(media_type) <= _LONGEST
    return media_type if fits else ANY_TYPE


async def put_whole(
    blobs: Blobs, content: bytes, owner: BlobOwner, media_type: str = ANY_TYPE
) -> Blob:
    """Store content as a blob; return its name, which the caller stores next.

    Until then nothing refers to it. If nothing ever does, it is its owner's to delete.

    Raises:
        ConfigurationError: the store refuses.
        UnavailableError: no answer within the retry budget.
    """
    blob = await asyncio.to_thread(Blob.of, content, owner)
    await completed(blobs.put(blob, content, media_type))
    return blob


async def whole(blobs: Blobs | None, blob: Blob) -> bytes | None:
    """Return a whole content as it was stored; None if it is missing or damaged.

    Raises:
        UnavailableError: no answer within the retry budget.
    """
    content = None if blobs is None else await blobs.get(blob)
    if content is None or await asyncio.to_thread(_sha256_of, content) != blob.digest:
        return None
    return content


def _fill(part: Part, blob: Blob, content: bytes | None) -> None:
    try:
        if content is not None:
            filled(part, blob, content)
            return
    except (DecodeError, ValueError):
        pass
    _tell_missing(part, blob)


def _tell_missing(part: Part, blob: Blob) -> None:
    extra = {"action": "blob_missing", "task_id": blob.owner.task_id, "digest": blob.digest}
    logger.error("A blob of %d bytes is not stored any more", blob.size, extra=extra)
    _tell(part, blob, "are not stored any more")


def _tell(part: Part, blob: Blob, what: str) -> None:
    name = part.filename or {"raw": "file", "text": "text", "data": "data"}[blob.kind]
    part.text = f"[{name}: {blob.size} bytes that {what}]"


# -- stores without links of their own -------------------------------------------------------

PATH: Final = "/.blobs/"
"""Where the service itself serves the blobs of such a store."""

_LONGEST: Final = 200
"""The most characters of a media type, or of a file's name, in a link and in its headers."""


class ServedBlobs(Blobs):
    """A store whose blobs the service itself serves, by links that it has signed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @abstractmethod
    def secret(self) -> bytes:
        """Return what signs the links: the same in all processes of the store."""

    async def link(self, blob: Blob, link: Link) -> str:
        return await self._link("GET", blob, link)

    async def upload(self, blob: Blob, link: Link) -> Upload:
        headers = {"Content-Type": header_type(link.media_type), "If-None-Match": "*"}
        return Upload(await self._link("PUT", blob, link), headers)

    async def _link(self, verb: str, blob: Blob, link: Link) -> str:
        until = str(now_s(self._clock) + link.seconds)
        fixed = {"type": header_type(link.media_type), "name": link.filename, "until": until}
        signature = await asyncio.to_thread(self._signature, verb, blob.key, fixed)
        signed = {**fixed, "signature": signature}
        return f"{link.base_url.rstrip('/')}{PATH}{quote(blob.key)}?{urlencode(signed)}"

    def linked(
        self, path: str, query: Mapping[str, str], verb: str = "GET"
    ) -> tuple[Blob, Link] | None:
        """Return the blob that a link names; None: it is none for `verb`, or has expired.

        Links by `link` are for GET, those by `upload` for PUT.
        """
        fixed = {name: query.get(name, "") for name in ("type", "name", "until")}
        blob = linked_blob(f"https://localhost{path}")
        given = query.get("signature", "").encode()
        if blob is None or not hmac.compare_digest(
            self._signature(verb, blob.key, fixed).encode(), given
        ):
            return None
        left_s = int(fixed["until"]) - now_s(self._clock)
        if left_s <= 0:
            return None
        return blob, Link(media_type=fixed["type"], filename=fixed["name"], seconds=left_s)

    def _signature(self, verb: str, key: str, fixed: Mapping[str, str]) -> str:
        text = "\n".join((verb, key, *map(quote, fixed.values())))
        return hmac.new(self.secret(), text.encode(), hashlib.sha256).hexdigest()


def _sha256_of(content: bytes) -> str:
    """Return the digest of a content as a blob has it."""
    return hashlib.sha256(content).hexdigest()


def check_content(blob: Blob, digest: str) -> None:
    """Refuse to store content that is not the blob's.

    Raises:
        InvalidArgumentError: the digests differ.
    """
    if digest != blob.digest:
        raise InvalidArgumentError(CHANGED)


CHANGED: Final = (
    "The file has changed while it was stored: emit it when all of it is written, or a copy of it."
)


def disposition(filename: str) -> str:
    """Return the Content-Disposition of a blob: a browser saves it and never shows it."""
    name = f"; filename*=UTF-8''{quote(filename, safe='')}" if filename else ""
    return f"attachment{name}"


class MemoryBlobs(ServedBlobs):
    """Blobs in this process's memory."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._secret = secrets.token_bytes(32)
        self._contents: dict[str, bytes] = {}

    def secret(self) -> bytes:
        return self._secret

    async def put(self, blob: Blob, content: bytes | BinaryIO, media_type: str) -> None:  # noqa: ARG002
        if not isinstance(content, bytes):
            content.seek(0)
            content = content.read()
            check_content(blob, _sha256_of(content))
        self._contents[blob.key] = content

    async def copy(self, source: Blob, blob: Blob) -> bool:
        if source.key in self._contents:
            self._contents[blob.key] = self._contents[source.key]
        return source.key in self._contents

    async def get(self, blob: Blob) -> bytes | None:
        return self._contents.get(blob.key)

    async def chunks(self, blob: Blob, start: int = 0) -> AsyncIterator[bytes]:
        content = self._contents.get(blob.key, b"")
        for first in range(start, len(content), CHUNK_BYTES):
            yield content[first : first + CHUNK_BYTES]

    async def delete(self, owner: BlobOwner) -> int:
        doomed = [key for key in self._contents if key.startswith(owner.prefix)]
        for key in doomed:
            del self._contents[key]
        return len(doomed)

    async def keys(self, start: str, after: str = "", limit: int = KEYS_A_PAGE) -> list[str]:
        found = [key for key in self._contents if key.startswith(start) and key > after]
        return sorted(found)[:limit]

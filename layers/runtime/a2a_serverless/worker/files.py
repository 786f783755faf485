"""The files of a task, as its agent reads and writes them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, cast

from a2a.types import Part

from a2a_serverless.storage.blobs import CHUNK_BYTES, Inline, link_of
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.blobs import Blob, BlobOwner, linked_blob
from a2a_serverless.tasks.entries import APART_BYTES
from a2a_serverless.tasks.head import Head
from a2a_serverless.worker.failures import WrongCallError

Source: TypeAlias = str | os.PathLike[str] | BinaryIO
"""A file's path, or an open binary file or stream."""

AGENTS: Final = Inline(part_bytes=8_000_000, all_bytes=16_000_000)
"""The files that an agent gets in its message itself; it loads larger ones when it wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file of a message or artifact: `content` or `url`.

    A large file has a URL for some minutes: `ctx.read_file` and `ctx.save_file` load it at any
    time, and `ctx.link_to` makes another URL.
    """

    content: bytes | None
    url: str | None
    filename: str
    media_type: str


def files_of(parts: Iterable[Part]) -> list[FileInfo]:
    """Return the files among parts."""
    kinds = ((part, part.WhichOneof("content")) for part in parts)
    return [
        FileInfo(
            content=part.raw if kind == "raw" else None,
            url=part.url if kind == "url" else None,
            filename=part.filename,
            media_type=part.media_type,
        )
        for part, kind in kinds
        if kind in {"raw", "url"}
    ]


class Files:
    """The files of one task, which are stored beside its log.

    Args:
        storage: the storage, in the task's scope.
        head: HEAD of the task.
        inline: has the life of links, and the service's address.
    """

    def __init__(self, storage: DurableStorage, head: Head, inline: Inline) -> None:
        self._storage = storage
        self._owner = BlobOwner(head.scope, head.task_id, head.incarnation)
        self._inline = inline

    async def put(self, source: Source, media_type: str, filename: str) -> Part:
        """Store a file; return the part that stands for it in an event of the task.

        At most `CHUNK_BYTES` are in memory; what cannot be read twice from its beginning is copied
        to a temporary file first.

        Raises:
            WrongCallError: it is no file that can be read.
            ConfigurationError, UnavailableError: as `Blobs.put`.
        """
        with _opened(source) as file:
            stored, digest, size = await asyncio.to_thread(_measured, file)
            with nullcontext() if stored is file else stored:
                blobs = self._storage.table.blobs
                part = Part(media_type=media_type, filename=filename)
                if blobs is None or size <= APART_BYTES:
                    stored.seek(0)
                    part.raw = await asyncio.to_thread(stored.read, size)
                    return part
                blob = Blob(self._owner, digest, size)
                await blobs.put(blob, cast("BinaryIO", _Measured(stored, size)), media_type)
                part.url = blob.reference
                return part

    async def chunks(self, file: FileInfo) -> AsyncIterator[bytes]:
        """Yield the content of a file in pieces of at most `CHUNK_BYTES`.

        Raises:
            WrongCallError: its URL is a client's own, or it is not stored any more.
            UnavailableError: no answer within the retry budget.
        """
        if file.content is not None:
            yield file.content
            return
        blob, blobs = self._blob_of(file), self._storage.table.blobs
        read = 0
        if blobs is not None:
            async for chunk in blobs.chunks(blob):
                read += len(chunk)
                yield chunk
        if read != blob.size:
            name = file.filename or "The file"
            raise WrongCallError(f"{name} is not stored any more: {read} of {blob.size} bytes.")

    async def link(self, file: FileInfo) -> str:
        """Return a new link to a file that has a URL of this service.

        Raises:
            WrongCallError: as `chunks`.
        """
        blob, blobs = self._blob_of(file), self._storage.table.blobs
        if blobs is None:
            raise WrongCallError("This deployment stores no files of which it could give links.")
        return await blobs.link(blob, link_of(file.media_type, file.filename, self._inline))

    def _blob_of(self, file: FileInfo) -> Blob:
        blob = linked_blob(file.url or "")
        if blob is None or blob.owner.scope != self._owner.scope:
            raise WrongCallError(
                "The file has a URL of its client, which this service never fetches: fetch it in"
                " the agent, if its host is one that you trust."
            )
        return blob


class _Measured:
    """A file with as many bytes as were measured, also if it has grown or shrunk since.

    So a request has the length that it announces: what a grown file has more would be taken for the
    next request on the connection. Zeros stand for what is gone, and the digest refuses them.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size, self._at = file, size, 0

    def read(self, size: int = -1) -> bytes:
        left = self._size - self._at
        wanted = left if size < 0 else min(size, left)
        self._at += wanted
        return self._file.read(wanted).ljust(wanted, b"\0")

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._file.seek(self._at)

    def tell(self) -> int:
        return self._at


@contextmanager
def _opened(source: Source) -> Iterator[BinaryIO]:
    if isinstance(source, str | os.PathLike):
        with Path(source).open("rb") as file:
            yield file
    elif hasattr(source, "read"):
        yield source
    else:
        raise WrongCallError(
            f"ctx.emit_file takes a path or an open binary file, and got {type(source).__name__}:"
            " pass bytes as `await ctx.emit_artifact(…, file_bytes=…)`."
        )


def _measured(file: BinaryIO) -> tuple[BinaryIO, str, int]:
    """Return a file that can be read again from its beginning, its SHA-256 and its size.

    It is the file itself if that can be, else a temporary copy.
    """
    sha = hashlib.sha256()
    size = 0
    is_again = file.seekable() and file.tell() == 0
    with ExitStack() as on_error:
        spooled = on_error.enter_context(tempfile.SpooledTemporaryFile(max_size=CHUNK_BYTES))
        while chunk := file.read(CHUNK_BYTES):
            if not isinstance(chunk, bytes):
                raise WrongCallError("ctx.emit_file takes a file that is opened as binary ('rb').")
            sha.update(chunk)
            size += len(chunk)
            if not is_again:
                spooled.write(chunk)
        if is_again:
            return file, sha.hexdigest(), size
        on_error.pop_all()  # the caller closes it
        return spooled, sha.hexdigest(), size  # type: ignore[return-value]

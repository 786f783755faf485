"""The files of a task, as its agent reads and writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from a2a.types import Part, Task

from a2a_serverless.clock import completed
from a2a_serverless.sources import Source, SourceError, inlined, measured
from a2a_serverless.storage.blobs import InlineLimits, link_of
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.blobs import Blob, BlobOwner, linked_blob
from a2a_serverless.tasks.entries import OFFLOAD_BYTES
from a2a_serverless.tasks.head import Head
from a2a_serverless.values import dataclass
from a2a_serverless.worker.failures import WrongCallError

AGENTS: Final = InlineLimits(part_bytes=8_000_000, all_bytes=16_000_000)
"""The files that an agent gets in its message itself; it loads larger ones when it wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file of a message or artifact: `content` or `url`.

    A large file has a URL for some minutes: `ctx.read_file` and `ctx.save_file` load it at any
    time, and `ctx.link_to` makes another URL. What a client sends as a `data:` URL is `content`.

    >>> pictures = [file for file in ctx.files if file.media_type.startswith("image/")]
    """

    content: bytes | None
    url: str | None
    filename: str
    media_type: str


def files_of(parts: Iterable[Part]) -> list[FileInfo]:
    """Return the files among parts."""
    kinds = ((part, part.WhichOneof("content")) for part in map(inlined, parts))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousArtifact:
    """An artifact of an earlier turn, or of another agent's reply.

    >>> files = [file for artifact in ctx.previous_artifacts for file in artifact.files]
    """

    artifact_id: str
    name: str
    parts: tuple[Part, ...]

    @property
    def files(self) -> list[FileInfo]:
        """Return the files of the artifact."""
        return files_of(self.parts)


def artifacts_of(task: Task) -> list[PreviousArtifact]:
    """Return the artifacts of a task in the form for agents."""
    return [
        PreviousArtifact(artifact_id=each.artifact_id, name=each.name, parts=tuple(each.parts))
        for each in task.artifacts
    ]


class Files:
    """The files of one task, which are stored beside its log.

    Args:
        storage: the storage, in the task's scope.
        head: HEAD of the task.
        inline: has the life of links, and the service's address.
    """

    def __init__(self, storage: DurableStorage, head: Head, inline: InlineLimits) -> None:
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
        blobs = self._storage.table.blobs
        part = Part(media_type=media_type, filename=filename)
        try:
            async with measured(source) as found:
                if blobs is None or found.size <= OFFLOAD_BYTES:
                    found.file.seek(0)
                    part.raw = await asyncio.to_thread(found.file.read)
                    return part
                blob = Blob(self._owner, found.digest, found.size)
                await completed(blobs.put(blob, found.file, media_type))
        except SourceError as error:
            raise WrongCallError(
                f"ctx.emit_file {error}: pass bytes as `await ctx.emit_artifact(…, file_bytes=…)`."
            ) from error
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
        url = file.url or ""
        if url.lower().startswith("data:"):
            raise WrongCallError("The file's data: URL cannot be decoded: ask for another one.")
        blob = linked_blob(url)
        if blob is None or blob.owner.scope != self._owner.scope:
            raise WrongCallError(
                "The file has a URL of its client, which this service never fetches: fetch it in"
                " the agent, if its host is one that you trust."
            )
        return blob

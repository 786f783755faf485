"""Files as agents and clients give them: a path, or an open binary file or stream."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

Source: TypeAlias = str | os.PathLike[str] | BinaryIO
"""A file's path, or an open binary file or stream."""

UPLOADS_EXTENSION: Final = "urn:a2a-serverless:uploads:1"
"""The name, in the card, of the extension by which clients send large files."""

_CHUNK_BYTES: Final = 8 * 1024 * 1024


class SourceError(TypeError):
    """What was given is no file that can be read; the text goes behind the call's name."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A file that can be read again from its beginning, its SHA-256 and its size."""

    file: BinaryIO
    digest: str
    size: int


@asynccontextmanager
async def measured(source: Source) -> AsyncIterator[Measured]:
    """Open a file, if it is a path, and read it once; what cannot be read again is copied.

    The copy is a temporary file, which is gone at the end, as a path is closed then.

    Raises:
        SourceError: it is no file that can be read.
    """
    with _opened(source) as file:
        found = await asyncio.to_thread(_measured, file)
        with nullcontext() if found.file is file else found.file:
            yield found


@contextmanager
def _opened(source: Source) -> Iterator[BinaryIO]:
    if isinstance(source, str | os.PathLike):
        with Path(source).open("rb") as file:
            yield file
    elif hasattr(source, "read"):
        yield source
    else:
        raise SourceError(f"takes a path or an open binary file, and got {type(source).__name__}")


def _measured(file: BinaryIO) -> Measured:
    sha = hashlib.sha256()
    size = 0
    is_again = file.seekable() and file.tell() == 0
    spooled = tempfile.SpooledTemporaryFile(max_size=_CHUNK_BYTES)  # noqa: SIM115 - the caller closes it
    while chunk := file.read(_CHUNK_BYTES):
        if not isinstance(chunk, bytes):
            raise SourceError("takes a file that is opened as binary ('rb')")
        sha.update(chunk)
        size += len(chunk)
        if not is_again:
            spooled.write(chunk)
    if is_again:
        spooled.close()
        return Measured(file, sha.hexdigest(), size)
    return Measured(spooled, sha.hexdigest(), size)  # type: ignore[arg-type]

"""Files as agents and clients give them: a path, or an open binary file or stream."""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, cast
from urllib.parse import unquote_to_bytes

from a2a.types import Part

from a2a_serverless.values import dataclass

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
        read, digest, size = await asyncio.to_thread(_measured, file)
        with nullcontext() if read is file else read:
            yield Measured(cast("BinaryIO", _AsMeasured(read, size)), digest, size)


@contextmanager
def _opened(source: Source) -> Iterator[BinaryIO]:
    if isinstance(source, str | os.PathLike):
        with Path(source).open("rb") as file:
            yield file
    elif hasattr(source, "read"):
        yield source
    else:
        raise SourceError(f"takes a path or an open binary file, and got {type(source).__name__}")


def _measured(file: BinaryIO) -> tuple[BinaryIO, str, int]:
    sha = hashlib.sha256()
    size = 0
    is_again = file.seekable() and file.tell() == 0
    with ExitStack() as on_error:
        spooled = on_error.enter_context(tempfile.SpooledTemporaryFile(max_size=_CHUNK_BYTES))
        while chunk := file.read(_CHUNK_BYTES):
            if not isinstance(chunk, bytes):
                raise SourceError("takes a file that is opened as binary ('rb')")
            sha.update(chunk)
            size += len(chunk)
            if not is_again:
                spooled.write(chunk)
        if is_again:
            return file, sha.hexdigest(), size
        on_error.pop_all()  # the caller closes it
        return spooled, sha.hexdigest(), size  # type: ignore[return-value]


def inlined(part: Part) -> Part:
    """Return a part whose URL has the scheme `data` with that URL's bytes; any other as it is.

    So is one whose URL is not of the form of RFC 2397. The part's media type counts before the
    URL's. The bytes are fewer than the URL's characters, which the message's size bounds.
    """
    scheme, colon, rest = part.url.partition(":")
    kind, comma, content = rest.partition(",")
    if scheme.lower() != "data" or not (colon and comma):
        return part
    kind, is_base64 = kind.removesuffix(";base64"), kind.endswith(";base64")
    data = unquote_to_bytes(content)
    if is_base64:
        letters = data.translate(bytes.maketrans(b"-_", b"+/"), b" \t\n\f\r=")
        try:
            data = binascii.a2b_base64(letters + b"=" * (-len(letters) % 4), strict_mode=True)
        except binascii.Error:
            return part
    made = Part(media_type=kind or "text/plain")
    made.MergeFrom(part)
    made.raw = data
    return made


class _AsMeasured:
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

"""Blobs as files in a folder: the embedded store, beside a table in a file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.blobs import CHUNK_BYTES, KEYS_A_PAGE, ServedBlobs, check_content
from a2a_serverless.tasks.blobs import Blob, BlobOwner

_SECRET: Final = "secret"  # noqa: S105 - the name of a file
_SWEEP_S: Final = 3600
"""Seconds from one look for blobs that have expired to the next one."""


class DirectoryBlobs(ServedBlobs):
    """Blobs as files of one folder, which its user alone may read.

    Each file appears whole. Those of a task are removed `keep_s` after the last one was stored:
    what an attempt that died has left goes with them.
    """

    def __init__(self, folder: Path, clock: Clock, *, keep_s: float) -> None:
        super().__init__(clock)
        self._folder = folder
        self._keep_s = keep_s
        self._swept_at = 0.0
        self._secret = b""

    def secret(self) -> bytes:
        self._secret = self._secret or _secret_in(self._folder)
        return self._secret

    async def put(self, blob: Blob, content: bytes | BinaryIO, media_type: str) -> None:  # noqa: ARG002
        await asyncio.to_thread(self._put, blob, content)

    async def copy(self, source: Blob, blob: Blob) -> bool:
        try:
            with (self._folder / source.key).open("rb") as file:
                await asyncio.to_thread(self._put, blob, file)
        except FileNotFoundError:
            return False
        return True

    async def get(self, blob: Blob) -> bytes | None:
        try:
            return await asyncio.to_thread((self._folder / blob.key).read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error) from error

    async def chunks(self, blob: Blob, start: int = 0) -> AsyncIterator[bytes]:
        try:
            file = await asyncio.to_thread((self._folder / blob.key).open, "rb")
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unreadable(error) from error
        with file:
            file.seek(start)
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk

    async def delete(self, owner: BlobOwner) -> int:
        found = await asyncio.to_thread(self._keys, owner.prefix)
        await asyncio.to_thread(self._remove, self._folder / owner.prefix)
        return len(found)

    async def keys(self, start: str, after: str = "", limit: int = KEYS_A_PAGE) -> list[str]:
        found = await asyncio.to_thread(self._keys, start)
        return [key for key in found if key > after][:limit]

    def _keys(self, start: str) -> list[str]:
        folder = start.rpartition("/")[0]
        tops = [self._folder / folder] if folder else self._folder.glob(f"{start}*")
        walked = [found for top in tops for found in os.walk(top)]
        paths = [Path(at, name) for at, _, names in walked for name in names]
        keys = (path.relative_to(self._folder).as_posix() for path in paths)
        # A file that is being written has a name without a dot.
        return sorted(
            key for key in keys if key.startswith(start) and "." in key.rpartition("/")[2]
        )

    def _unreadable(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"A file in {self._folder} cannot be read: {error.strerror}; check whose it is."
        )

    def _put(self, blob: Blob, content: bytes | BinaryIO) -> None:
        self._sweep()
        path = self._folder / blob.key
        try:
            for folder in (self._folder, path.parent.parent, path.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                try:
                    if isinstance(content, bytes):
                        file.write(content)
                    else:
                        content.seek(0)
                        sha = hashlib.sha256()
                        while chunk := content.read(CHUNK_BYTES):
                            sha.update(chunk)
                            file.write(chunk)
                        check_content(blob, sha.hexdigest())
                    # On the disk before it gets its name: a power cut leaves the whole file, or
                    # none.
                    file.flush()
                    os.fsync(file.fileno())
                    os.replace(file.name, path)  # noqa: PTH105 - of a name, not of a path
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            raise ConfigurationError(
                f"A file of {blob.size} bytes cannot be stored in {self._folder}: {error.strerror}."
            ) from error

    def _sweep(self) -> None:
        """Remove the blobs of incarnations into which nothing was stored for `keep_s`."""
        now = time.time()
        if now - self._swept_at < _SWEEP_S:
            return
        self._swept_at = now
        for folder in self._folder.glob("*/*/"):
            try:
                if folder.stat().st_mtime < now - self._keep_s:
                    self._remove(folder)
            except FileNotFoundError:
                continue

    def _remove(self, folder: Path) -> None:
        """Remove an owner's folder, and those around it, up to its task's, that are empty then."""
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            while (folder := folder.parent) != self._folder:
                folder.rmdir()


def _secret_in(folder: Path) -> bytes:
    """Return the secret that signs the folder's links; the first process makes it."""
    path = folder / _SECRET
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            made = folder / f"{_SECRET}.{secrets.token_hex(8)}"
            made.touch(mode=0o600)
            made.write_bytes(secrets.token_bytes(32))
            try:
                os.link(made, path)  # unlike a rename, it leaves what another process has made
            except FileExistsError:
                pass
            finally:
                made.unlink()
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"The folder {folder} cannot be used for files: {error.strerror}; it has to be"
            " writable."
        ) from error

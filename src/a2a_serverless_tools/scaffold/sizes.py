"""The sizes of an agent's packages beside what Lambda takes: of wheels, and of what was built.

An index names the bytes of each wheel. Those that it unpacks to stand in the directory at the
wheel's end, which is read without the rest.
"""

from __future__ import annotations

import io
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import httpx

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.scaffold.source import REQUIREMENTS

LIMIT_BYTES: Final = 262_144_000
"""The most unzipped bytes that Lambda takes for a function and its layers together: 250 MB."""
LAYER_BYTES: Final = 80_000_000
"""The part of `LIMIT_BYTES` that is kept for the layer; tests/artefact compares it with the built
layer."""

_LARGEST: Final = 3
_ZIPPED_SHARE: Final = 0.15
"""The share of the room from which wheels may be too large once they are unpacked."""
_SMALL_BYTES: Final = 1_000_000
"""Wheels below are taken as large as they are zipped."""
_TIMEOUT_S: Final = 10.0


def check_size(function: Path) -> None:
    """Compare a built function's size with the bytes that the layer leaves of Lambda's limit.

    Raises:
        ConfigurationError: the function is too large; one sentence names the largest packages.
    """
    sizes = {
        path.name: sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
        for path in function.iterdir()
    }
    _check("Agent and packages take", sizes)


def check_wheels(lock: str) -> None:
    """Compare wheels with the same bytes, by a lock in the form of pylock.toml for Lambda alone.

    What is counted is never more than what the build will have: a wheel whose unpacked size cannot
    be read counts as it is zipped.

    Raises:
        ConfigurationError: they are too large; one sentence names the largest packages.
    """
    wheels = {package["name"]: min(package["wheels"], key=_zipped) for package in _packages(lock)}
    zipped = {name: _zipped(wheel) for name, wheel in wheels.items()}
    _check("The packages take at least", zipped)
    if sum(zipped.values()) > _ZIPPED_SHARE * _room():
        large = {name: wheels[name] for name, size in zipped.items() if size > _SMALL_BYTES}
        unpacked = {name: _unpacked(wheel, zipped[name]) for name, wheel in large.items()}
        _check("The packages take at least", zipped | unpacked)


def _room() -> int:
    return LIMIT_BYTES - LAYER_BYTES


def _check(what: str, sizes: Mapping[str, int]) -> None:
    if sum(sizes.values()) <= _room():
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_LARGEST]
    shown = ", ".join(f"{name} {_mb(sizes[name])}" for name in largest)
    raise ConfigurationError(
        f"{what} {_mb(sum(sizes.values()))} and Lambda leaves {_mb(_room())} beside the layer"
        f" ({shown}): leave something out of {REQUIREMENTS}."
    )


def _mb(size: int) -> str:
    return f"{size / 1_000_000:.0f} MB"


def _packages(lock: str) -> Iterator[Mapping[str, Any]]:
    return (package for package in tomllib.loads(lock)["packages"] if package.get("wheels"))


def _zipped(wheel: Mapping[str, Any]) -> int:
    """Return a wheel's own bytes; 0 if its index does not say."""
    path = _path(wheel)
    return path.stat().st_size if path is not None else int(wheel.get("size", 0))


def _path(wheel: Mapping[str, Any]) -> Path | None:
    parts = urlsplit(wheel["url"])
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _unpacked(wheel: Mapping[str, Any], zipped: int) -> int:
    """Return the bytes that a wheel unpacks to, or else its own."""
    path = _path(wheel)
    try:
        if path is None:
            source: Any = io.BufferedReader(_Remote(wheel["url"], zipped))
        else:
            source = path
        with zipfile.ZipFile(source) as archive:
            return max(zipped, sum(one.file_size for one in archive.infolist()))
    except (OSError, httpx.HTTPError, zipfile.BadZipFile):
        return zipped


class _Remote(io.RawIOBase):
    """A file of an index, read in pieces, each by a request for its range."""

    def __init__(self, url: str, size: int) -> None:
        self._url, self._size, self._at = url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        piece = memoryview(buffer)
        end = min(self._at + len(piece), self._size)
        if end <= self._at:
            return 0
        headers = {"Range": f"bytes={self._at}-{end - 1}", "Accept-Encoding": "identity"}
        answer = httpx.get(self._url, headers=headers, timeout=_TIMEOUT_S)
        if answer.status_code != httpx.codes.PARTIAL_CONTENT:
            raise OSError(f"{self._url} gives no ranges")
        piece[: len(answer.content)] = answer.content
        self._at += len(answer.content)
        return len(answer.content)

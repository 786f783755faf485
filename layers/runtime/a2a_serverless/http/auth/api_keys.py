"""API keys: each has a name, which is who its holder is.

Keys come from a secret of Secrets Manager, or from the environment where there is none. The process
keeps their SHA-256 alone. That is enough for keys of 20 random characters or more, which nobody
finds by trying; a slow hash would only make refused requests dear.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers

from a2a_serverless.cached import Cached
from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.http.context import Principal
from a2a_serverless.http.errors import RefusedError

MIN_LENGTH = 20
"""Characters of a key: 20 random ones of 64 are 120 bits."""

MAX_AGE_S = 300.0
"""How long a key that was taken out of the secret may still be good, in seconds."""
PAUSE_S = 30.0
"""Between two attempts to read a secret that cannot be read, in seconds."""

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="a2a"'}

_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,100}")
_KEY = re.compile(rf"[\x21-\x7e]{{{MIN_LENGTH},1000}}")


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    sha256: bytes


class KeyRing:
    """The keys' digests, each with the name that it stands for."""

    def __init__(self, entries: Iterable[_Entry]) -> None:
        self._entries = tuple(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def name_of(self, key: str) -> str | None:
        """Whose key it is; None when nobody's.

        Takes as long for a key that is nearly right as for any other, and looks at all of them.
        """
        sha256 = hashlib.sha256(key.encode()).digest()
        name = None
        for entry in self._entries:
            if hmac.compare_digest(entry.sha256, sha256):
                name = entry.name
        return name

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """The keys of `{"name": "key"}`, or of a list `name=key, name=key`.

        In place of a key may stand `sha256:` and its digest in hexadecimal, and, in JSON, a list of
        keys that are good for the same name.

        Raises:
            ConfigurationError: the text has another form. One sentence says in which entry, and
                shows neither key nor name: somebody may have written a key where a name belongs.
        """
        return cls(
            _Entry(_checked_name(name, place), _sha256(key, place))
            for place, (name, keys) in enumerate(_pairs(text), start=1)
            for key in (keys if isinstance(keys, list) else [keys])
        )


class ApiKeys:
    """Lets in whoever shows a key, in `X-API-Key` or as a bearer token.

    Args:
        text: the keys as the process starts.
        read: reads them again; None where they do not change. Raises UnavailableError.
    """

    def __init__(
        self, text: str, *, clock: Clock, read: Callable[[], Awaitable[str]] | None = None
    ) -> None:
        self._read = read
        self._rings = Cached(
            "The API keys",
            self._ring,
            clock=clock,
            max_age_s=MAX_AGE_S if read else float("inf"),
            pause_s=PAUSE_S,
            first=KeyRing.parse(text),
        )

    async def authenticate(self, headers: Headers) -> Principal:
        """Who shows a key.

        Any key makes the keys be read again when they are `MAX_AGE_S` old, an unknown one as well:
        it may be new. No key makes them be read sooner, so that a flood of wrong keys makes no
        more calls than a single right one. One right key among several is enough, but not two of
        different names.

        Raises:
            RefusedError: nobody whom we know.
        """
        keys = [key for key in _presented(headers) if key]
        if not keys:
            raise _refused("NoCredentials")
        ring = await self._rings.get()
        names = {name for key in keys if (name := ring.name_of(key)) is not None}
        if not names:
            raise _refused("UnknownKey")
        if len(names) > 1:
            raise _refused("AmbiguousCredentials")
        return Principal(names.pop())

    async def _ring(self) -> KeyRing:
        if self._read is None:
            msg = "They are those of the environment."
            raise UnavailableError(msg)
        try:
            return KeyRing.parse(await self._read())
        except ConfigurationError as error:
            # Whoever has broken the secret must not lock out everybody: the old keys stay.
            raise UnavailableError(str(error)) from error


def _refused(reason: str) -> RefusedError:
    return RefusedError(reason, 401, "A valid API key is required.", CHALLENGE)


def _presented(headers: Headers) -> Iterator[str]:
    yield from headers.getlist("x-api-key")
    for value in headers.getlist("authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            yield token.strip()


def _pairs(text: str) -> list[tuple[str, Any]]:
    text = text.strip()
    if not text.startswith("{"):
        listed = (entry.partition("=") for entry in re.split(r"[,\s]+", text) if entry)
        return [(name, key) for name, _, key in listed]
    try:
        # As pairs, because of a name that stands there twice one key would be lost silently.
        pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        # Without its cause: the error of the parser has the text, and with it the keys.
        msg = "The API keys are not valid JSON."
        raise ConfigurationError(msg) from None
    return pairs


def _checked_name(name: str, place: int) -> str:
    if not _NAME.fullmatch(name):
        msg = f"The API keys' entry {place} has no name of 1 to 100 characters A-Z a-z 0-9 . _ @ -"
        raise ConfigurationError(msg)
    return name


def _sha256(key: Any, place: int) -> bytes:
    hashed = _HASH.fullmatch(key) if isinstance(key, str) else None
    if hashed is not None:
        return bytes.fromhex(hashed[1])
    if not isinstance(key, str) or not _KEY.fullmatch(key) or key.startswith("sha256:"):
        msg = (
            f"The API keys' entry {place} is not {MIN_LENGTH} or more printable characters "
            'without spaces, nor "sha256:" with 64 hexadecimal digits.'
        )
        raise ConfigurationError(msg)
    return hashlib.sha256(key.encode()).digest()

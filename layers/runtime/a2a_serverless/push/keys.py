"""The public keys with which receivers check signatures, as the agent publishes them (RFC 7517).

The signer publishes them. The API, which serves `/.well-known/jwks.json`, only lists them and never
sees a private key.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from a2a_serverless.clock import Clock, SystemClock

JWKS_MAX_AGE_S: Final = 300
"""Seconds that a receiver may cache the served document (`Cache-Control: max-age`)."""

KEY_LIFETIME_S: Final = 24 * 3600
"""Seconds that a key stays published after its last renewal: by then its tokens have expired."""

RENEW_S: Final = 3600
"""Seconds after which a key in use is renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedKey:
    """A public key, times in milliseconds since the epoch."""

    jwk: Mapping[str, str]
    """With its `kid`, `use` and `alg`."""
    published_at: int
    """The time since which the document has it, without a gap."""
    expires_at: int

    @property
    def kid(self) -> str:
        return self.jwk["kid"]

    def is_fresh(self, now_ms: int) -> bool:
        """Return True if it was renewed less than `RENEW_S` ago."""
        return self.expires_at - now_ms > (KEY_LIFETIME_S - RENEW_S) * 1000


class KeyStore(ABC):
    """Storage of the public keys."""

    @abstractmethod
    async def keys(self) -> list[PublishedKey]:
        """Return the keys that have not expired, the oldest first; read consistently.

        Raises:
            UnavailableError: no answer within the retry budget.
        """

    @abstractmethod
    async def publish(self, jwk: Mapping[str, str]) -> PublishedKey:
        """Publish a key for `KEY_LIFETIME_S` from now on, or renew a published one.

        Raises:
            UnavailableError: as `keys`.
        """


async def jwks(store: KeyStore) -> dict[str, Any]:
    """Return the JWK set of all published keys (RFC 7517, section 5)."""
    return {"keys": [dict(key.jwk) for key in await store.keys()]}


def live(keys: Iterable[PublishedKey], now_ms: int) -> list[PublishedKey]:
    """Return the keys that have not expired, the oldest first."""
    found = [key for key in keys if key.expires_at > now_ms]
    return sorted(found, key=lambda key: (key.published_at, key.kid))


def renewed(jwk: Mapping[str, str], before: PublishedKey | None, now_ms: int) -> PublishedKey:
    """Return a key as it is after its publication at `now_ms`; `before`: its earlier record."""
    is_new = before is None or before.expires_at <= now_ms
    return PublishedKey(
        jwk=dict(jwk),
        published_at=now_ms if is_new or before is None else before.published_at,
        expires_at=now_ms + KEY_LIFETIME_S * 1000,
    )


@dataclass(slots=True)
class MemoryKeyStore(KeyStore):
    """Keys of this process; safe under threads."""

    clock: Clock = field(default_factory=SystemClock)
    _keys: dict[str, PublishedKey] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def keys(self) -> list[PublishedKey]:
        with self._lock:
            return live(self._keys.values(), self.clock.now_ms())

    async def publish(self, jwk: Mapping[str, str]) -> PublishedKey:
        with self._lock:
            key = renewed(jwk, self._keys.get(jwk["kid"]), self.clock.now_ms())
            self._keys[key.kid] = key
        return key

"""The public keys with which receivers check signatures, as the agent publishes them (RFC 7517).

The signer publishes them. The API, which serves `/.well-known/jwks.json`, only lists them and never
sees a private key.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.storage.codec import seconds
from a2a_serverless.storage.table import Delete, Item, Key, Table, Update, beginning
from a2a_serverless.values import dataclass

logger = logging.getLogger(__name__)

JWKS_MAX_AGE_S: Final = 300
"""Seconds that a receiver may cache the served document (`Cache-Control: max-age`)."""

SETTLED_S: Final = 2 * JWKS_MAX_AGE_S + 60
"""Seconds for which a new key is published before it signs, if there is another key to sign with.
After that neither a receiver nor the API has a document without the new key; the API keeps an old
document while the store does not answer. One minute is for clocks that differ."""

_KEY_LIFETIME_S: Final = 24 * 3600
"""Seconds that a key stays published after its last renewal: by then its tokens have expired."""

_RENEW_S: Final = 3600
"""Seconds after which a key in use is renewed."""

PARTITION: Final = "JWKS"
_KEY: Final = "KEY#"


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
        """Return True if it was renewed less than an hour ago."""
        return self.expires_at - now_ms > (_KEY_LIFETIME_S - _RENEW_S) * 1000


class KeyStore:
    """The public keys, as items of a table: `PK = JWKS`, `SK = KEY#<kid>`.

    The table forgets them after their `expires_at`.

    Args:
        table: where they are.
        clock: by default the system's.
    """

    def __init__(self, table: Table, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._table = table

    async def keys(self) -> list[PublishedKey]:
        """Return the keys that have not expired, the oldest first; read consistently.

        Raises:
            UnavailableError: no answer within the retry budget.
        """
        pages = self._table.query(beginning(PARTITION, _KEY))
        found = [_readable(item) async for page in pages for item in page]
        now_ms = self._clock.now_ms()
        live = [key for key in found if key is not None and key.expires_at > now_ms]
        return sorted(live, key=lambda key: (key.published_at, key.kid))

    async def jwks(self) -> dict[str, Any]:
        """Return the JWK set of all published keys (RFC 7517, section 5)."""
        return {"keys": [dict(key.jwk) for key in await self.keys()]}

    async def publish(self, jwk: Mapping[str, str]) -> PublishedKey:
        """Publish a key for a day from now on, or renew a published one.

        Two publishers of a new key may overwrite each other's time of publication, which differs
        by the milliseconds between them.

        Raises:
            UnavailableError: as `keys`.
        """
        place = Key(PARTITION, f"{_KEY}{jwk['kid']}")
        item = await self._table.get(place)
        before, now_ms = _readable(item) if item else None, self._clock.now_ms()
        # DynamoDB deletes an expired item late. The document has not had its key since then, so
        # receivers need time to learn it anew.
        is_live = before is not None and before.expires_at > now_ms
        published = PublishedKey(
            jwk=dict(jwk),
            published_at=before.published_at if before and is_live else now_ms,
            expires_at=now_ms + _KEY_LIFETIME_S * 1000,
        )
        values = {
            "jwk": json.dumps(published.jwk),
            "published_at": published.published_at,
            "expires_at": seconds(published.expires_at),
        }
        await self._table.write(Update(key=place, values=values))
        return published

    async def withdraw(self, kid: str) -> None:
        """Stop publishing a key; a process that still signs with it publishes it again.

        Raises:
            UnavailableError: as `keys`.
        """
        await self._table.write(Delete(key=Key(PARTITION, f"{_KEY}{kid}")))


def _readable(item: Item) -> PublishedKey | None:
    """Return the key that an item holds; None, with a line in the log, if it is damaged.

    A damaged key counts as not published: the others are served, and its signer publishes it again.
    """
    try:
        return _key_of(item)
    except (KeyError, TypeError, ValueError):
        extra = {"action": "unreadable_key"}
        logger.error("Left out: the published key %s is damaged.", item["SK"], extra=extra)  # noqa: TRY400 - the item is what is wrong
        return None


def _key_of(values: Mapping[str, Any]) -> PublishedKey:
    """Return the key; raise KeyError, TypeError or ValueError if the values are not a key."""
    jwk, times = json.loads(values["jwk"]), (values["published_at"], values["expires_at"])
    if not isinstance(jwk, dict) or f"{_KEY}{jwk['kid']}" != values["SK"]:
        raise ValueError("it is no key of this name")
    if not all(isinstance(time, int) for time in times):
        raise TypeError("a time is no whole number")
    return PublishedKey(jwk=jwk, published_at=times[0], expires_at=times[1] * 1000)

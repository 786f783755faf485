"""Public keys as items of the table: `PK = JWKS`, `SK = KEY#<kid>`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.push.keys import KeyStore, PublishedKey, live, renewed
from a2a_serverless.storage.attributes import seconds
from a2a_serverless.storage.table import Item, Key, Table, Update, beginning

logger = logging.getLogger(__name__)

PARTITION: Final = "JWKS"
_KEY: Final = "KEY#"


class DynamoKeyStore(KeyStore):
    """Keys in a table, which forgets them after their `expires_at`.

    Args:
        table: where they are.
        clock: by default the system's.
    """

    def __init__(self, table: Table, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._table = table

    async def keys(self) -> list[PublishedKey]:
        pages = self._table.query(beginning(PARTITION, _KEY))
        found = [_readable(item) async for page in pages for item in page]
        return live(filter(None, found), self._clock.now_ms())

    async def publish(self, jwk: Mapping[str, str]) -> PublishedKey:
        """Publish a key as in the contract.

        Two publishers of a new key may overwrite each other's time of publication, which differs
        by the milliseconds between them.
        """
        place = Key(PARTITION, f"{_KEY}{jwk['kid']}")
        item = await self._table.get(place)
        published = renewed(jwk, _readable(item) if item else None, self._clock.now_ms())
        values = {
            "jwk": json.dumps(published.jwk),
            "published_at": published.published_at,
            "expires_at": seconds(published.expires_at),
        }
        await self._table.write(Update(key=place, values=values))
        return published


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

"""Public keys as items of the table: `PK = JWKS`, `SK = KEY#<kid>`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.push.keys import KeyStore, PublishedKey, live, renewed
from a2a_serverless.storage.dynamodb_attributes import Item, attribute, plain, seconds
from a2a_serverless.storage.dynamodb_layout import key
from a2a_serverless.storage.dynamodb_table import Table

PARTITION: Final = "JWKS"


class DynamoKeyStore(KeyStore):
    """Keys in a DynamoDB table, which forgets them after their `expires_at`.

    Args:
        table: the table's name.
        client: a boto3 client of DynamoDB, by default the process's own.
        clock: by default the system's.
    """

    def __init__(self, table: str, *, client: Any = None, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._table = Table(table, client or aws.client("dynamodb"), self._clock)

    async def keys(self) -> list[PublishedKey]:
        pages = self._table.query(
            KeyConditionExpression="PK = :partition",
            ExpressionAttributeValues={":partition": {"S": PARTITION}},
            ConsistentRead=True,
        )
        found = [_key_of(item) async for page in pages for item in page]
        return live(found, self._clock.now_ms())

    async def publish(self, jwk: Mapping[str, str]) -> PublishedKey:
        """Publish a key as in the contract.

        Two publishers of a new key may overwrite each other's time of publication, which differs
        by the milliseconds between them.
        """
        place = key(PARTITION, f"KEY#{jwk['kid']}")
        item = await self._table.get(place)
        published = renewed(jwk, _key_of(item) if item else None, self._clock.now_ms())
        await self._table.update(
            Key=place,
            UpdateExpression="SET jwk = :jwk, published_at = :since, expires_at = :until",
            ExpressionAttributeValues={
                ":jwk": attribute(json.dumps(published.jwk)),
                ":since": attribute(published.published_at),
                ":until": attribute(seconds(published.expires_at)),
            },
        )
        return published


def _key_of(item: Item) -> PublishedKey:
    values = plain(item)
    return PublishedKey(
        jwk=json.loads(values["jwk"]),
        published_at=values["published_at"],
        expires_at=values["expires_at"] * 1000,
    )

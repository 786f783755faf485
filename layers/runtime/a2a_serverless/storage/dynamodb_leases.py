"""Slots as items of the table: `PK = STREAMS#<room>` or `PLACES#<room>`, `SK = SLOT#<number>`."""

from __future__ import annotations

from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.storage.dynamodb_attributes import Item, attribute, seconds
from a2a_serverless.storage.dynamodb_layout import key
from a2a_serverless.storage.dynamodb_table import Table
from a2a_serverless.storage.leases import Slot, Slots

STREAMS: Final = "STREAMS"
PLACES: Final = "PLACES"
"""Kinds of slots: of open streams, and of slow requests to webhooks."""

_SLOT: Final = "SLOT#"


class DynamoSlots(Slots):
    """Slots in a DynamoDB table: a write unit for each claim, and one for each release.

    Args:
        table: the table's name.
        kind: `STREAMS` or `PLACES`.
        client: a boto3 client of DynamoDB, by default the process's own.
        clock: by default the system's.
    """

    def __init__(
        self,
        table: str,
        *,
        kind: str = STREAMS,
        client: Any = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self._kind = kind
        self._table = Table(table, client or aws.client("dynamodb"), self.clock)

    async def claim(self, slot: Slot, token: str, *, until_ms: int) -> bool:
        # Its own token passes: the claim may have been stored already, and its answer lost.
        return await self._table.update(
            Key=self._key(slot),
            UpdateExpression="SET #token = :token, held_until = :until, expires_at = :expires",
            ConditionExpression="attribute_not_exists(PK) OR held_until <= :now OR #token = :token",
            ExpressionAttributeNames={"#token": "token"},
            ExpressionAttributeValues={
                ":token": attribute(token),
                ":until": attribute(until_ms),
                ":expires": attribute(seconds(until_ms)),
                ":now": attribute(self.clock.now_ms()),
            },
        )

    async def held(self, room: str) -> set[int]:
        pages = self._table.query(
            KeyConditionExpression="PK = :room",
            FilterExpression="held_until > :now",
            ExpressionAttributeValues={
                ":room": attribute(f"{self._kind}#{room}"),
                ":now": attribute(self.clock.now_ms()),
            },
            ConsistentRead=True,
        )
        return {int(item["SK"]["S"].removeprefix(_SLOT)) async for page in pages for item in page}

    async def release(self, slot: Slot, token: str) -> None:
        # A failed condition: the lease has expired, and another one holds the slot. The item stays
        # for the next holder, so that a process needs no permission to delete.
        await self._table.update(
            Key=self._key(slot),
            UpdateExpression="SET held_until = :free",
            ConditionExpression="#token = :token",
            ExpressionAttributeNames={"#token": "token"},
            ExpressionAttributeValues={":token": attribute(token), ":free": attribute(0)},
        )

    def _key(self, slot: Slot) -> Item:
        return key(f"{self._kind}#{slot.room}", f"{_SLOT}{slot.number}")

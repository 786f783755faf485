"""Slots as items of the table: `PK = STREAMS#<room>` or `PLACES#<room>`, `SK = SLOT#<number>`."""

from __future__ import annotations

from typing import Final

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.storage.attributes import seconds
from a2a_serverless.storage.leases import Slot, Slots
from a2a_serverless.storage.table import NEW, Check, Key, Range, Table, Update, are

STREAMS: Final = "STREAMS"
PLACES: Final = "PLACES"
"""Kinds of slots: of open streams, and of slow requests to webhooks."""

_SLOT: Final = "SLOT#"


class DynamoSlots(Slots):
    """Slots in a table: a write for each claim, and one for each release.

    Args:
        table: where they are.
        kind: `STREAMS` or `PLACES`.
        clock: by default the system's.
    """

    def __init__(self, table: Table, *, kind: str = STREAMS, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._kind = kind
        self._table = table

    async def claim(self, slot: Slot, token: str, *, until_ms: int) -> bool:
        values = {"token": token, "held_until": until_ms, "expires_at": seconds(until_ms)}
        # Its own token passes: the claim may have been stored already, and its answer lost.
        is_free = [NEW, Check("held_until", "<=", self.clock.now_ms()), Check("token", "=", token)]
        return await self._table.did(Update(key=self._key(slot), values=values, when=[is_free]))

    async def held(self, room: str) -> set[int]:
        is_held = Check("held_until", ">", self.clock.now_ms())
        wanted = Range(partition=f"{self._kind}#{room}", when=[is_held])
        pages = self._table.query(wanted)
        return {int(item["SK"].removeprefix(_SLOT)) async for page in pages for item in page}

    async def release(self, slot: Slot, token: str) -> None:
        # A failed condition: the lease has expired, and another one holds the slot. The item stays
        # for the next holder, so that a process needs no permission to delete.
        free = Update(key=self._key(slot), values={"held_until": 0}, when=are(token=token))
        await self._table.did(free)

    def _key(self, slot: Slot) -> Key:
        return Key(f"{self._kind}#{slot.room}", f"{_SLOT}{slot.number}")

"""Leases of what occupies a Lambda environment, limited for each caller and for all together.

An open stream, or a slow request to a webhook, takes one of its caller's slots and one of the slots
for all callers, and gives both back at its end. Slots of a process that died come free when they
expire. There are as many slots as are allowed, and each is one item: so the limits hold exactly,
however many processes there are, and no single item is written by all of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Final

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.codec import seconds
from a2a_serverless.storage.table import NEW, Check, Key, Range, Table, Update, are
from a2a_serverless.tasks.identity import digest, new_token
from a2a_serverless.values import dataclass

logger = logging.getLogger(__name__)

_SLOTS_A_ROOM: Final = 100
"""The most slots of one room, which is a partition of the table."""

STREAMS: Final = "STREAMS"
PLACES: Final = "PLACES"
UPLOADS: Final = "UPLOADS"
COPIES: Final = "COPIES"
"""Kinds of slots: of streams, slow requests to webhooks, an hour's uploads, and their copies."""
_NOUNS: Final[Mapping[str, str]] = {
    STREAMS: "stream",
    PLACES: "webhook",
    UPLOADS: "file",
    COPIES: "file",
}
"""What holds a slot of each kind, in lines of the log."""

_SLOT: Final = "SLOT#"

_GUESSES: Final = 2
"""Slots that are tried before the taken ones are read: most are free most of the time."""
_TRIES: Final = 10
"""Slots that are tried after that; each failure means that another holder was quicker."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of one holder: its number in a room."""

    room: str
    number: int

    @classmethod
    def of(cls, owner: str, number: int) -> _Slot:
        """Return one of an owner's slots."""
        return cls(f"{owner}#{number // _SLOTS_A_ROOM}", number)


class Slots:
    """Slots in a table. One token holds a slot at a time, until the time that its holder has set.

    Every method raises UnavailableError when there is no answer within the retry budget.

    Args:
        table: where they are.
        kind: `STREAMS`, `PLACES`, `UPLOADS` or `COPIES`.
        clock: by default the system's.
    """

    def __init__(self, table: Table, *, kind: str = STREAMS, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.noun = _NOUNS[kind]
        self._kind = kind
        self._table = table

    async def take(self, owner: str, size: int, token: str, *, until_ms: int) -> _Slot | None:
        """Claim one of an owner's `size` slots; None if none was free where it was tried."""
        for _ in range(_GUESSES):
            slot = _Slot.of(owner, random.randrange(size))  # noqa: S311 - a place, not a secret
            if await self.claim(slot, token, until_ms=until_ms):
                return slot
        tries, firsts = _TRIES, list(range(0, size, _SLOTS_A_ROOM))
        random.shuffle(firsts)
        for first in firsts:
            held = await self.held(_Slot.of(owner, first).room)
            free = [n for n in range(first, min(first + _SLOTS_A_ROOM, size)) if n not in held]
            random.shuffle(free)
            for slot in (_Slot.of(owner, number) for number in free[:tries]):
                if await self.claim(slot, token, until_ms=until_ms):
                    return slot
            tries -= min(tries, len(free))
            if not tries:
                break
        return None

    async def claim(self, slot: _Slot, token: str, *, until_ms: int) -> bool:
        """Hold a slot that is free, expired, or held by `token` already; False: another holds it.

        `until_ms` is in milliseconds since the epoch.
        """
        values = {"token": token, "held_until": until_ms, "expires_at": seconds(until_ms)}
        # Its own token passes: the claim may have been stored already, and its answer lost.
        is_free = [NEW, Check("held_until", "<=", self.clock.now_ms()), Check("token", "=", token)]
        return await self._table.did(Update(key=self._key(slot), values=values, when=[is_free]))

    async def held(self, room: str) -> set[int]:
        """Return the numbers of a room's slots that are held now; read consistently."""
        is_held = Check("held_until", ">", self.clock.now_ms())
        wanted = Range(partition=f"{self._kind}#{room}", when=[is_held])
        pages = self._table.query(wanted)
        return {int(item["SK"].removeprefix(_SLOT)) async for page in pages for item in page}

    async def release(self, slot: _Slot, token: str) -> None:
        """Free a slot if `token` holds it."""
        # A failed condition: the lease has expired, and another one holds the slot. The item stays
        # for the next holder, so that a process needs no permission to delete.
        free = Update(key=self._key(slot), values={"held_until": 0}, when=are(token=token))
        await self._table.did(free)

    def _key(self, slot: _Slot) -> Key:
        return Key(f"{self._kind}#{slot.room}", f"{_SLOT}{slot.number}")


@dataclass(frozen=True, slots=True)
class Lease:
    """The slots of one holder; none if nothing is limited or the table did not answer."""

    token: str
    slots: tuple[_Slot, ...] = ()


class Leases:
    """Leases of one kind of thing.

    Args:
        slots: where they are stored.
        per_caller: how many one caller may have; 0: any number.
        in_all: how many all callers together may have; 0: any number.
    """

    def __init__(self, slots: Slots, *, per_caller: int, in_all: int) -> None:
        self._slots = slots
        self._noun = slots.noun
        self._per_caller = per_caller
        self._in_all = in_all

    async def take(self, caller: str, *, for_s: float) -> Lease | None:
        """Lease for `for_s` seconds; None if the caller, or all together, have reached the limit.

        `caller` is empty if callers are not known: then only all together are counted. If the table
        does not answer, nothing is refused, and the lease has no slots.
        """
        token = new_token()
        until_ms = self._slots.clock.now_ms() + int(for_s * 1000)
        limits = {"ALL": self._in_all}
        if caller:
            limits[f"CALLER#{digest('caller', caller)}"] = self._per_caller
        takes = [
            self._slots.take(owner, size, token, until_ms=until_ms)
            for owner, size in limits.items()
            if size
        ]
        found = await asyncio.gather(*takes, return_exceptions=True)
        lease = Lease(token, tuple(slot for slot in found if isinstance(slot, _Slot)))
        if all(isinstance(slot, _Slot) for slot in found):
            return lease
        # Both or none: what was free of one limit would count for a request that the other refuses.
        await self.give_back(lease)
        for failure in found:
            if isinstance(failure, UnavailableError):
                text = f"A {self._noun} is not counted: %s"
                logger.warning(text, failure, extra={"action": f"{self._noun}_not_counted"})
                return Lease(token)
            if isinstance(failure, BaseException):
                raise failure
        return None

    async def give_back(self, lease: Lease) -> None:
        """Free the lease's slots; those that cannot be freed now come free when they expire."""
        releases = (self._slots.release(slot, lease.token) for slot in lease.slots)
        for failure in await asyncio.gather(*releases, return_exceptions=True):
            if isinstance(failure, UnavailableError):
                text = f"A {self._noun} is counted until its lease expires: %s"
                logger.warning(text, failure, extra={"action": f"{self._noun}_not_given_back"})
            elif failure is not None:
                raise failure

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
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import UnavailableError
from a2a_serverless.tasks.identity import digest, new_token

logger = logging.getLogger(__name__)

SLOTS_A_ROOM: Final = 100
"""The most slots of one room, which is a partition of the table."""

_GUESSES: Final = 2
"""Slots that are tried before the taken ones are read: most are free most of the time."""
_TRIES: Final = 10
"""Slots that are tried after that; each failure means that another holder was quicker."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one holder: its number in a room."""

    room: str
    number: int


class Slots(ABC):
    """Storage of slots. One token holds a slot at a time, until the time that its holder has set.

    Every method raises UnavailableError when there is no answer within the retry budget.
    """

    clock: Clock

    @abstractmethod
    async def claim(self, slot: Slot, token: str, *, until_ms: int) -> bool:
        """Hold a slot that is free, expired, or held by `token` already; False: another holds it.

        `until_ms` is in milliseconds since the epoch.
        """

    @abstractmethod
    async def held(self, room: str) -> set[int]:
        """Return the numbers of a room's slots that are held now; read consistently."""

    @abstractmethod
    async def release(self, slot: Slot, token: str) -> None:
        """Free a slot if `token` holds it."""


@dataclass(slots=True)
class MemorySlots(Slots):
    """Slots of this process; safe under threads."""

    clock: Clock = field(default_factory=SystemClock)
    _held: dict[Slot, tuple[str, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def claim(self, slot: Slot, token: str, *, until_ms: int) -> bool:
        with self._lock:
            holder, until = self._held.get(slot, ("", 0))
            if until > self.clock.now_ms() and holder != token:
                return False
            self._held[slot] = token, until_ms
        return True

    async def held(self, room: str) -> set[int]:
        now = self.clock.now_ms()
        with self._lock:
            found = self._held.items()
            return {slot.number for slot, (_, until) in found if slot.room == room and until > now}

    async def release(self, slot: Slot, token: str) -> None:
        with self._lock:
            if self._held.get(slot, ("", 0))[0] == token:
                del self._held[slot]


@dataclass(frozen=True, slots=True)
class Lease:
    """The slots of one holder; none if nothing is limited or the table did not answer."""

    token: str
    slots: tuple[Slot, ...] = ()


class Leases:
    """Leases of one kind of thing.

    Args:
        slots: where they are stored.
        per_caller: how many one caller may have; 0: any number.
        in_all: how many all callers together may have; 0: any number.
    """

    noun: ClassVar[str]
    """The name of what is leased, for lines of the log."""

    def __init__(self, slots: Slots, *, per_caller: int, in_all: int) -> None:
        self._slots = slots
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
        wanted = [_Wanted(owner, size, token, until_ms) for owner, size in limits.items() if size]
        found = await asyncio.gather(
            *(self._one_of(each) for each in wanted), return_exceptions=True
        )
        lease = Lease(token, tuple(slot for slot in found if isinstance(slot, Slot)))
        if all(isinstance(slot, Slot) for slot in found):
            return lease
        await self.give_back(lease)
        for failure in found:
            if isinstance(failure, UnavailableError):
                text = f"A {self.noun} is not counted: %s"
                logger.warning(text, failure, extra={"action": f"{self.noun}_not_counted"})
                return Lease(token)
            if isinstance(failure, BaseException):
                raise failure
        return None

    async def give_back(self, lease: Lease) -> None:
        """Free the lease's slots; those that cannot be freed now come free when they expire."""
        releases = (self._slots.release(slot, lease.token) for slot in lease.slots)
        for failure in await asyncio.gather(*releases, return_exceptions=True):
            if isinstance(failure, UnavailableError):
                text = f"A {self.noun} is counted until its lease expires: %s"
                logger.warning(text, failure, extra={"action": f"{self.noun}_not_given_back"})
            elif failure is not None:
                raise failure

    async def _one_of(self, wanted: _Wanted) -> Slot | None:
        for _ in range(_GUESSES):
            slot = wanted.slot(random.randrange(wanted.size))  # noqa: S311 - a place, not a secret
            if await self._claim(slot, wanted):
                return slot
        tries = _TRIES
        for room, numbers in wanted.rooms():
            free = sorted(set(numbers) - await self._slots.held(room))
            random.shuffle(free)
            for number in free[:tries]:
                if await self._claim(Slot(room, number), wanted):
                    return Slot(room, number)
            tries -= min(tries, len(free))
            if not tries:
                break
        return None

    async def _claim(self, slot: Slot, wanted: _Wanted) -> bool:
        return await self._slots.claim(slot, wanted.token, until_ms=wanted.until_ms)


class StreamLeases(Leases):
    """Leases of open streams."""

    noun: ClassVar[str] = "stream"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One of an owner's `size` slots."""

    owner: str
    size: int
    token: str
    until_ms: int

    def slot(self, number: int) -> Slot:
        return Slot(f"{self.owner}#{number // SLOTS_A_ROOM}", number)

    def rooms(self) -> Iterator[tuple[str, range]]:
        """Yield the owner's rooms with their slots' numbers, in random order."""
        firsts = list(range(0, self.size, SLOTS_A_ROOM))
        random.shuffle(firsts)
        for first in firsts:
            yield self.slot(first).room, range(first, min(first + SLOTS_A_ROOM, self.size))

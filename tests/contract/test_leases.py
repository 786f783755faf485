"""Leases of open streams, over every backend."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.leases import (
    _GUESSES,
    _SLOTS_A_ROOM,
    _TRIES,
    Lease,
    Leases,
    Slots,
    _Slot,
)
from a2a_serverless.storage.table import Table
from tests.support.clocks import ManualClock
from tests.support.databases import LOCAL, new_scope
from tests.support.present import present


@pytest.fixture
def caller() -> str:
    """A caller that no other test has."""
    return new_scope().digest


@pytest.fixture
def slots(backend: Table, clock: ManualClock) -> Slots:
    return Slots(backend, clock=clock)


def of_callers(slots: Slots, per_caller: int) -> Leases:
    """Leases that count each caller's streams alone."""
    return Leases(slots, per_caller=per_caller, in_all=0)


async def taken(leases: Leases, caller: str, count: int) -> list[Lease]:
    found = [await leases.take(caller, for_s=60) for _ in range(count)]
    return [lease for lease in found if lease is not None]


async def test_a_caller_has_as_many_streams_as_allowed(slots: Slots, caller: str) -> None:
    """Until one is given back; others have their own; the limit 0 allows, and stores, no slots."""
    leases = of_callers(slots, 3)
    first, *_ = held = await taken(leases, caller, 5)
    assert len(held) == 3
    await leases.give_back(first)
    assert len(await taken(leases, caller, 2)) == 1
    assert len(await taken(leases, f"{caller}, another", 4)) == 3
    assert len(await taken(of_callers(slots, 1), "", 3)) == 3
    assert [one.slots for one in await taken(of_callers(slots, 0), caller, 2)] == [(), ()]


async def test_all_callers_have_a_limit_together(slots: Slots, caller: str) -> None:
    """Beyond the common limit a caller is refused, and the refusal keeps none of its own slots."""
    free = [n for n in range(4) if n not in await slots.held("ALL#0")]
    leases = Leases(slots, per_caller=1, in_all=4)
    held = [await leases.take(f"{caller} {n}", for_s=60) for n in range(6)]
    try:
        assert len([lease for lease in held if lease is not None]) == len(free)
        refused = f"{caller} {held.index(None)}"
        assert await of_callers(slots, 1).take(refused, for_s=60) is not None
    finally:
        for lease in held:
            if lease is not None:
                await leases.give_back(lease)


async def test_a_late_end_frees_no_other(slots: Slots, caller: str, clock: ManualClock) -> None:
    """A lease becomes free at its time, and not before; its late stream gives nothing back."""
    leases = of_callers(slots, 2)
    late = await taken(leases, caller, 2)
    clock.advance(59.9)
    assert await taken(leases, caller, 1) == []
    clock.advance(0.1)
    assert len(await taken(leases, caller, 3)) == 2
    for lease in late:
        await leases.give_back(lease)
    assert await taken(leases, caller, 1) == []


async def test_a_claim_is_harmless_twice(slots: Slots, caller: str, clock: ManualClock) -> None:
    """A claim whose answer was lost is repeated, and finds its own token."""
    slot, until = _Slot(caller, 0), clock.now_ms() + 1000
    assert await slots.claim(slot, "mine", until_ms=until)
    assert await slots.claim(slot, "mine", until_ms=until)
    assert not await slots.claim(slot, "another", until_ms=until)
    assert await slots.held(caller) == {0}
    await slots.release(slot, "another")
    assert await slots.held(caller) == {0}
    await slots.release(slot, "mine")
    await slots.release(slot, "mine")
    assert await slots.held(caller) == set()


async def test_more_streams_than_a_room_has_slots(slots: Slots, caller: str) -> None:
    """A limit above the slots of one room holds over several rooms."""
    leases = of_callers(slots, _SLOTS_A_ROOM + 2)
    held = await taken(leases, caller, _SLOTS_A_ROOM + 4)
    assert len(held) == _SLOTS_A_ROOM + 2
    rooms = Counter(slot.room for lease in held for slot in lease.slots)
    assert sorted(rooms.values()) == [2, _SLOTS_A_ROOM]


@pytest.mark.parametrize("slots", ["memory", LOCAL], indirect=True)
async def test_the_limit_is_exact_among_streams_at_once(slots: Slots, caller: str) -> None:
    """Of 40 simultaneous streams no more than the limit get a place; later all places are used."""
    leases = of_callers(slots, 10)
    found = await asyncio.gather(*(leases.take(caller, for_s=60) for _ in range(40)))
    at_once = len([lease for lease in found if lease is not None])
    assert at_once <= 10
    assert at_once + len(await taken(leases, caller, 40)) == 10


class Silent(Slots):
    """A table that does not answer the claims of callers; `is_late`, no release."""

    is_late = False
    error: Exception = UnavailableError("no answer")

    async def claim(self, slot: _Slot, token: str, *, until_ms: int) -> bool:
        if slot.room.startswith("CALLER") and not self.is_late:
            raise self.error
        return await super().claim(slot, token, until_ms=until_ms)

    async def release(self, slot: _Slot, token: str) -> None:
        if self.is_late:
            raise self.error
        await super().release(slot, token)


async def test_a_table_that_does_not_answer_refuses_no_stream(caplog: Any) -> None:
    """The stream is not counted, and no slot of all stays taken; its end is no error either."""
    slots = Silent(MemoryTable(INDEXES))
    lease = present(await Leases(slots, per_caller=1, in_all=1).take("ann", for_s=60))
    assert lease.slots == ()
    assert await slots.held("ALL#0") == set()
    slots.is_late = True
    leases = of_callers(slots, 1)
    (lease,) = await taken(leases, "ann", 1)
    await leases.give_back(lease)
    assert caplog.messages == [
        "A stream is not counted: no answer",
        "A stream is counted until its lease expires: no answer",
    ]


async def test_a_fault_of_the_code_is_raised() -> None:
    """It is no table that does not answer; what of the lease was free comes free."""
    slots = Silent(MemoryTable(INDEXES))
    slots.error = RuntimeError("a fault")
    with pytest.raises(RuntimeError, match="a fault"):
        await Leases(slots, per_caller=1, in_all=1).take("ann", for_s=60)
    assert await slots.held("ALL#0") == set()
    slots.is_late = True
    (lease,) = await taken(of_callers(slots, 1), "ann", 1)
    with pytest.raises(RuntimeError, match="a fault"):
        await of_callers(slots, 1).give_back(lease)


class Beaten(Slots):
    """Slots that another claims first, each time."""

    claims = rooms = 0

    async def claim(self, slot: _Slot, token: str, *, until_ms: int) -> bool:
        self.claims += 1
        return False

    async def held(self, room: str) -> set[int]:
        self.rooms += 1
        return set()


async def test_slots_that_others_take_first_are_tried_a_few_times() -> None:
    """Then there is none: no request goes on through all rooms."""
    slots = Beaten(MemoryTable(INDEXES))
    assert await slots.take("ALL", 5 * _SLOTS_A_ROOM, "token", until_ms=1) is None
    assert (slots.claims, slots.rooms) == (_GUESSES + _TRIES, 1)

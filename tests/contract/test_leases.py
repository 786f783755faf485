"""Leases of open streams, over every backend."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.leases import _SLOTS_A_ROOM, Lease, Leases, Slots, _Slot
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
    """The one above the limit is refused; one that is given back makes room for one."""
    leases = of_callers(slots, 3)
    first, *_ = held = await taken(leases, caller, 5)
    assert len(held) == 3
    await leases.give_back(first)
    assert len(await taken(leases, caller, 2)) == 1


async def test_callers_do_not_take_each_others_places(slots: Slots, caller: str) -> None:
    """A caller that has as many streams as allowed leaves the other callers their places."""
    leases = of_callers(slots, 2)
    assert len(await taken(leases, caller, 3)) == 2
    assert len(await taken(leases, f"{caller}, another", 3)) == 2


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


async def test_callers_that_are_not_known_are_counted_together(slots: Slots) -> None:
    """The limit of a single caller does not apply to callers that are not known."""
    assert len(await taken(of_callers(slots, 1), "", 3)) == 3


async def test_zero_is_no_limit(slots: Slots, caller: str) -> None:
    """With the limit 0 every stream is allowed, and no slot is stored."""
    leases = of_callers(slots, 0)
    assert [lease.slots for lease in await taken(leases, caller, 3)] == [(), (), ()]


async def test_the_leases_of_a_process_that_died_expire(
    slots: Slots, caller: str, clock: ManualClock
) -> None:
    """The leases of a process that has died become free at their time, and not before."""
    leases = of_callers(slots, 2)
    assert len(await taken(leases, caller, 2)) == 2
    clock.advance(59.9)
    assert await taken(leases, caller, 1) == []
    clock.advance(0.1)
    assert len(await taken(leases, caller, 3)) == 2


async def test_a_late_end_frees_no_other_stream(
    slots: Slots, caller: str, clock: ManualClock
) -> None:
    """A stream that outlives its lease gives back nothing of the stream that has its slot now."""
    leases = of_callers(slots, 1)
    (late,) = await taken(leases, caller, 1)
    clock.advance(60)
    assert len(await taken(leases, caller, 1)) == 1
    await leases.give_back(late)
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
async def test_the_limit_is_exact_among_streams_that_open_at_once(
    slots: Slots, caller: str
) -> None:
    """Of 40 simultaneous streams no more than the limit get a place; later all places are used."""
    leases = of_callers(slots, 10)
    found = await asyncio.gather(*(leases.take(caller, for_s=60) for _ in range(40)))
    at_once = len([lease for lease in found if lease is not None])
    assert at_once <= 10
    assert at_once + len(await taken(leases, caller, 40)) == 10


class Silent(Slots):
    """A table that does not answer for the rooms of callers."""

    async def claim(self, slot: _Slot, token: str, *, until_ms: int) -> bool:
        if slot.room.startswith("CALLER"):
            raise UnavailableError("no answer")
        return await super().claim(slot, token, until_ms=until_ms)


async def test_a_table_that_does_not_answer_refuses_no_stream(caplog: Any) -> None:
    """The stream is not counted, the log says so, and no slot of all callers stays taken."""
    slots = Silent(MemoryTable(INDEXES))
    lease = present(await Leases(slots, per_caller=1, in_all=1).take("ann", for_s=60))
    assert lease.slots == ()
    assert await slots.held("ALL#0") == set()
    assert "A stream is not counted: no answer" in caplog.messages


class Stuck(Slots):
    """A table that does not answer where a slot is given back."""

    async def release(self, slot: _Slot, token: str) -> None:
        raise UnavailableError("no answer")


async def test_a_lease_that_cannot_be_given_back_expires(caplog: Any) -> None:
    """The stream's end is no error."""
    slots = Stuck(MemoryTable(INDEXES))
    leases = of_callers(slots, 1)
    (lease,) = await taken(leases, "ann", 1)
    await leases.give_back(lease)
    assert "A stream is counted until its lease expires: no answer" in caplog.messages

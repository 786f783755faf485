"""Callers who share the workers: how long one waits for another, and what stays idle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from a2a_serverless.queues.fifo import Handle
from a2a_serverless.settings import Settings
from a2a_serverless.storage import layout, shares
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.shares import MOST_RECEIVES, Shares
from a2a_serverless.worker.sweeper import MOST_COPIES, MOST_REQUEUED
from tests.support.clocks import ManualClock
from tests.support.databases import LONG
from tests.support.messages import request
from tests.support.present import present
from tests.support.queues import MemoryQueue, left
from tests.support.workers import Agent, complete
from tests.unit.worker.shares import alone, behind, p95, steady, wakes, woken
from tests.unit.worker.stand import Repairs

RUNS = 2 if LONG else 1
MANY = 300 if LONG else 100
"""The turns of one caller that keep ten places busy."""
FLOOD_S = 30 if LONG else 15
"""Seconds of a steady flood."""
BEHIND_S = 4.0
"""Seconds within which a caller's turn starts behind 60 of another on four places, at p95."""


def test_a_caller_does_not_wait_for_all_turns_of_another() -> None:
    """With 4 places, turns of 2 s and 60 messages of A, that of B starts within 4 s (p95)."""
    waits = [behind(4, 60, 2.0, seed=seed) for seed in range(20 if LONG else 2)]
    assert p95(waits) <= BEHIND_S


@pytest.mark.parametrize(("places", "count"), [(4, 60), (10, 300)] if LONG else [(4, 60)])
def test_a_caller_alone_has_all_places(places: int, count: int) -> None:
    """While nobody else waits, the turns of one caller keep 95 % of the places busy."""
    assert alone(places, count, 2.0, seed=0) >= 0.95


@pytest.mark.long
@pytest.mark.parametrize(("rate", "places"), [(20, 4), (60, 10)] if LONG else [(20, 4)])
def test_a_steady_flood_holds_up_no_other_caller(rate: float, places: int) -> None:
    """B's turns start within 5 s (p95), however many messages A sends a second."""
    runs = [steady(rate, FLOOD_S, places=places, turn_s=2.0, seed=seed) for seed in range(RUNS)]
    assert p95([wait for waits, _ in runs for wait in waits]) <= 5
    assert max(receives for _, receives in runs) <= MOST_RECEIVES


def test_turns_that_wake_together_hold_up_no_other_caller() -> None:
    """60 turns of A wake right before one of B: that starts within 5 s of A's first one."""
    waits, of_b = woken(60, places=4, turn_s=1.0, seed=0)
    assert of_b <= min(waits) + 5
    assert max(waits) >= min(waits) + 12


def test_a_sweep_costs_what_it_wakes() -> None:
    """However many turns sleep on, one sweep sends all whose time is over."""
    (idle, _), (requests, sent) = wakes(60, 30)
    assert (sent, idle <= 14, requests <= idle + 1.3 * sent) == (31, True, True)
    assert wakes(0, 30)[1] == (requests, sent)


@pytest.mark.long
@pytest.mark.parametrize(("fault", "least"), [({"lag_s": 0.5}, 0.9), ({"deaths": 0.01}, 0.8)])
def test_what_fails_leaves_no_place_idle_for_long(fault: Mapping[str, Any], least: float) -> None:
    """Indexes half a second late, or a worker's death at each hundredth delivery, cost little."""
    assert alone(10, MANY, 2.0, seed=0, **fault) >= least


class World(Repairs):
    """A storage, its queue, and the shares of a process that has just started."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = Shares(self.storage, self.queue, self.clock, chance=lambda: 0.5)

    async def send(self, user: str = "ann") -> Head:
        head = await self.lose(user)
        await self.queue.send(Operation.to_run(OperationParams.of(head, 1)))
        return head

    async def lose(self, user: str = "ann") -> Head:
        """A message whose turn is on no queue."""
        storage = self.storage.for_scope(Scope.of("", user))
        return (await storage.open_task("ctx", request(), caller=Caller(user=user))).head

    async def parked(self, user: str = "ann", *, at: int | None = None) -> Head:
        """A message whose turn waits for a share, by default from now on."""
        head = await self.lose(user)
        return present(await self.of(head).park(head, "share", at=at))

    def of(self, head: Head) -> DurableStorage:
        return self.storage.for_scope(Scope(head.scope))

    async def receive(self) -> Handle[Operation]:
        (handle,) = await self.queue.pull(1, 0)
        return handle

    async def waiting(self) -> int:
        found = await shares.waiting(self.storage, "", 100)
        return sum(map(len, found.values()))

    def copies(self) -> list[str]:
        return [message.task_id for message in left(self.queue)]


async def test_those_who_wait_are_woken_by_turns() -> None:
    """Of two callers in line the one with fewer turns at work is next, its oldest turn first."""
    world = World()
    users = ("ann", "ann", "ann", "bob", "bob")
    heads = [await world.parked(user, at=at) for at, user in enumerate(users)]
    for _ in heads:
        world.clock.advance(10)
        await world.shares.refill(1)
    ann, bob = [h.task_id for h in heads[:3]], [h.task_id for h in heads[3:]]
    assert (world.copies(), await world.waiting()) == ([ann[0], bob[0], ann[1], bob[1], ann[2]], 0)


async def test_a_woken_turn_without_a_place_stands_in_line_again() -> None:
    """Places that are not free receive its message three times: then it is left where it stood."""
    world = World()
    heads = []
    for _ in range(2):
        heads.append(await world.parked(at=world.clock.now_ms()))
        world.clock.advance(1)
    await world.shares.refill(1)
    await world.send("bob")
    busy = await world.queue.pull(10, 0)
    (bob,) = [handle for handle in busy if handle.message.task_id != heads[0].task_id]
    for handle in busy:
        if handle is not bob:
            await handle.nack()
    world.clock.advance(2)
    for _ in range(MOST_RECEIVES - 1):
        await world.shares.beside(bob, asyncio.Event(), is_late=True)
    found = {handle.message.task_id: handle for handle in await world.queue.pull(10, 0)}
    first = found[heads[0].task_id]
    assert (first.attempt, first.message.params.copy_number) == (1, 2)


async def test_each_idle_place_of_a_process_gets_a_turn_at_once() -> None:
    """Places that become free together are not filled one after the other."""
    world = World()
    await world.send("bob")
    handle = await world.receive()
    for _ in range(9):
        await world.parked()
    world.shares.idle = lambda: 6
    await world.shares.beside(handle, asyncio.Event(), is_late=False)
    assert (len(world.copies()), await world.waiting()) == (7, 3)


async def test_a_dead_worker_keeps_no_share() -> None:
    """A turn taken by a worker that has died counts until its lease ends."""
    world = World()
    head = await world.parked()
    storage = world.of(head)
    requeued = present(await storage.requeue(head))
    assert [each.task_id for each in await shares.requeued(world.storage)] == [head.task_id]
    await storage.commit(requeued, Commit(token="dead", claims=True))
    person = storage.scope.principal
    assert await shares.requeued(world.storage) == []
    assert await shares.taken(world.storage, person) == 1
    world.clock.advance(storage.timing.lease_s + 1)
    assert await shares.taken(world.storage, person) == 0


async def test_a_sweep_sends_few_copies_and_leaves_the_others() -> None:
    """Whether turns are lost or wait for a place: in line they need no copy, and are woken."""
    world = World()
    for _ in range(MOST_COPIES + 20):
        await world.lose()
    world.clock.advance(61)
    report = await world.sweep()
    assert (report.sent, report.parked) == (MOST_COPIES, 20)
    assert len(world.copies()) == MOST_COPIES + MOST_REQUEUED
    world.clock.advance(59)
    again = await world.sweep()
    assert (again.sent, again.parked) == (0, 0)


async def test_the_old_message_of_a_turn_in_line_is_dropped() -> None:
    """It comes when the turn stands in line already: only the turn's next copy starts it."""
    world = World()
    running = await world.send()
    handle = await world.receive()
    old = await world.send()
    assert await world.of(old).park(old, "share") is not None
    world.clock.advance(2)
    await world.shares.beside(handle, asyncio.Event(), is_late=True)
    assert world.copies() == [running.task_id, old.task_id]
    assert [message.params.copy_number for message in left(world.queue)] == [0, 1]


async def test_fresh_turns_behind_a_late_one_are_left_too() -> None:
    """None of them is given back, which would use up a receive, and none overtakes the line."""
    world = World()
    heads = [await world.send(user) for user in ("ann", "ann", "bob")]
    world.clock.advance(2)
    heads += [await world.send(user) for user in ("ann", "bob")]
    handle = await world.receive()
    first = next(head for head in heads if head.task_id == handle.message.task_id)
    assert (await world.shares.admits(handle, first)).head == first
    await world.shares.beside(handle, asyncio.Event(), is_late=True)
    requeued = await shares.requeued(world.storage)
    assert len(requeued) == 1
    assert sorted(world.copies()) == sorted([first.task_id, requeued[0].task_id])
    assert await world.waiting() == 3


async def test_a_place_that_leaves_its_turn_runs_a_woken_one() -> None:
    """A woken turn that is found while the queue is sorted is not given back: a place is free."""
    world = World()
    for user in ("ann", "bob"):
        await world.parked(user, at=0)
    own = await world.send()
    handle = await world.receive()
    await world.shares.refill(1)
    world.clock.advance(2)
    admitted = await world.shares.admits(handle, own)
    assert admitted.head is None
    instead = present(admitted.instead)
    assert (instead.attempt, instead.message.params.copy_number) == (1, 1)


@pytest.mark.parametrize(("turns", "goes"), [(1, "operations"), (2, "quarantine")])
async def test_a_dead_workers_turn_goes_only_to_a_queue_that_is_read(turns: int, goes: str) -> None:
    """Where turns share no worker, the event source of the quarantine queue is disabled."""
    settings = Settings(worker_turns=turns, turn_limit_s=60, max_attempts=3)
    clock = ManualClock()
    queues = {name: MemoryQueue(Operation, clock=clock) for name in ("operations", "quarantine")}
    storage = DurableStorage(MemoryTable(layout.INDEXES), clock=clock)
    backends = replace(memory_backends(settings, clock), storage=storage)
    backends = replace(backends, operations=queues["operations"], quarantine=queues["quarantine"])
    adapter = WorkerAdapter(backends, Agent(complete), settings)
    dead = (await backends.storage.open_task("ctx", request())).head
    await backends.storage.commit(dead, Commit(token="dead", claims=True))
    late = (await backends.storage.open_task("ctx", request())).head
    for head in (late, dead):
        await backends.operations.send(Operation.to_run(OperationParams.of(head, 1)))
    clock.advance(2)
    (handle, _) = await backends.operations.pull(2, 0)
    clock.advance(61)
    await adapter.shares.beside(handle, asyncio.Event(), is_late=True)
    found = {name: [m.task_id for m in left(queue)] for name, queue in queues.items()}
    assert [name for name, tasks in found.items() if dead.task_id in tasks] == [goes]

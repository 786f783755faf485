"""The looks at the tasks of running turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskState

from a2a_serverless.errors import ConcurrencyError
from a2a_serverless.storage.durable import LOOK_AT_ONCE, DurableStorage
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.lease import HeadPoller
from tests.support.workers import Agent, Bench, PacedClock, _InlineHeartbeat, complete, lease_of
from tests.unit.tasks.heads import asked, opened

SHOWN = opened()


class Moody:
    """A log whose first look is an error that no repetition mends."""

    def __init__(self) -> None:
        self.looks: list[int] = []

    async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Head | None]:
        self.looks.append(len(tasks))
        if len(self.looks) == 1:
            raise RuntimeError("ExpiredToken")
        return dict.fromkeys(tasks, SHOWN)


@dataclass(eq=False)
class Task:
    """A task that is looked at."""

    task_id: str
    on_head: Callable[[Head | None], Awaitable[None]]

    @property
    def key(self) -> TaskKey:
        return "s", self.task_id


async def test_a_failed_look_does_not_end_the_looks() -> None:
    """A look that raises does not end them: the next look sees the cancel."""
    clock, moody, heard = PacedClock(), Moody(), asyncio.Event()

    async def on_head(head: Head | None) -> None:
        assert head is SHOWN
        heard.set()

    poller = HeadPoller(cast("Any", moody), clock)
    async with _InlineHeartbeat().over(partial(poller.over, Task("t", on_head))):
        await clock.pass_time(1)
        assert not heard.is_set()
        await clock.pass_time(1)
        await heard.wait()


async def test_what_fails_beside_the_looks_does_not_end_them() -> None:
    """A process that cannot tell that it works still hears of a cancel."""
    clock, moody, heard = PacedClock(), Moody(), asyncio.Event()
    moody.looks.append(0)

    async def beside() -> None:
        raise RuntimeError("can't start new thread")

    async def on_head(_head: Head | None) -> None:
        heard.set()

    poller = HeadPoller(cast("Any", moody), clock, beside=beside)
    async with _InlineHeartbeat().over(partial(poller.over, Task("t", on_head))):
        await clock.pass_time(1)
        assert heard.is_set()


async def test_one_look_serves_a_hundred_turns() -> None:
    """220 turns, and one of them twice, cost three requests a second, whenever they began."""
    clock, moody = PacedClock(), Moody()
    poller = HeadPoller(cast("Any", moody), clock)
    turns = [partial(poller.over, Task(f"t{n % 220}", _ignore)) for n in range(221)]
    async with _InlineHeartbeat().over(*turns[:100]):
        await clock.pass_time(0.4)
        async with _InlineHeartbeat().over(*turns[100:]):
            await clock.pass_time(0.6)
            assert sorted(moody.looks, reverse=True) == [LOOK_AT_ONCE, LOOK_AT_ONCE, 20]
    await clock.pass_time(5)
    assert len(moody.looks) == 3


async def test_no_look_begins_while_another_is_under_way() -> None:
    """A table that is slow, or away, gets one look at a time, however many turns run."""
    clock, release, looks = PacedClock(), asyncio.Event(), list[float]()

    class Slow:
        async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Head | None]:
            looks.append(clock.monotonic())
            await release.wait()
            return dict.fromkeys(tasks, SHOWN)

    shared = HeadPoller(cast("Any", Slow()), clock)
    turns = [partial(shared.over, Task(f"t{n}", _ignore)) for n in range(3)]
    async with _InlineHeartbeat().over(*turns):
        await clock.pass_time(5.5)
        assert looks == [1]
        release.set()
        await clock.pass_time(1)
        assert looks == [1, 6.5]


async def test_a_turn_that_raises_does_not_blind_the_others() -> None:
    """If one turn raises at its look, the other turns still get theirs."""
    clock, moody, heard = PacedClock(), Moody(), asyncio.Event()
    moody.looks.append(0)

    async def fails(_head: Head | None) -> None:
        raise RuntimeError

    async def hears(_head: Head | None) -> None:
        heard.set()

    poller = HeadPoller(cast("Any", moody), clock)
    turns = [partial(poller.over, Task("bad", fails)), partial(poller.over, Task("good", hears))]
    async with _InlineHeartbeat().over(*turns):
        await clock.pass_time(1)
        assert heard.is_set()


class Late:
    """A log whose looks are older than the tasks: they show none, or one that had the id before."""

    def __init__(self, shown: Head | None) -> None:
        self.shown = shown
        self.looks = 0

    async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Head | None]:
        self.looks += 1
        return dict.fromkeys(tasks, self.shown)


@pytest.mark.parametrize("shown", [None, asked(opened("earlier"))], ids=["none", "an earlier task"])
async def test_a_late_look_stops_no_turn(shown: Head | None) -> None:
    """A late look, at no HEAD or at an earlier task's, stops no turn."""
    clock, release, late = PacedClock(), asyncio.Event(), Late(shown)

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await release.wait()
        await complete(context, queue)

    bench = Bench(Agent(execute), clock=clock)
    bench.adapter.poller = HeadPoller(cast("Any", late), clock)
    head = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(3)
    assert late.looks == 3
    release.set()
    assert await working
    assert (await bench.task(head)).status.state == TaskState.TASK_STATE_COMPLETED


async def test_a_cancel_is_heard_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent agent hears of it, and no commit is refused: the look has shown its HEAD."""
    clock = PacedClock()

    async def execute(_context: RequestContext, _queue: EventQueue) -> None:
        await asyncio.Event().wait()

    agent = Agent(execute)
    bench = Bench(agent, clock=clock)
    refused: list[object] = []
    commit = DurableStorage.commit

    async def watched(self: DurableStorage, head: Head, wanted: Commit) -> Head:
        try:
            return await commit(self, head, wanted)
        except ConcurrencyError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(DurableStorage, "commit", watched)
    head = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(1)
    assert agent.started
    await bench.storage.request_cancel(head.task_id)
    await clock.pass_time(1)
    assert await working
    assert (await bench.task(head)).status.state == TaskState.TASK_STATE_CANCELED
    assert refused == []


async def test_a_look_at_its_own_end_stops_no_agent() -> None:
    """An agent that goes on after it has ended its turn comes to its own end."""
    clock, cleaned = PacedClock(), list[float]()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await complete(context, queue)
        await clock.sleep(3)
        cleaned.append(clock.monotonic())

    bench = Bench(Agent(execute), clock=clock)
    await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(4)
    assert await working
    assert cleaned == [3]


async def test_a_look_from_before_a_cancel_takes_nothing_back() -> None:
    """A look that is older than what is known, though of the same version, changes nothing."""
    bench = Bench(Agent(complete))
    task = await bench.send()
    lease = lease_of(bench.storage, task)
    await bench.storage.request_cancel(task.task_id)
    canceled = await bench.head(task)
    for look in (canceled, task):
        await lease.on_head(look)
        assert lease.head == canceled


async def _ignore(_head: Head | None) -> None:
    pass

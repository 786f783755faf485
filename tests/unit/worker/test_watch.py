"""The watch over running turns."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskState

from a2a_serverless.errors import ConcurrencyError
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.log import LOOK_AT_ONCE, TaskKey
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.watch import Watch, Watched
from tests.support.workers import Agent, Bench, PacedClock, complete
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


async def test_a_failed_look_does_not_end_the_watch() -> None:
    """A look that raises does not end the watch: the next look sees the cancel."""
    clock, moody, heard = PacedClock(), Moody(), asyncio.Event()

    async def on_look(head: Head | None) -> None:
        assert head is SHOWN
        heard.set()

    async with Watch(cast("Any", moody), clock).over(Watched(key=("s", "t"), on_look=on_look)):
        await clock.pass_time(1)
        assert not heard.is_set()
        await clock.pass_time(1)
        await heard.wait()


async def test_one_look_serves_a_hundred_turns() -> None:
    """220 watched turns, and one of them twice, cost three requests a second."""
    clock, moody = PacedClock(), Moody()
    watch = Watch(cast("Any", moody), clock)
    turns = [Watched(key=("s", f"t{n % 220}"), on_look=_ignore) for n in range(221)]
    for turn in turns:
        watch.add(turn)
    await clock.pass_time(1)
    assert sorted(moody.looks, reverse=True) == [LOOK_AT_ONCE, LOOK_AT_ONCE, 20]
    for turn in turns:
        await watch.remove(turn)
    await clock.pass_time(5)
    assert len(moody.looks) == 3


async def test_a_turn_that_raises_does_not_blind_the_others() -> None:
    """If one turn raises at its look, the other turns still get theirs."""
    clock, moody, heard = PacedClock(), Moody(), asyncio.Event()
    moody.looks.append(0)

    async def fails(_head: Head | None) -> None:
        raise RuntimeError

    async def hears(_head: Head | None) -> None:
        heard.set()

    watch = Watch(cast("Any", moody), clock)
    bad, good = Watched(key=("s", "bad"), on_look=fails), Watched(key=("s", "good"), on_look=hears)
    async with watch.over(bad), watch.over(good):
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
    bench.adapter.beside = replace(bench.adapter.beside, watch=Watch(cast("Any", late), clock))
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


async def _ignore(_head: Head | None) -> None:
    pass

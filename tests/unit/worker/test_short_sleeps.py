"""Sleeps of less than a minute: no attempt sleeps again what is over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest

from a2a_serverless.tasks.entries import Recorded
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.turn import BUSY_S
from a2a_serverless_tools.testing import AgentBench, Run, step
from a2a_serverless_tools.testing.run import When
from tests.support.clocks import ManualClock
from tests.support.databases import LONG
from tests.support.workers import PacedClock, S
from tests.unit.worker.test_steps import Stand

MINUTE, WORKER_S = 60, 900
DAY_S = 12 * 3600
POLLS = [
    (5, 1200, 0, WORKER_S),
    (30, 3600, 0, DAY_S),
    (59, 1200, 5, WORKER_S),
    (60, 1200, 0, WORKER_S),
    (120, 10_800, 5, WORKER_S),
]
if LONG:
    EVERY_S = (1, 5, 15, 30, 45, 59, 60, 61, 90, 120)
    POLLS += product(EVERY_S, (1200, 3600, 10_800), (0, 5), [WORKER_S])
"""The seconds between two looks, those of the job, of a look, and of a worker."""

Handle = Callable[[TaskContext, "Played"], Awaitable[None]]


class Played:
    """A turn on the testing kit: what its agent has done, and how it came out."""

    def __init__(self, handle: Handle, *, kill_after: When | None = None, **settings: Any) -> None:
        self.ran: list[str] = []
        self.heard: list[str] = []
        played = self

        class Script(Worker):
            async def handle(self, ctx: TaskContext) -> None:
                try:
                    await handle(ctx, played)
                except BaseException as error:
                    played.heard.append(type(error).__name__)
                    raise

        with AgentBench(Script, timeout_s=600, max_attempts=2, **settings) as self.bench:
            self.run: Run = self.bench.send("go", kill_after=kill_after)
        self.took_s = round(self.bench.clock.monotonic())

    async def does(self, name: str, seconds: float = 0) -> str:
        self.ran.append(name)
        await self.bench.clock.sleep(seconds)
        return name

    async def asks(self, seconds: float, until: float) -> bool:
        """Ask for a job that is over at `until`; the answer takes so many seconds."""
        await self.does("ask", seconds)
        return self.bench.clock.monotonic() >= until


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("every_s", "takes_s", "ask_s", "run_limit_s"), POLLS)
def test_a_poll_ends_when_its_job_has(
    every_s: int, takes_s: int, ask_s: int, run_limit_s: int
) -> None:
    """The loop that everybody writes, in workers of fifteen minutes too: no look is lost."""

    async def handle(ctx: TaskContext, played: Played) -> None:
        while not await ctx.step("ask", played.asks, ask_s, takes_s):
            await ctx.sleep(every_s)
        await ctx.complete("done")

    played = Played(handle, run_limit_s=run_limit_s)
    looks = -(-takes_s // (every_s + ask_s)) + 1
    slack_s = MINUTE * (looks if every_s > MINUTE else takes_s // WORKER_S + 1)
    assert played.run.state == "completed", played.run
    assert takes_s <= played.took_s <= takes_s + every_s + ask_s + slack_s
    assert looks - slack_s / every_s <= len(played.ran) <= looks
    assert set(played.heard) <= {"TurnParked"}
    if every_s < MINUTE:
        assert played.run.attempts <= takes_s // (run_limit_s - 2 * MINUTE) + 2


@pytest.mark.long
@pytest.mark.parametrize("key", ["", "a"])
@pytest.mark.parametrize("in_task", [False, True])
def test_polls_in_tasks_end_as_well(key: str, *, in_task: bool) -> None:
    """Without a key, a sleep is known by the last step of its task."""

    async def poll(ctx: TaskContext, played: Played, name: str) -> None:
        while not await ctx.step("ask", played.asks, 0, 2000, key=name):
            await ctx.sleep(45, key=key and name)

    async def handle(ctx: TaskContext, played: Played) -> None:
        names = "abc" if in_task else "a"
        await ctx.gather(*(poll(ctx, played, name) for name in names))
        await ctx.complete("done")

    played = Played(handle)
    assert played.run.state == "completed"
    assert played.took_s <= 2000 + 45 + 3 * MINUTE
    assert played.run.attempts <= 4


@pytest.mark.long
@pytest.mark.parametrize("kill_after", [None, step("ctx.sleep", number=30)])
def test_sleeps_without_a_step_end(kill_after: When | None) -> None:
    """Those of a minute together are a record: a worker that dies loses no more than that."""

    async def handle(ctx: TaskContext, played: Played) -> None:
        for number in range(200):
            await ctx.sleep(20)
            played.ran.append(str(number))
        await ctx.complete("done")

    lost_s = 0 if kill_after is None else WORKER_S + MINUTE  # its message comes back
    played = Played(handle, kill_after=kill_after, visibility_s=WORKER_S)
    assert played.run.state == "completed"
    assert 4000 <= played.took_s <= 4000 + 6 * MINUTE + lost_s
    assert played.run.attempts <= 7
    assert len(played.run.steps) <= 70


@pytest.mark.parametrize("kill_after", [step("one"), step("ctx.sleep", number=2)])
def test_a_killed_worker_sleeps_again_what_no_record_has(kill_after: When) -> None:
    """The sleeps before a record are over; those behind it are as if they had not begun."""
    slept: list[float] = []

    async def handle(ctx: TaskContext, played: Played) -> None:
        began = played.bench.clock.monotonic()
        await ctx.sleep(10)
        await ctx.sleep(0)
        await ctx.sleep(15)
        await ctx.step("one", played.does, "one")
        await ctx.sleep(30)
        slept.append(played.bench.clock.monotonic() - began)
        await ctx.step("two", played.does, "two", 1)
        await ctx.complete("done")

    played = Played(handle, kill_after=kill_after)
    assert (played.run.state, played.ran, slept) == ("completed", ["one", "two"], [30])
    # The three before it are one record.
    assert played.run.steps == ("ctx.sleep", "one", "ctx.sleep", "two")


async def recorded(stand: Stand) -> list[tuple[str, int, int]]:
    """The records: their names, their numbers, and the sleeps that one has beside its own."""
    records = await stand.bench.records(stand.task)
    entries = [e for r in records for e in r.entries if isinstance(e, Recorded)]
    untils = [json.loads(e.value)[1] if e.form == "until" else 0 for e in entries]
    return [(e.id.name, e.id.number, before) for e, before in zip(entries, untils, strict=True)]


async def test_a_sleep_that_was_cut_off_is_no_fact() -> None:
    """The agent's own time-out ends it each time; the sleeps beside it keep their numbers."""
    seen: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.sleep(1)
        napping = asyncio.ensure_future(ctx.sleep(50, key="cut"))
        await asyncio.sleep(0)
        napping.cancel()
        await asyncio.wait({napping})
        await ctx.sleep(2)
        await ctx.step("one", len, "")
        if stand.script.starts == 1:
            raise LookupError
        seen.append(str(napping.cancelled()))
        await ctx.complete()

    stand = Stand(handle, clock=PacedClock())
    await stand.send()
    working = asyncio.create_task(stand.work())
    while not working.done():
        await stand.last(1)
    assert ((await working).state, seen) == (S.TASK_STATE_COMPLETED, ["True"])
    assert await recorded(stand) == [("ctx.sleep", 2, 1), ("one", 1, 0)]


async def test_a_record_waits_for_the_step_whose_chunks_are_seen() -> None:
    """Sleeps of a minute beside it are recorded with it: its chunks are never said twice."""

    async def says(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("one ", "a")
        await done.wait()
        await ctx.emit_text_artifact("two", "a", append=True)

    async def naps(ctx: TaskContext) -> None:
        for _ in range(4):
            await ctx.sleep(30, key="naps")
        done.set()

    async def handle(ctx: TaskContext) -> None:
        await ctx.gather(ctx.step("say", says, ctx), naps(ctx))
        await ctx.complete()

    done, stand = asyncio.Event(), Stand(handle, clock=ManualClock())
    await stand.send()
    assert (await stand.work()).state == S.TASK_STATE_COMPLETED
    assert await recorded(stand) == [("ctx.sleep", 4, 3), ("say", 1, 0)]


class HeardClock(ManualClock):
    """A manual clock that keeps the seconds of each sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await super().sleep(seconds)


async def test_a_thread_does_not_sleep_again() -> None:
    """With a key, also a sleep of more than a minute, which no thread can leave: it polls."""
    sleeps: list[set[float]] = []

    def blocking(ctx: TaskContext) -> None:
        async def napping() -> None:
            await ctx.sleep(30.5, key="short")
            await ctx.sleep(5_000, key="long")

        asyncio.run(napping())

    async def handle(ctx: TaskContext) -> None:
        clock.slept.clear()
        await ctx.run_sync(blocking, ctx)
        sleeps.append({30.5, BUSY_S}.intersection(clock.slept))
        if stand.script.starts == 1:
            raise LookupError
        await ctx.complete()

    clock = HeardClock()
    stand = Stand(handle, clock=clock)
    await stand.send()
    assert (await stand.work()).state == S.TASK_STATE_COMPLETED
    assert sleeps == [{30.5, BUSY_S}, set()]


async def test_a_sleep_until_a_time_leaves_a_worker_that_ends_before() -> None:
    """Near the end of its worker a turn with records goes on in the next one."""
    woke: list[float] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.step("long", stand.last, 100)
        await ctx.sleep_until(datetime.fromtimestamp(until, UTC))
        woke.append(stand.clock.now_ms() / 1000 - until)
        await ctx.complete()

    stand = Stand(handle, clock=PacedClock(), max_attempts=1)
    until = stand.clock.now_ms() / 1000 + 150
    await stand.send()
    assert (await stand.work(deadline_s=240)).turn.parked == "asleep"
    await stand.pass_time(51)
    assert (await stand.work()).state == S.TASK_STATE_COMPLETED
    assert 0 <= woke[0] < MINUTE


@pytest.mark.parametrize("has_records", [False, True])
async def test_a_worker_that_is_told_to_stop_leaves_at_a_sleep(*, has_records: bool) -> None:
    """A turn with records does; one without runs to its end, as it would start over."""

    async def handle(ctx: TaskContext) -> None:
        if has_records:
            await ctx.step("one", len, "")
        stand.queue.is_closed = stand.script.starts == 1
        await ctx.sleep(50)
        await ctx.complete()

    stand = Stand(handle, clock=ManualClock())
    await stand.send()
    await stand.bench.adapter.process(await stand.bench.deliver())
    head = await stand.head()
    assert head.turn.parked == ("asleep" if has_records else "")
    assert head.is_terminal != has_records


async def test_short_sleeps_alone_are_not_recorded() -> None:
    """An agent without steps that sleeps for less than a minute in all is as it was."""

    async def handle(ctx: TaskContext) -> None:
        for _ in range(59):
            await ctx.sleep(1)
        await ctx.complete()

    stand = Stand(handle, clock=ManualClock())
    await stand.send()
    head = await stand.work()
    assert (head.turn.checkpoint, head.needs) == (0, 0)
    assert await recorded(stand) == []

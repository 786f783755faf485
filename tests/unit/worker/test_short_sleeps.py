"""Sleeps of less than a minute: no attempt sleeps again what is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import product
from typing import Any
from unittest.mock import AsyncMock

import pytest

from a2a_serverless.worker import RetryLater, StepError, TaskContext, WaitTimeoutError, Worker
from a2a_serverless.worker.turn import BUSY_S
from a2a_serverless_tools.testing import AgentBench, Run, step
from a2a_serverless_tools.testing.run import When
from tests.support.clocks import ManualClock
from tests.support.databases import LONG
from tests.support.workers import S
from tests.unit.worker.stand import Stand, sent

MINUTE, WORKER_S = 60, 900
DAY_S = 12 * 3600
POLLS = [(30, 1200, 0, DAY_S), (59, 1200, 5, WORKER_S), (120, 3600, 5, WORKER_S)]
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

    stand = Stand(handle, max_attempts=1)
    until = stand.clock.now_ms() / 1000 + 150
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

    stand = await sent(handle, clock=ManualClock())
    await stand.bench.adapter.process(await stand.bench.deliver())
    head = await stand.head()
    assert head.turn.parked == ("asleep" if has_records else "")
    assert head.is_terminal != has_records


# -- polls ---------------------------------------------------------------------------------------


class Job:
    """A job that is done at a second of the clock; `looks` are the seconds of the looks at it."""

    def __init__(self, done_at: float) -> None:
        self.done_at = done_at
        self.looks: list[int] = []

    async def look(self, played: Played) -> str | None:
        self.looks.append(round(played.bench.clock.monotonic()))
        return "done" if self.looks[-1] >= self.done_at else None

    def polled(self, **options: Any) -> Handle:
        async def handle(ctx: TaskContext, played: Played) -> None:
            await ctx.step("begin", lambda: None)
            try:
                said = await ctx.poll("export", self.look, played, **options)
            except WaitTimeoutError:
                said = "late"
            await ctx.step("behind", played.does, "behind")
            await ctx.complete(said)

        return handle


def final(played: Played) -> str:
    return str(played.run.artifacts["final-answer"].text)


@pytest.mark.parametrize(
    ("done_at", "options", "looks", "leaves"),
    [
        (30, {"every_s": 10}, [0, 10, 20, 30], 0),
        (100, {"every_s": 60}, 3, 2),
        (40, {"every_s": 4, "cap_s": 9}, [0, 4, 10, 19, 28, 37, 46], 0),
    ],
    ids=["seconds", "minutes", "growing"],
)
def test_a_poll_looks_until_its_job_is_done(
    done_at: int, options: dict[str, Any], looks: Any, leaves: int
) -> None:
    """Looks that find nothing write nothing; waits grow by half to their cap, and hold nobody."""
    job = Job(done_at)
    played = Played(job.polled(**options))
    assert (final(played), played.heard) == ("done", ["TurnParked"] * leaves)
    assert looks in (job.looks, len(job.looks))


@pytest.mark.parametrize("every_s", [20, 100], ids=["in one process", "over several"])
def test_a_time_out_comes_at_its_time_and_stays(every_s: int) -> None:
    """The last look is made then; an attempt that comes later is told the same, and looks not."""
    job = Job(10**9)
    played = Played(job.polled(every_s=every_s, timeout_s=150), kill_after=step("behind"))
    assert (final(played), played.ran) == ("late", ["behind"])
    assert 150 <= job.looks[-1] < 150 + 2 * 60
    assert len(job.looks) == 1 + -(-150 // every_s)


def test_a_fault_that_passes_is_a_look_that_found_nothing() -> None:
    """It is not told to the agent; any other exception is, as a step's."""
    raised: list[Exception] = [RetryLater(5, "busy"), ConnectionError("away"), ValueError("no")]

    async def handle(ctx: TaskContext, played: Played) -> None:
        del played
        with pytest.raises(StepError, match="ValueError: no"):
            await ctx.poll("export", AsyncMock(side_effect=raised), every_s=1)
        await ctx.complete("told")

    assert final(Played(handle)) == "told"

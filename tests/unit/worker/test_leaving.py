"""Turns that leave their process in all kinds of code; and sleeps that none sleeps again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from itertools import cycle, product
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless import steps
from a2a_serverless.steps import TurnParked
from a2a_serverless.tasks.head import Head
from a2a_serverless.worker import RetryLater, StepError, TaskContext, WaitTimeoutError, Worker
from a2a_serverless.worker.turn import BUSY_S
from a2a_serverless_tools.testing import AgentBench, Run, step
from a2a_serverless_tools.testing.run import When
from tests.support.clocks import ManualClock
from tests.support.databases import LONG
from tests.support.workers import Agent, S, complete
from tests.unit.worker.stand import Log, Stand, run, sent

Leaf = Callable[..., Coroutine[Any, Any, None]]
"""Leaves the turn; `key` tells two of them apart."""


# -- shapes of code ------------------------------------------------------------------------


async def timeout(leaf: Leaf) -> None:
    async with asyncio.timeout(1_000):
        await leaf()


async def task_group(leaf: Leaf) -> None:
    async with asyncio.TaskGroup() as group:
        for key in "abc":
            group.create_task(leaf(key))


async def anyio_group(leaf: Leaf) -> None:
    async with anyio.create_task_group() as group:
        for key in "abc":
            group.start_soon(leaf, key)


async def anyio_move_on(leaf: Leaf) -> None:
    with anyio.move_on_after(1_000):
        await leaf()


async def except_cancelled(leaf: Leaf) -> None:
    try:
        await leaf()
    except asyncio.CancelledError:
        raise AssertionError("It is taken for a cancel.") from None


async def tried_again(leaf: Leaf) -> None:
    for _ in range(3):
        try:
            await leaf()
        except Exception:  # noqa: BLE001, S112 - the shape
            continue
        break


async def generator(leaf: Leaf) -> None:
    async def given() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)

    async with contextlib.aclosing(given()) as numbers:
        async for _ in numbers:
            await leaf()


async def bare_except(leaf: Leaf) -> None:
    try:
        await leaf()
    except:  # noqa: E722 - the shape
        return


def kind_of(error: BaseException) -> str:
    """The class of an error; of a group, that of its members, if they have one."""
    if isinstance(error, BaseExceptionGroup):
        return "group of " + " and ".join(sorted({kind_of(each) for each in error.exceptions}))
    return type(error).__name__


async def slept(ctx: TaskContext, key: str) -> None:
    await ctx.sleep(3600, key=key)


async def stepped(ctx: TaskContext, key: str) -> None:
    """The record of one step hands the turn over; the others sleep beside it."""
    if key in {"b", "c"}:
        await ctx.sleep(50, key=key)
    else:
        await ctx.step("part", asyncio.sleep, 0, key=key)


SHAPES: list[tuple[Callable[[Leaf], Awaitable[object]], str]] = [
    (lambda leaf: leaf(), "TurnParked"),
    (lambda leaf: asyncio.ensure_future(leaf("child")), "TurnParked"),
    (lambda leaf: asyncio.gather(leaf("a"), leaf("b"), leaf("c")), "TurnParked"),
    *((each, "TurnParked") for each in (timeout, anyio_move_on, except_cancelled)),
    *((each, "TurnParked") for each in (tried_again, generator)),
    *((each, "group of TurnParked") for each in (task_group, anyio_group)),
    (lambda leaf: asyncio.gather(leaf("a"), leaf("b"), return_exceptions=True), "went on"),
    (bare_except, "went on"),
]


@pytest.mark.parametrize(
    ("shape", "ends", "leaves"),
    [(*each, leaves) for each, leaves in zip(SHAPES, cycle([slept, stepped]), strict=False)],
)
async def test_leaving_is_no_cancel(shape: Any, ends: str, leaves: Any, caplog: Log) -> None:
    """TurnParked comes out of each call of `ctx`; `finally` runs, and the turn goes on."""
    heard, ended = list[str](), list[str]()

    async def handle(ctx: TaskContext) -> None:
        async def leaf(key: str = "") -> None:
            try:
                await leaves(ctx, key)
            except BaseException as error:
                heard.append(type(error).__name__)
                raise
            finally:
                await asyncio.sleep(0)
                heard.append("finally")

        try:
            await shape(leaf)
            ended.append("went on")
        except BaseException as error:
            ended.append(kind_of(error))
            raise
        with pytest.raises(TurnParked) if stand.script.starts == 1 else contextlib.nullcontext():
            await ctx.send_status("more")
        await ctx.complete("done")

    caplog.set_level(logging.INFO)
    stand = Stand(handle)
    head = await left_by(stand, is_handed_over=leaves is stepped)
    assert (ended, set(heard)) == ([ends], {"TurnParked", "finally"})
    assert (heard.count("TurnParked"), head.turn.attempts) == (heard.count("finally"), 0)
    assert not [line for line in caplog.records if line.levelno > logging.INFO], caplog.text
    await stand.pass_time(3600)
    working = asyncio.create_task(stand.work())
    while not working.done():
        await stand.last(10)
    head = await working
    assert (head.state, stand.script.starts) == (S.TASK_STATE_COMPLETED, 2)
    assert heard[2 * heard.count("TurnParked") :] == ["finally"] * heard.count("TurnParked")


async def left_by(stand: Stand, *, is_handed_over: bool = False) -> Head:
    """Run a turn until it has left its process."""
    await stand.send()
    handle = await stand.bench.deliver()
    stand.queue.is_closed = is_handed_over
    await stand.bench.adapter.process(handle)
    stand.queue.is_closed = False
    assert (await stand.released()).reason == ("handover" if is_handed_over else "asleep")
    return await stand.head()


CALLS: dict[str, Callable[[TaskContext], Awaitable[Any]]] = {
    "step": lambda ctx: ctx.step("after", len, ""),
    "sleep": lambda ctx: ctx.sleep(0),
    "sleep_until": lambda ctx: ctx.sleep(3600),
    "run_sync": lambda ctx: ctx.run_sync(len, ""),
    "gather": lambda ctx: ctx.gather(ctx.load_context()),
    "load_context": lambda ctx: ctx.load_context(),
    "update_context": lambda ctx: ctx.update_context(1),
    "emit_text_artifact": lambda ctx: ctx.emit_text_artifact("more"),
    "send_status": lambda ctx: ctx.send_status("more"),
    "complete": lambda ctx: ctx.complete("more"),
    "fail": lambda ctx: ctx.fail("more"),
}


async def test_each_call_says_that_the_turn_has_left() -> None:
    """Also those of a thread: none of them does anything, and none waits."""
    heard, did = list[str](), list[str]()

    async def handle(ctx: TaskContext) -> None:
        def in_thread() -> None:
            for name, call in CALLS.items():
                try:
                    asyncio.run(_awaited(call(ctx)))
                except TurnParked:
                    heard.append(f"{name} in a thread")

        with contextlib.suppress(TurnParked):
            await ctx.sleep(3600)
            did.append("slept")
        if stand.script.starts > 1:
            return await ctx.complete("done")
        for name, call in CALLS.items():
            with contextlib.suppress(TurnParked):
                await call(ctx)
                did.append(name)
        await asyncio.get_running_loop().run_in_executor(None, in_thread)
        raise LookupError("what it raises does not count")

    stand = Stand(handle)
    await left_by(stand)
    assert (did, heard) == ([], [f"{name} in a thread" for name in CALLS])
    await stand.pass_time(3600)
    head = await stand.work()
    assert (head.state, head.turn.attempts) == (S.TASK_STATE_COMPLETED, 1)


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


async def test_an_agent_that_does_not_leave_is_cancelled() -> None:
    """A second after its turn has left; what it waits for is none of `ctx`."""
    heard: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        if stand.script.starts > 1:
            return await ctx.complete("done")
        with pytest.raises(TurnParked):
            await ctx.sleep(3600)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    stand = Stand(handle, clock=ManualClock())
    began = stand.clock.monotonic()
    await left_by(stand)
    assert heard == ["cancelled"]
    assert stand.clock.monotonic() - began >= 1


async def test_executors_of_the_sdk_leave_as_workers_do() -> None:
    """What they emit after it is refused in the same way."""
    heard: list[str] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        with pytest.raises(steps.TurnParked):
            await steps.sleep(3600)
        heard.append("left")
        await complete(context, queue)
        heard.append("went on")

    _, head = await run(Agent(execute))
    assert heard == ["left"]
    assert (head.turn.parked, head.state) == ("asleep", S.TASK_STATE_WORKING)


# -- sleeps of less than a minute, and polls -----------------------------------------------------


MINUTE, WORKER_S = 60, 900
DAY_S = 12 * 3600
POLLS = [(30, 1200, 0, DAY_S), (59, 1200, 5, WORKER_S), (120, 3600, 5, WORKER_S)]
if LONG:
    EVERY_S = (1, 5, 15, 30, 45, 59, 60, 61, 90, 120)
    POLLS += product(EVERY_S, (1200, 3600, 10_800), (0, 5), [WORKER_S])
"""The seconds between two looks, those of the job, of a look, and of a worker."""

Plays = Callable[[TaskContext, "Played"], Awaitable[None]]


class Played:
    """A turn on the testing kit: what its agent has done, and how it came out."""

    def __init__(self, handle: Plays, *, kill_after: When | None = None, **settings: Any) -> None:
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
def test_a_poll_ends_with_its_job(every_s: int, takes_s: int, ask_s: int, run_limit_s: int) -> None:
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


async def test_a_thread_does_not_sleep_again() -> None:
    """With a key, also a sleep of more than a minute, which no thread can leave: it polls."""
    sleeps: list[set[float]] = []

    def blocking(ctx: TaskContext) -> None:
        async def napping() -> None:
            await ctx.sleep(30.5, key="short")
            await ctx.sleep(5_000, key="long")

        asyncio.run(napping())

    async def handle(ctx: TaskContext) -> None:
        sleep.reset_mock()
        await ctx.run_sync(blocking, ctx)
        sleeps.append({30.5, BUSY_S}.intersection(call.args[0] for call in sleep.await_args_list))
        if stand.script.starts == 1:
            raise LookupError
        await ctx.complete()

    clock = ManualClock()
    clock.sleep = sleep = AsyncMock(wraps=clock.sleep)  # type: ignore[method-assign]
    stand = Stand(handle, clock=clock)
    assert ((await stand.work()).state, sleeps) == (S.TASK_STATE_COMPLETED, [{30.5, BUSY_S}, set()])


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

    def polled(self, **options: Any) -> Plays:
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
def test_a_poll_looks_until_it_is_done(done_at: int, options: Any, looks: Any, leaves: int) -> None:
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

"""Polls: looks in one process and over several, what they write, and the end of their time."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_serverless import steps
from a2a_serverless.worker import RetryLater, StepError, TaskContext, WaitTimeoutError
from a2a_serverless.worker.failures import WrongCallError
from a2a_serverless_tools.testing import step
from tests.support.workers import S
from tests.unit.worker.test_short_sleeps import Handle, Played
from tests.unit.worker.test_steps import run


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


def test_a_poll_of_seconds_stays_in_its_process() -> None:
    """Looks that find nothing write nothing: the code is called once, and each is made once."""
    job = Job(30)
    played = Played(job.polled(every_s=10))
    assert (job.looks, final(played), played.heard) == ([0, 10, 20, 30], "done", [])


def test_a_poll_of_minutes_holds_no_process() -> None:
    """Each wait is a sleep, and no look that was made is made again."""
    job = Job(100)
    played = Played(job.polled(every_s=60))
    assert (final(played), len(job.looks)) == ("done", 3)
    assert played.heard == ["TurnParked"] * 2


def test_the_waits_grow_up_to_their_cap() -> None:
    """By half each."""
    job = Job(40)
    Played(job.polled(every_s=4, cap_s=9))
    assert job.looks == [0, 4, 10, 19, 28, 37, 46]


@pytest.mark.parametrize("every_s", [20, 100], ids=["in one process", "over several"])
def test_a_time_out_comes_at_its_time_and_stays(every_s: int) -> None:
    """The last look is made then; an attempt that comes later is told the same, and looks not."""
    job = Job(10**9)
    played = Played(job.polled(every_s=every_s, timeout_s=150), kill_after=step("behind"))
    assert (final(played), played.ran) == ("late", ["behind"])
    assert 150 <= job.looks[-1] < 150 + 2 * 60
    assert len(job.looks) == 1 + -(-150 // every_s)


def test_a_poll_that_has_its_result_needs_no_time() -> None:
    """It is found again when the rest of the task's life is shorter than the poll's time was."""
    day_s = 86_400

    async def handle(ctx: TaskContext, played: Played) -> None:
        del played
        said = await ctx.poll("export", lambda: "done", timeout_s=20 * day_s)
        await ctx.sleep(20 * day_s)
        await ctx.complete(said)

    assert final(Played(handle)) == "done"


def test_a_time_out_that_a_look_raises_is_its_own() -> None:
    """The poll's time is not over with it: code that runs again looks again."""
    told: list[str] = []

    async def look() -> None:
        raise WaitTimeoutError("the look's own")

    async def handle(ctx: TaskContext, played: Played) -> None:
        try:
            await ctx.poll("export", look)
        except WaitTimeoutError as error:
            told.append(str(error))
        await ctx.step("behind", played.does, "behind")
        await ctx.complete("told")

    assert final(Played(handle, kill_after=step("behind"))) == "told"
    assert told == ["the look's own"] * 2


def test_a_fault_that_passes_is_a_look_that_found_nothing() -> None:
    """It is not told to the agent; any other exception is, as a step's."""
    raised: list[Exception] = [RetryLater(5, "busy"), ConnectionError("away"), ValueError("no")]

    async def look() -> None:
        raise raised.pop(0)

    async def handle(ctx: TaskContext, played: Played) -> None:
        del played
        with pytest.raises(StepError, match="ValueError: no"):
            await ctx.poll("export", look, every_s=1)
        await ctx.complete("told")

    assert final(Played(handle)) == "told"


async def test_a_wait_in_a_step_is_refused_with_the_right_call() -> None:
    """It would run again with its result."""

    async def inner(ctx: TaskContext) -> None:
        await ctx.poll("export", lambda: 1)

    async def emits(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("x", "a")

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(WrongCallError, match=r"ctx\.poll is called within a step"):
            await ctx.step("outer", inner, ctx)
        with pytest.raises(WrongCallError, match=r"ctx\.poll takes a text as its name, of 1 to"):
            await ctx.poll("", lambda: 1)
        with pytest.raises(WrongCallError, match=r"ctx\.callback takes a text as its key, of 0 to"):
            await ctx.callback("paid", key="k" * 300)
        with pytest.raises(WrongCallError, match="`every_s` seconds"):
            await ctx.poll("export", lambda: 1, every_s=-1)
        with pytest.raises(WrongCallError, match="has emitted something and found nothing"):
            await ctx.poll("loud", emits, ctx)
        with pytest.raises(WrongCallError, match="the task expires before"):
            await ctx.poll("long", lambda: None, timeout_s=10**9)
        await ctx.complete()

    _, head = await run(handle)
    assert head.state == S.TASK_STATE_COMPLETED


async def test_an_executor_polls_by_the_function() -> None:
    """As by the method."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(str(await steps.poll("export", lambda: ctx.user_text)))

    stand, _ = await run(handle)
    assert (await stand.bench.task(stand.task)).artifacts[0].parts[0].text == "hello"

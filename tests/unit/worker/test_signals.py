"""Waits for what comes from outside: taken before, during and after the park, and in time."""

from __future__ import annotations

import asyncio

from a2a_serverless.storage.signals import signal
from a2a_serverless.tasks.entries import StepId
from a2a_serverless.tasks.waits import Signal, SignalDecision
from a2a_serverless.worker import TaskContext
from a2a_serverless.worker.context import active_turn
from tests.support.workers import S
from tests.unit.worker.stand import Stand, run

PAID = StepId("paid", "", 1)
TAKE, DONE, OVER = SignalDecision.TAKE, SignalDecision.DONE, SignalDecision.OVER


class Payer:
    """An agent that waits for `PAID` for ten minutes, behind a step; `before` runs before that."""

    def __init__(self) -> None:
        self.steps = self.starts = 0
        self.said: list[SignalDecision] = []

    async def __call__(self, ctx: TaskContext) -> None:
        await ctx.step("plan", self._plan)
        await self.before()
        found = await active_turn(ctx).signal(PAID, 600)
        await ctx.complete("late" if found is None else Signal.of(found).body.decode())

    async def before(self) -> None:
        """Do nothing."""

    def _plan(self) -> None:
        self.steps += 1


async def send(stand: Stand, body: str = "7", *, turn: int = 1, mark: str = "") -> SignalDecision:
    """Send a signal for the stand's task."""
    return await signal(
        stand.storage,
        stand.task.task_id,
        mark or stand.task.incarnation,
        turn=turn,
        step_id=PAID,
        given=Signal(body.encode(), "application/json"),
    )


async def final(stand: Stand) -> str:
    return (await stand.artifacts())["final-answer"][0]


async def test_a_signal_wakes_the_turn_that_waits() -> None:
    """It is taken once, goes on at once, and no step runs again."""
    payer = Payer()
    stand, head = await run(payer)
    assert (head.turn.parked, head.turn.signaled) == ("asleep", 0)
    assert await send(stand) is TAKE
    assert await send(stand, "8") is DONE
    woken = await stand.head()
    assert (woken.turn.parked, woken.needs) == ("", 3)
    head = await stand.work()
    assert (head.state, await final(stand), payer.steps) == (S.TASK_STATE_COMPLETED, "7", 1)
    assert await send(stand, "9") is OVER


async def test_a_signal_that_another_wait_has_heard_is_not_lost() -> None:
    """What one wait of several hears may be for another one, which has looked before that."""
    told: list[str] = []

    async def both(ctx: TaskContext) -> None:
        turn = active_turn(ctx)

        async def paid() -> None:
            found = await turn.signal(PAID, 900)
            told.append("late" if found is None else Signal.of(found).body.decode())

        async def other() -> None:
            await ctx.step("beside", beside)
            await turn.signal(StepId("other", "", 1), 600)

        async def beside() -> None:
            while PAID not in turn._sleeping:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
            assert await send(stand) is TAKE

        await ctx.gather(paid(), other())
        await ctx.complete()

    stand = Stand(both)
    head = await stand.work()
    assert (head.turn.parked, told) == ("asleep", ["7"])


async def test_the_end_of_the_time_counts_if_it_comes_first() -> None:
    """The code is told so once and for all, and a signal behind it is refused."""
    attempts: list[str] = []

    async def ends(ctx: TaskContext) -> None:
        found = await active_turn(ctx).signal(PAID, 600)
        attempts.append("late" if found is None else "found")
        if len(attempts) == 1:
            assert await send(stand) is OVER
            raise RuntimeError("no")
        await ctx.complete(attempts[-1])

    stand, head = await run(ends)
    await stand.pass_time(601)
    head = await stand.work()
    assert (head.state, attempts) == (S.TASK_STATE_COMPLETED, ["late", "late"])


async def test_a_signal_is_of_one_code_of_one_task() -> None:
    """Neither one for another turn nor one for another incarnation is taken."""
    stand, _ = await run(Payer())
    assert await send(stand, turn=2) is OVER
    assert await send(stand, mark="another") is OVER
    assert (await stand.head()).turn.signaled == 0


async def test_a_signal_of_a_task_that_is_to_be_canceled_wakes_nothing() -> None:
    """The cancel ends the task."""
    stand, _ = await run(Payer())
    await stand.storage.request_cancel(stand.task.task_id)
    assert await send(stand) is TAKE
    head = await stand.head()
    assert (head.turn.parked, head.turn.signaled) == ("asleep", head.version)

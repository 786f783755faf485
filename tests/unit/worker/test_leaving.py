"""Turns that leave their process, in the middle of all kinds of code: asleep, or handed over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from itertools import cycle
from typing import Any

import anyio
import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless import steps
from a2a_serverless.tasks.head import Head
from a2a_serverless.worker import TaskContext, TurnParked
from tests.support.clocks import ManualClock
from tests.support.workers import Agent, S, complete
from tests.unit.worker.stand import Log, Stand, run

Leaf = Callable[..., Coroutine[Any, Any, None]]
"""Leaves the turn; `key` tells two of them apart."""


# -- shapes of code ------------------------------------------------------------------------


async def plain(leaf: Leaf) -> None:
    await leaf()


async def timeout(leaf: Leaf) -> None:
    async with asyncio.timeout(1_000):
        await leaf()


async def child_task(leaf: Leaf) -> None:
    await asyncio.ensure_future(leaf("child"))


async def gather(leaf: Leaf) -> None:
    await asyncio.gather(leaf("a"), leaf("b"), leaf("c"))


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


async def returned_exceptions(leaf: Leaf) -> None:
    await asyncio.gather(leaf("a"), leaf("b"), return_exceptions=True)


async def bare_except(leaf: Leaf) -> None:
    try:
        await leaf()
    except:  # noqa: E722 - the shape
        return


PASSES = (
    *(plain, timeout, child_task, gather, anyio_move_on),
    *(except_cancelled, tried_again, generator),
)
GROUPS = (task_group, anyio_group)
SWALLOWS = (returned_exceptions, bare_except)


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


SHAPES = [
    *((each, "TurnParked") for each in PASSES),
    *((each, "group of TurnParked") for each in GROUPS),
    *((each, "went on") for each in SWALLOWS),
]


@pytest.mark.parametrize(
    ("shape", "ends", "leaves"),
    [(*each, leaves) for each, leaves in zip(SHAPES, cycle([slept, stepped]), strict=False)],
)
async def test_leaving_is_no_cancel(
    shape: Callable[[Leaf], Awaitable[None]],
    ends: str,
    leaves: Callable[[TaskContext, str], Awaitable[None]],
    caplog: Log,
) -> None:
    """TurnParked comes out of each call of `ctx`; `finally` runs, and the turn goes on."""
    heard: list[str] = []
    ended: list[str] = []

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
    assert ended == [ends]
    assert set(heard) == {"TurnParked", "finally"}
    assert heard.count("TurnParked") == heard.count("finally")
    assert head.turn.attempts == 0
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
    heard: list[str] = []
    did: list[str] = []

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
        try:
            await ctx.sleep(3600)
        except TurnParked:
            heard.append("left")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    stand = Stand(handle, clock=ManualClock())
    began = stand.clock.monotonic()
    await left_by(stand)
    assert heard == ["left", "cancelled"]
    assert stand.clock.monotonic() - began >= 1


async def test_executors_of_the_sdk_leave_as_workers_do() -> None:
    """What they emit after it is refused in the same way."""
    heard: list[str] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        try:
            await steps.sleep(3600)
        except steps.TurnParked:
            heard.append("left")
        try:
            await complete(context, queue)
        except steps.TurnParked:
            heard.append("left")
            raise

    _, head = await run(Agent(execute))
    assert heard == ["left", "left"]
    assert (head.turn.parked, head.state) == ("asleep", S.TASK_STATE_WORKING)

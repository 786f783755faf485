"""Long work of an agent: progress, waits and threads, and how each of them hears a cancel."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from unittest.mock import Mock

import pytest
from google.protobuf.json_format import MessageToDict

from a2a_serverless.worker import Retry, TaskContext
from a2a_serverless_tools.testing import AgentBench
from a2a_serverless_tools.testing.fixtures import MakeBench
from tests.unit.worker.stand import Log, Script, actions

WAIT_S = 20.0
NAME: ContextVar[str] = ContextVar("name", default="")

Bench = Callable[..., AgentBench]


@pytest.fixture
def bench(agent_bench: MakeBench) -> Bench:
    """Make the bench of a worker that is a function."""
    return lambda handle, **settings: agent_bench(Script(handle), **settings)


def test_progress_is_a_status_with_metadata(bench: Bench) -> None:
    """Numbers are metadata, the text a message; what changes no percent or text is left out."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.progress(1, 4)
        await ctx.progress(2, 4, "Half of it")
        for row in range(1001):
            await ctx.progress(row, 1000)
        await ctx.progress(1000, 1000, "Sorting")
        await ctx.request_input("Go on?")

    run = bench(handle).send("hi")
    first, second, *_ = (MessageToDict(event) for event in run.events)
    assert first["status"]["state"] == "TASK_STATE_WORKING"
    assert "message" not in first["status"]
    assert first["metadata"] == {"progress": {"done": 1, "total": 4}}
    assert second["status"]["message"]["parts"] == [{"text": "Half of it"}]
    assert second["metadata"] == {"progress": {"done": 2, "total": 4}}
    assert MessageToDict(run.task)["metadata"] == {"progress": {"done": 1000, "total": 1000}}
    assert [told.percent for told in run.progress] == [25, 50, *range(101), 100]
    assert [str(told)[-6:] for told in run.progress[:2]] == ["1 of 4", "2 of 4"]


def test_a_cancel_ends_a_sleep(bench: Bench) -> None:
    """CancelledError comes out of `ctx.sleep` a second after the cancel, not an hour."""
    seen: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        stand.cancel_running()
        try:
            await ctx.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            await ctx.sleep(0.1)  # what is tidied up may wait, too
            seen.append("tidy")
            raise

    stand = bench(handle)
    assert (stand.send("hi").state, seen) == ("canceled", ["cancelled", "tidy"])
    assert stand.clock.monotonic() < 60


FAILING, RETRY = Mock(side_effect=LookupError("not yet")), Retry(tries=2, base_s=30)


@pytest.mark.parametrize(
    "wait",
    [
        lambda ctx: ctx.sleep(50),
        lambda ctx: ctx.sleep(3600),
        lambda ctx: ctx.step("look", FAILING, retry=RETRY),
    ],
)
def test_a_cancel_ends_a_wait_in_a_thread(bench: Bench, caplog: Log, wait: Any) -> None:
    """An event loop of the agent's own, which no asyncio cancellation reaches, hears it too."""
    seen, has_ended = list[str](), threading.Event()

    def blocking(ctx: TaskContext) -> None:
        async def waiting() -> None:
            stand.cancel_running()
            await wait(ctx)

        try:
            asyncio.run(waiting())
        except asyncio.CancelledError:
            seen.append("cancelled")
        finally:
            has_ended.set()

    caplog.set_level(logging.INFO)
    stand = bench(lambda ctx: ctx.run_sync(blocking, ctx))
    assert stand.send("hi").state == "canceled"
    assert has_ended.wait(10)  # the thread is on its way out when its turn has ended
    assert seen == ["cancelled"]
    assert "thread_left_behind" not in actions(caplog)


def test_the_first_error_ends_the_others(bench: Bench) -> None:
    """The rest is cancelled and waited for, before the exception is raised as it is."""
    seen: list[str] = []

    async def working(ctx: TaskContext, key: str) -> None:
        try:
            await ctx.sleep(3600, key=key)
        finally:
            await asyncio.sleep(0)
            seen.append("ended")

    async def failing(ctx: TaskContext) -> None:
        await ctx.sleep(1)
        raise LookupError("no such city")

    async def handle(ctx: TaskContext) -> None:
        try:
            await ctx.gather(working(ctx, "a"), failing(ctx), working(ctx, "b"))
        except LookupError as error:
            await ctx.fail(f"{error}, {seen}")

    run = bench(handle).send("hi")
    assert run.text == "no such city, ['ended', 'ended']"


def test_a_blocking_function_runs_in_a_thread(bench: Bench) -> None:
    """With its arguments and the turn's context variables; its exception comes as it is."""

    def blocking(number: int, *, factor: int) -> tuple[int, str, bool]:
        is_elsewhere = threading.current_thread() is not threading.main_thread()
        return number * factor, NAME.get(), is_elsewhere

    async def handle(ctx: TaskContext) -> None:
        NAME.set("ann")
        result = await ctx.run_sync(blocking, 6, factor=7)
        with pytest.raises(LookupError, match="no such file"):
            await ctx.run_sync(Mock(side_effect=LookupError("no such file")))
        await ctx.complete_json(list(result))

    run = bench(handle).send("hi")
    assert run.artifacts["final-answer"].data == [[42, "ann", True]]


def test_a_cancel_waits_for_the_function(bench: Bench) -> None:
    """A function that looks at `ctx.is_cancelled` ends itself, and runs on behind no turn."""
    ended: list[bool] = []

    def blocking(ctx: TaskContext) -> None:
        stand.cancel_running()
        tick = threading.Event()
        for _ in range(int(WAIT_S / 0.01)):
            if ctx.is_cancelled:
                break
            tick.wait(0.01)
        tick.wait(0.05)  # it tidies up
        ended.append(ctx.is_cancelled)

    stand = bench(lambda ctx: ctx.run_sync(blocking, ctx))
    assert (stand.send("hi").state, ended) == ("canceled", [True])


def test_a_function_that_does_not_end_is_left_behind(bench: Bench, caplog: Log) -> None:
    """When the time for a cancel is over the task is canceled, and the log names the thread."""
    gate = threading.Event()

    async def handle(ctx: TaskContext) -> None:
        stand.cancel_running()
        await ctx.run_sync(gate.wait, WAIT_S)

    stand = bench(handle, cancel_timeout_s=0.1)
    try:
        with caplog.at_level(logging.WARNING):
            assert stand.send("hi").state == "canceled"
    finally:
        gate.set()
    assert actions(caplog).count("thread_left_behind") == 1

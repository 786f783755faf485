"""Workers outside of Lambda: one poll for all places, turns of hours, and an end by a signal."""

from __future__ import annotations

import asyncio

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.tasks.head import Operation
from a2a_serverless.worker.sweeper import Sweeper
from tests.support.observed import counted
from tests.support.queues import is_empty
from tests.support.workers import Agent, Bench, PacedClock, S, complete

HOUR_S = 3600


async def test_one_poll_asks_for_all_free_places() -> None:
    """A worker with many places has one request under way, for ten messages at most."""
    clock = PacedClock()

    async def slow(context: RequestContext, queue: EventQueue) -> None:
        await clock.sleep(5)
        await complete(context, queue)

    bench = Bench(Agent(slow), clock=clock)
    asked: list[int] = []
    open_polls: list[int] = [0]
    queue = bench.operations
    assert isinstance(queue, TableQueue)
    pull = queue.pull

    async def noted(limit: int, wait_s: float) -> list[Handle[Operation]]:
        asked.append(limit)
        open_polls.append(open_polls[-1] + 1)
        try:
            return await pull(limit, wait_s)
        finally:
            open_polls.append(open_polls[-1] - 1)

    queue.pull = noted  # type: ignore[method-assign]
    heads = [await bench.send() for _ in range(12)]
    serving = asyncio.create_task(bench.adapter.serve(concurrency=14))
    await clock.pass_time(1)
    assert len(bench.adapter.agent.started) == 12  # type: ignore[attr-defined]
    assert asked == [10, 4, 2]
    assert max(open_polls) == 1
    await clock.pass_time(10)
    assert {(await bench.head(head)).state for head in heads} == {S.TASK_STATE_COMPLETED}
    await queue.shutdown()
    await serving


async def test_a_turn_of_five_hours_is_sent_started_and_counted_once() -> None:
    """Delivery and lease are renewed all the time: the sweeper finds nothing to do."""
    clock = PacedClock()

    async def slow(context: RequestContext, queue: EventQueue) -> None:
        await clock.sleep(5 * HOUR_S)
        await complete(context, queue)

    agent = Agent(slow)
    bench = Bench(agent, clock=clock, visibility_s=600)
    bench.adapter.has_heartbeat = True
    bench.adapter.poller._interval_s = HOUR_S
    task = await bench.send()
    sweeper = Sweeper(bench.storage, bench.operations)
    serving = asyncio.create_task(bench.adapter.serve(concurrency=1))
    with counted() as seen:
        for _ in range(5 * 4 - 1):
            await clock.pass_time(HOUR_S / 4)
            report = await sweeper.sweep()
            assert (report.sent, report.given_up) == (0, 0)
        head = await bench.head(task)
        assert (head.turn.attempts, head.turn.sends, len(agent.started)) == (1, 0, 1)
        await clock.pass_time(HOUR_S)
        assert (await bench.head(task)).state == S.TASK_STATE_COMPLETED
    assert len(agent.started) == 1
    assert (seen.total("Attempts"), seen.total("TasksEnded", state="completed")) == (1, 1)
    assert seen.total("LeasesRenewed") == 5 * HOUR_S / 180 - 1
    assert seen.values("Resends") == seen.values("AgeOfLostTurns") == []
    queue = bench.operations
    assert isinstance(queue, TableQueue)
    assert is_empty(queue)
    await queue.shutdown()
    await serving


async def test_a_queue_that_vanishes_cuts_off_no_turn() -> None:
    """The turns that run come to their end; then the worker ends with the sentence of the queue."""
    clock = PacedClock()

    async def slow(context: RequestContext, queue: EventQueue) -> None:
        await clock.sleep(5)
        await complete(context, queue)

    bench = Bench(Agent(slow), clock=clock)
    heads = [await bench.send() for _ in range(3)]
    queue = bench.operations
    pull, asked = queue.pull, []

    async def vanishes(limit: int, wait_s: float) -> list[Handle[Operation]]:
        asked.append(limit)
        if len(asked) > 1:
            raise ConfigurationError("The queue q does not exist.")
        return await pull(limit, wait_s)

    queue.pull = vanishes  # type: ignore[method-assign]
    serving = asyncio.create_task(bench.adapter.serve(concurrency=5))
    await clock.pass_time(10)
    with pytest.raises(ConfigurationError, match=r"^The queue q does not exist\.$"):
        await serving
    assert {(await bench.head(head)).state for head in heads} == {S.TASK_STATE_COMPLETED}


async def test_a_shutdown_costs_no_attempt() -> None:
    """A turn whose workers are told to end, again and again, never runs out of attempts."""
    clock = PacedClock()

    async def slow(context: RequestContext, queue: EventQueue) -> None:
        await clock.sleep(5)
        await complete(context, queue)

    bench = Bench(Agent(slow), clock=clock, max_attempts=2)
    task = await bench.send()
    for _ in range(4):
        serving = asyncio.create_task(bench.adapter.serve(concurrency=1))
        await clock.pass_time(2)
        head = await bench.head(task)
        assert head.turn.attempts == 1
        await _told_to_end(bench, serving)
        assert (await bench.head(task)).turn.attempts == 0
    serving = asyncio.create_task(bench.adapter.serve(concurrency=1))
    await clock.pass_time(10)
    assert (await bench.head(task)).state == S.TASK_STATE_COMPLETED
    await bench.operations.shutdown()
    await serving


async def _told_to_end(bench: Bench, serving: asyncio.Task[None]) -> None:
    """The end of a worker after the drain of a signal; its queue serves the next worker."""
    bench.operations.is_closed = True
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    bench.operations.is_closed = False

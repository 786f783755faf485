"""Workers outside of Lambda: one poll for all places, turns of hours, and an end by a signal."""

from __future__ import annotations

import asyncio

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.tasks.head import Operation
from tests.support.observed import counted
from tests.support.queues import is_empty
from tests.support.workers import Agent, S, complete
from tests.unit.worker.stand import Stand

HOUR_S = 3600


class Slow(Stand):
    """A stand whose agent takes its time."""

    def __init__(self, seconds: float, **settings: int) -> None:
        async def execute(context: RequestContext, queue: EventQueue) -> None:
            await self.clock.sleep(seconds)
            await complete(context, queue)

        super().__init__(Agent(execute), **settings)

    def serve(self, concurrency: int) -> asyncio.Task[None]:
        return asyncio.create_task(self.bench.adapter.serve(concurrency=concurrency))


async def test_one_poll_asks_for_all_free_places() -> None:
    """A worker with many places has one request under way, for ten messages at most."""
    stand, asked, open_polls = Slow(5), list[int](), [0]
    pull = stand.queue.pull

    async def noted(limit: int, wait_s: float) -> list[Handle[Operation]]:
        asked.append(limit)
        open_polls.append(open_polls[-1] + 1)
        try:
            return await pull(limit, wait_s)
        finally:
            open_polls.append(open_polls[-1] - 1)

    stand.queue.pull = noted  # type: ignore[method-assign]
    heads = [await stand.send() for _ in range(12)]
    serving = stand.serve(14)
    await stand.clock.pass_time(1)
    assert (len(stand.agent.started), asked, max(open_polls)) == (12, [10, 4, 2], 1)
    await stand.clock.pass_time(10)
    assert {await stand.state(head) for head in heads} == {S.TASK_STATE_COMPLETED}
    await stand.queue.shutdown()
    await serving


async def test_a_turn_of_five_hours_is_sent_started_and_counted_once() -> None:
    """Delivery and lease are renewed all the time: the sweeper finds nothing to do."""
    stand = Slow(5 * HOUR_S, visibility_s=600)
    stand.bench.adapter.has_heartbeat = True
    stand.bench.adapter.poller._interval_s = HOUR_S
    await stand.send()
    serving = stand.serve(1)
    with counted() as seen:
        for _ in range(5 * 4 - 1):
            await stand.clock.pass_time(HOUR_S / 4)
            report = await stand.sweeper.sweep()
            assert (report.sent, report.given_up) == (0, 0)
        turn = (await stand.head()).turn
        assert (turn.attempts, turn.sends, len(stand.agent.started)) == (1, 0, 1)
        await stand.clock.pass_time(HOUR_S)
        assert await stand.state() == S.TASK_STATE_COMPLETED
    assert len(stand.agent.started) == 1
    assert (seen.total("Attempts"), seen.total("TasksEnded", state="completed")) == (1, 1)
    assert seen.total("LeasesRenewed") == 5 * HOUR_S / 180 - 1
    assert seen.values("Resends") == seen.values("AgeOfLostTurns") == []
    assert is_empty(stand.queue)
    await stand.queue.shutdown()
    await serving


async def test_a_queue_that_vanishes_cuts_off_no_turn() -> None:
    """The turns that run come to their end; then the worker ends with the sentence of the queue."""
    stand, asked = Slow(5), list[int]()
    heads = [await stand.send() for _ in range(3)]
    pull = stand.queue.pull

    async def vanishes(limit: int, wait_s: float) -> list[Handle[Operation]]:
        asked.append(limit)
        if len(asked) > 1:
            raise ConfigurationError("The queue q does not exist.")
        return await pull(limit, wait_s)

    stand.queue.pull = vanishes  # type: ignore[method-assign]
    serving = stand.serve(5)
    await stand.clock.pass_time(10)
    with pytest.raises(ConfigurationError, match=r"^The queue q does not exist\.$"):
        await serving
    assert {await stand.state(head) for head in heads} == {S.TASK_STATE_COMPLETED}

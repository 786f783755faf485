"""How long a chunk waits for company: `FlushMs`."""

from __future__ import annotations

import asyncio

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from tests.support.workers import Agent, Bench, PacedClock, artifact_texts, chunk, complete

CHUNKS = 8


@pytest.mark.parametrize(("flush_ms", "most"), [(100, CHUNKS + 2), (1000, 4)])
async def test_chunks_wait_as_long_as_the_setting_says(flush_ms: int, most: int) -> None:
    """A longer wait is fewer commits for the same answer, of which no chunk is missing."""
    clock = PacedClock()

    async def stream(context: RequestContext, queue: EventQueue) -> None:
        for number in range(CHUNKS):
            await queue.enqueue_event(chunk(context, str(number)))
            await clock.sleep(0.3)
        await complete(context, queue)

    bench = Bench(Agent(stream), clock=clock, flush_ms=flush_ms)
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(10)
    assert await working
    commits = len(await bench.records(task)) - 1
    assert artifact_texts(await bench.task(task)) == {"a": [str(n) for n in range(CHUNKS)]}
    assert commits <= most
    assert commits > CHUNKS or flush_ms > 100

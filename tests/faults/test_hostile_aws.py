"""Workers whose AWS calls fail, on a queue that delivers everything twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskState

from a2a_serverless.queues.sqs import SqsFifoQueue
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.adapter import WorkerAdapter
from tests.faults.harness import ARTIFACT, IS_LONG, Emulators, World, numbers, operation_of
from tests.support.databases import dynamo_storage, emulator_client
from tests.support.faulty import Faults
from tests.support.workers import Agent, chunk, complete

pytestmark = pytest.mark.emulators

TASKS = 10
WAVES = 20 if IS_LONG else 1
"""One after the other: in a longer queue a duplicate comes when the turn has long ended."""
SETTINGS = Settings(visibility_s=2, max_attempts=20, retry_base_s=0.1)


async def work(context: RequestContext, queue: EventQueue) -> None:
    """Four chunks, a commit each."""
    for text in numbers(4):
        await queue.enqueue_event(chunk(context, text, artifact_id=ARTIFACT))
        await asyncio.sleep(0.15)
    await complete(context, queue)


async def _wave(world: World, order: random.Random) -> None:
    """Tasks that are all delivered twice, and end as they should."""
    heads = await asyncio.gather(*(world.create("go") for _ in range(TASKS)))

    async def twice(number: int) -> None:
        operation = operation_of(heads[number])
        await world.put(operation)
        await asyncio.sleep(order.uniform(0, 0.6))
        await world.put(operation, group=f"again-{number}")

    await asyncio.gather(*(twice(number) for number in range(TASKS)))
    for head in heads:
        end = await world.end(head.task_id, within_s=60 + TASKS)
        assert end.state == TaskState.TASK_STATE_COMPLETED, end.said
        assert end.chunks == numbers(4)
    await world.drained(within_s=60 + TASKS)


@pytest.mark.timeout(900 if IS_LONG else 120)
async def test_lost_answers_throttling_and_duplicates(emulators: Emulators, tmp_path: Path) -> None:
    """Every task completes with each chunk once; no write passes the fence.

    A third of the writes is throttled, conflicts, is lost or loses its answer. Each operation is
    delivered a second time, at a random moment, to a worker that has no reason to doubt it.
    """
    order = random.Random(4)  # noqa: S311 - a seeded schedule
    agent = Agent(work)
    async with emulators.world(tmp_path) as world, AsyncExitStack() as stack:
        faults = [Faults(seed=seed, rate=0.3) for seed in range(2)]
        for faulty in faults:
            await stack.enter_async_context(_worker(emulators, world, agent, faulty))
        for _ in range(WAVES):
            await _wave(world, order)
        assert len(agent.started) > WAVES * TASKS, "no duplicate has met a running turn"
        met = sum((faulty.met for faulty in faults), Counter[str]())
        assert len(met) > 1, met


@asynccontextmanager
async def _worker(
    emulators: Emulators, world: World, agent: Agent, faults: Faults
) -> AsyncIterator[None]:
    """A worker with a faulty client of its own."""
    client = emulator_client(emulators.dynamodb_emulator)
    faults.attach(client)
    backends = Backends(
        storage=dynamo_storage(world.made.table, client=client, timing=SETTINGS.timing()),
        operations=SqsFifoQueue(Operation, world.made.queue, client=world.sqs, visibility_s=2),
    )
    serving = asyncio.create_task(WorkerAdapter(backends, agent, SETTINGS).serve(concurrency=12))
    try:
        yield
    finally:
        await backends.operations.shutdown()
        await serving

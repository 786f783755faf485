"""Turns without a message: found in the due index, and sent again without a storm."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from a2a.types import TaskState

from a2a_serverless.tasks.operations import Operation
from a2a_serverless.tasks.rules import Timing
from a2a_serverless.worker.sweeper import Sweeper
from tests.faults import processes
from tests.faults.harness import IS_LONG, Emulators, numbers
from tests.support.clocks import ManualClock
from tests.support.databases import dynamo_storage
from tests.support.messages import request
from tests.support.queues import MemoryQueue

pytestmark = pytest.mark.emulators


async def test_a_message_that_was_lost_after_the_claim(
    emulators: Emulators, tmp_path: Path
) -> None:
    """After the longest run the sweeper sends a claimed turn again whose message was lost.

    The longest run is 1 s here, and the turn is looked at a second after it; by default it is
    15 minutes and one.
    """
    settings = {processes.LEASE: "2"}
    async with emulators.world(tmp_path, **settings) as world:
        await world.start("api")
        victim = await world.start("worker", point="after-claim:1")
        task_id = await world.send("chunks 4 0.15")
        await world.dies(victim, "after-claim:1")
        await world.lose()
        await world.start("worker")
        await world.start("sweep")
        end = await world.end(task_id)
        assert end.state == TaskState.TASK_STATE_COMPLETED
        assert end.chunks == numbers(4)
        assert world.ledger.count(task_id, "started") == 2
        await world.drained()


@pytest.mark.timeout(600 if IS_LONG else 120)
async def test_a_long_queue_gets_a_bounded_number_of_copies(
    emulators: Emulators, tmp_path: Path
) -> None:
    """Tasks that wait for an hour cost six copies each at most, however often a sweeper runs."""
    tasks = 1000 if IS_LONG else 60
    clock = ManualClock()
    queue = _Counting()
    async with emulators.world(tmp_path) as world:
        storage = dynamo_storage(
            world.made.table, client=world.dynamodb, clock=clock, timing=Timing(waiting_s=60)
        )
        for start in range(0, tasks, 50):
            batch = range(start, min(tasks, start + 50))
            await asyncio.gather(*(storage.open_task(f"c-{n}", request()) for n in batch))
        sweeper = Sweeper(storage, queue, clock=clock, budget_s=3600)
        for _ in range(12):  # every five minutes: oftener finds nothing new, and takes longer
            clock.advance(300)
            while (await sweeper.sweep()).sent:
                pass
    assert len(queue.copies) == tasks
    assert max(queue.copies.values()) <= 6
    assert sum(queue.copies.values()) <= 6 * tasks


class _Counting(MemoryQueue[Operation]):
    """Counts the copies of each task."""

    def __init__(self) -> None:
        super().__init__(Operation)
        self.copies: Counter[str] = Counter()

    async def send(self, message: Operation) -> None:
        self.copies[message.task_id] += 1

"""Cancel against completion, by the hundred: one winner, and nothing left over."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskState

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import TaskNotCancelableError
from a2a_serverless.http.intake import Wait, cancel
from a2a_serverless.queues.fifo import FifoQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.tasks.head import Operation, OperationParams
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.lease import HeadPoller
from tests.faults.harness import IS_LONG, Emulators, check_log, until
from tests.support.databases import dynamo_storage
from tests.support.messages import request
from tests.support.queues import MemoryQueue, is_empty
from tests.support.workers import Agent, complete

RACES = 1000 if IS_LONG else 60
AT_ONCE = 10
WITHIN_MEMORY_S = 0.05
WITHIN_DYNAMODB_S = 0.5
"""Cancels fall into this time after the start; so do completions at first, see `Pace`."""
STEP, LONGEST_S = 1.2, 5.0

COMPLETED = TaskState.TASK_STATE_COMPLETED
CANCELED = TaskState.TASK_STATE_CANCELED


@dataclass
class Pace:
    """The time into which completions fall; each race moves it towards the end that lost.

    A cancel takes as long as its requests take, so that on a slow machine no fixed time gives
    both ends a chance.
    """

    within_s: float

    def learn(self, end: TaskState) -> None:
        """Give the next agents more time after a completion, less after a cancel."""
        factor = STEP if end == COMPLETED else 1 / STEP
        self.within_s = min(self.within_s * factor, LONGEST_S)


@pytest.mark.timeout(600 if IS_LONG else 300)
async def test_cancel_against_completion_in_memory() -> None:
    """One winner; the loser gets the documented answer; a repetition changes nothing."""
    backends = memory_backends(Settings())
    ends = await _races(backends, WITHIN_MEMORY_S)
    assert set(ends) == {COMPLETED, CANCELED}, ends
    far_future_ms = 2**50
    assert await due_tasks(backends.storage, far_future_ms) == []


@pytest.mark.emulators
@pytest.mark.timeout(900 if IS_LONG else 300)
async def test_cancel_against_completion_on_dynamodb(emulators: Emulators, tmp_path: Path) -> None:
    """On DynamoDB each race of cancel and completion has one winner and leaves nothing due."""
    async with emulators.world(tmp_path) as world:
        backends = Backends(
            storage=dynamo_storage(world.made.table, client=world.dynamodb),
            operations=MemoryQueue(Operation),
        )
        ends = await _races(backends, WITHIN_DYNAMODB_S)
        assert set(ends) == {COMPLETED, CANCELED}, ends
        far_future_ms = 2**50
        assert await due_tasks(backends.storage, far_future_ms) == []


async def _races(backends: Backends, within_s: float) -> Counter[TaskState]:
    slots, pace = asyncio.Semaphore(AT_ONCE), Pace(within_s)

    async def one(seed: int) -> TaskState:
        async with slots:
            chance = random.Random(seed)  # noqa: S311 - a seeded race
            end = await _race(backends, chance, pace.within_s, within_s)
            pace.learn(end)
            return end

    async with _working(backends):
        ends = Counter(await asyncio.gather(*(one(seed) for seed in range(RACES))))
        await until(_is_empty(backends.operations), "all operations are acknowledged")
    return ends


async def _race(
    backends: Backends, chance: random.Random, completes_s: float, cancels_s: float
) -> TaskState:
    """Start a task that ends by itself, cancel it once or twice, and look at what became of it."""
    runs_s = chance.uniform(0, completes_s)
    opened = await backends.storage.open_task("context", request(f"{runs_s}"))
    head = opened.head
    params = OperationParams(
        scope=head.scope, task_id=head.task_id, incarnation=head.incarnation, turn=head.turn.number
    )
    await backends.operations.send(Operation.to_run(params))
    cancels = [_cancel(backends, head.task_id, chance.uniform(0, cancels_s)) for _ in range(2)]
    answers = await asyncio.gather(*cancels[: chance.choice([1, 1, 2])])
    for unused in cancels:
        unused.close()

    log = await backends.storage.read(head.task_id)
    assert log is not None
    assert log.head.is_terminal
    check_log(log)
    # Refused, as it had ended before; or told how it ended: one end, the same for everybody.
    assert set(answers) <= {None, log.head.state}, (answers, log.head)
    assert await _cancel(backends, head.task_id, 0) is None
    again = await backends.storage.head(head.task_id)
    assert again == log.head
    return log.head.state


async def _cancel(backends: Backends, task_id: str, after_s: float) -> TaskState | None:
    """The end that the client is told; None where the cancel is refused."""
    await asyncio.sleep(after_s)
    try:
        tail = await cancel(backends, ANONYMOUS, task_id, wait=Wait(None, ""), timeout_s=5)
    except TaskNotCancelableError:
        return None
    assert tail.head.is_terminal
    return tail.head.state


@asynccontextmanager
async def _working(backends: Backends) -> AsyncIterator[None]:
    """A worker on the queue, that looks at its tasks every 10 ms."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await asyncio.sleep(float(context.get_user_input()))
        await complete(context, queue)

    adapter = WorkerAdapter(backends, Agent(execute), Settings(), has_heartbeat=False)
    adapter.poller = HeadPoller(backends.storage, SystemClock(), interval_s=0.01)
    serving = asyncio.create_task(adapter.serve(concurrency=AT_ONCE))
    try:
        yield
    finally:
        await backends.operations.shutdown()
        await serving


def _is_empty(queue: FifoQueue[Operation]) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return is_empty(queue)

    return look

"""Outages of an hour and of a day, by the clock: what waited runs once, and nothing fails for it.

Worker, queues, dead letter consumer and sweeper are driven as template.yaml deploys them, over the
backends in memory. Where turns share a worker that dies, others keep all the places busy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import product
from unittest.mock import AsyncMock

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskState

from a2a_serverless.errors import A2AServerlessError, UnavailableError
from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.function import WorkerFunction
from a2a_serverless.worker.sweeper import DeadLetters
from a2a_serverless_tools.local.provision import queue_attributes
from a2a_serverless_tools.testing.process import _InlineHeartbeat
from tests.infrastructure.test_address import refused
from tests.support.databases import LONG
from tests.support.handlers import LambdaContext
from tests.support.messages import request
from tests.support.queues import is_empty, records, take
from tests.support.template import read
from tests.support.workers import Agent, PacedClock, complete, params_of
from tests.unit.worker.shares import House, SlowQueue
from tests.unit.worker.stand import Stand

HOUR_S = 3600
SWEEP_EVERY_S = 60
RECOVERY_S = 300
"""How soon after an outage everything has run."""
STEP_S = 20
TURNS = 20

COMPLETED = TaskState.TASK_STATE_COMPLETED
SUBMITTED = TaskState.TASK_STATE_SUBMITTED

TABLE: dict[type, tuple[str, ...]] = {
    DurableStorage: (*("head", "read", "look", "postpone", "_create", "_apply"), "request_cancel"),
    Table: ("first",),
}
"""All that is a request to the table in a deployed stack."""

SENDS: dict[type, tuple[str, ...]] = {TableQueue: ("send",)}


class HoursClock(PacedClock):
    """Hours that pass while nothing runs; a wait of up to a second is over at once."""

    def skip(self, seconds: float) -> None:
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        if seconds > 1:
            await super().sleep(seconds)
        else:
            self.skip(seconds)
            await asyncio.sleep(0)


class Deployment(Stand):
    """One stack. Time passes in steps, after each of which all that can happen has happened."""

    def __init__(self) -> None:
        visibility_s = float(queue_attributes("queue", "arn:dead-letters")["VisibilityTimeout"])
        super().__init__(Agent(complete), clock=HoursClock(), visibility_s=visibility_s)
        assert self.bench.backends.dead_letters is not None
        self.dead_letters = self.bench.backends.dead_letters
        self.has_queue = True
        self.resends = 0

    async def accept(self, count: int) -> list[Head]:
        """New tasks, whose operations are sent unless the queue is down, as the API does it."""
        heads: list[Head] = []
        for _ in range(count):
            heads.append((await self.storage.open_task("context", request())).head)
            with suppress(A2AServerlessError):
                await self.queue.send(Operation.to_run(params_of(heads[-1])))
        return heads

    async def wait(self, seconds: float) -> None:
        """Let time pass: a sweep each minute, and all deliveries that are visible."""
        for _ in range(int(seconds / STEP_S)):
            self.clock.skip(STEP_S)
            if int(self.clock.monotonic()) % SWEEP_EVERY_S < STEP_S:
                with suppress(A2AServerlessError):
                    self.resends += (await self.sweeper.sweep()).sent
            if self.has_queue:
                await self._deliver()

    async def _deliver(self) -> None:
        while (record := take(self.queue)) is not None:
            await self.bench.adapter.process(self.queue.decode_record(record))
        letters = DeadLetters(self.storage, self.queue, retry=self.bench.settings.retry())
        while (record := take(self.dead_letters)) is not None:
            with suppress(A2AServerlessError):
                await letters.handle(record["body"])
                await self.dead_letters.delete(record)

    async def states(self, heads: list[Head]) -> Counter[TaskState]:
        return Counter([await self.state(head) for head in heads])

    async def assert_each_has_run_once(self, heads: list[Head]) -> None:
        assert await self.states(heads) == {COMPLETED: len(heads)}
        starts = Counter(context.task_id for context in self.agent.started)
        assert starts == {head.task_id: 1 for head in heads}


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    """A stack that has seen nothing yet; its thousands of expected errors are not logged."""
    logging.disable(logging.CRITICAL)
    yield Deployment()
    logging.disable(logging.NOTSET)


def down(monkeypatch: pytest.MonkeyPatch, requests: dict[type, tuple[str, ...]]) -> None:
    """Let these requests fail, until `monkeypatch` is undone."""
    for owner, names in requests.items():
        for name in names:
            monkeypatch.setattr(owner, name, AsyncMock(side_effect=UnavailableError))


@pytest.mark.long
async def test_two_hours_without_the_table(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All deliveries run out before the table is back, and no task fails."""
    heads = await deployment.accept(TURNS)
    with monkeypatch.context() as outage:
        down(outage, TABLE)
        await deployment.wait(2 * HOUR_S)
        assert is_empty(deployment.queue)
        assert not is_empty(deployment.dead_letters)
    await deployment.wait(RECOVERY_S)
    await deployment.assert_each_has_run_once(heads)
    assert is_empty(deployment.queue)
    assert is_empty(deployment.dead_letters)


async def test_an_hour_without_the_queue(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns are accepted, and no sweep can send them: none waits on when the queue is back."""
    with monkeypatch.context() as outage:
        down(outage, SENDS)
        deployment.has_queue = False
        heads: list[Head] = []
        for _ in range(5):
            heads += await deployment.accept(TURNS // 5)
            await deployment.wait(HOUR_S / 5)
        assert await deployment.states(heads) == {SUBMITTED: TURNS}
    deployment.has_queue = True
    await deployment.wait(RECOVERY_S)
    await deployment.assert_each_has_run_once(heads)
    assert deployment.resends <= TURNS


# -- the turns of a dead worker among busy ones --------------------------------------------------

VISIBILITY_S = 60
WORKERS = 2
"""The least WorkerConcurrency: each worker has half of the places."""
WAITING = 3
"""Healthy turns that wait in the queue at any time, so that no place is ever free for long."""
LATE_S = 10
"""Seconds beyond a visibility and a turn within which a turn of a dead worker has begun."""


def pairs() -> list[tuple[int, int]]:
    """Each TurnTimeout with each WorkerTimeout with which template.yaml lets turns share."""
    document = read()
    turns, workers = (
        [value for value in document["Parameters"][name]["AllowedValues"] if value]
        for name in ("TurnTimeout", "WorkerTimeout")
    )
    return [
        (int(turn), int(worker))
        for worker, turn in product(workers, turns)
        if not refused(document, WorkerTurns="2", TurnTimeout=turn, WorkerTimeout=worker)
    ]


_has_neighbours: ContextVar[bool] = ContextVar("has_neighbours")
"""Whether a turn runs in an invocation of the queue that all turns come from."""


@dataclass(kw_only=True)
class Busy(House):
    """Busy workers with two places, each of whose invocations lasts up to `run_s`."""

    places: int = 0
    turns: int = 2
    limit_s: int
    run_s: int
    receives: Counter[str] = field(default_factory=Counter)
    suspects: set[str] = field(default_factory=set)
    neighbours: list[bool] = field(default_factory=list)
    """Of each start of a suspect, whether others might run beside it."""
    is_over: bool = False

    def _settings(self) -> Settings:
        return Settings(
            worker_turns=self.turns,
            turn_limit_s=self.limit_s,
            run_limit_s=self.run_s,
            visibility_s=VISIBILITY_S,
        )

    def _queue(self, name: str) -> SlowQueue:
        made = super()._queue(name)
        made.receives = self.receives
        return made

    async def play(self) -> None:
        """Let one worker die at any time of the others' lives; return when its turns have begun."""
        quarantine = self.backends.quarantine
        assert isinstance(quarantine, SlowQueue)
        # As many at once as template.yaml has.
        running = [self._source(self.queue, WORKERS), self._source(quarantine, self.turns)]
        sources = [asyncio.create_task(each) for each in running]
        for _ in range(WAITING):
            await self._wait_in_queue()
        await self.clock.sleep(self.run_s * self.chance.uniform(0.5, 1.5))
        self.died_at = self.clock.monotonic()
        suspects = {await self._wait_in_queue(is_suspect=True) for _ in range(self.turns)}
        while not self.started.keys() >= suspects:
            await self.clock.sleep(0.1)
        self.is_over = True
        await self.queue.shutdown()
        await quarantine.shutdown()
        await asyncio.gather(*sources)

    async def _wait_in_queue(self, *, is_suspect: bool = False) -> str:
        """Let a turn wait in the queue, its worker dead or not yet there; return its task's id."""
        head = await self.lose("A")
        if is_suspect:
            self.suspects.add(head.task_id)
            storage = self.storage.for_scope(Scope(head.scope))
            await storage.commit(head, Commit(token="dead", claims=True))
        await self.queue.send(Operation.to_run(OperationParams.of(head, 1)))
        return head.task_id

    async def _work(self, context: RequestContext, queue: EventQueue) -> None:
        """Take any part of the limit; a healthy turn that begins lets another one wait."""
        task_id = context.task_id or ""
        self.started[task_id] = self.clock.monotonic()
        if task_id in self.suspects:
            self.neighbours.append(_has_neighbours.get())
        elif not self.is_over:
            await self._wait_in_queue()
        await self.clock.sleep(self.limit_s * self.chance.uniform(0.05, 0.97))
        await complete(context, queue)

    async def _source(self, queue: SlowQueue, concurrency: int) -> None:
        """Lambda's event source: an invocation for each message, so many at a time."""
        free = asyncio.Semaphore(concurrency)

        async def invoke(record: EventRecord) -> None:
            _has_neighbours.set(queue is self.queue)
            event, ends = {"Records": [record]}, LambdaContext(left_s=self.run_s)
            answer = await self._function()._answer(event, ends)
            if not answer["batchItemFailures"]:
                await queue.delete(record)
            free.release()

        async with asyncio.TaskGroup() as invocations:
            await free.acquire()
            async for record in records(queue):
                invocations.create_task(invoke(record))
                await free.acquire()

    def _function(self) -> WorkerFunction:
        """An environment in this loop, which is no thread's."""
        agent = Agent(self._work)
        function = WorkerFunction(self.backends, agent, self.settings)
        function._loop.close()
        function._adapter = WorkerAdapter(
            self.backends, agent, self.settings, heartbeat=_InlineHeartbeat()
        )
        return function


@pytest.mark.parametrize(("turn_s", "run_s"), pairs() if LONG else pairs()[:1])
def test_the_turns_of_a_dead_worker_start_soon(turn_s: int, run_s: int) -> None:
    """Among busy workers they begin within a visibility, one turn and 10 s, in three receives.

    They take no place of others' turns.
    """
    busy = Busy(limit_s=turn_s, run_s=run_s, seed=1)
    busy.run(lambda _: busy.play())
    starts = [busy.started[each] - busy.died_at for each in busy.suspects]
    assert max(starts) <= VISIBILITY_S + turn_s + LATE_S
    assert 1 + max(busy.receives[each] for each in busy.suspects) <= 3
    assert not any(busy.neighbours)

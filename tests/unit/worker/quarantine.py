"""Turns of dead workers among busy ones: the deployed worker function under a clock that jumps."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.head import Operation, OperationParams
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.function import WorkerFunction
from a2a_serverless_tools.testing.process import _InlineHeartbeat
from tests.infrastructure.test_address import refused
from tests.support.queues import records
from tests.support.template import read
from tests.support.workers import Agent, complete
from tests.unit.worker.shares import House, JumpingLoop, LoopClock, SlowQueue

__all__ = ["VISIBILITY_S", "JumpingLoop", "LoopClock", "pairs", "simulate"]

VISIBILITY_S: Final = 60
WORKERS: Final = 2
"""The least WorkerConcurrency: each worker has half of the places."""
WAITING: Final = 3
"""Healthy turns that wait in the queue at any time, so that no place is ever free for long."""


def pairs() -> list[tuple[int, int]]:
    """Each TurnTimeout with each WorkerTimeout with which template.yaml lets turns share."""
    document = read()
    allowed = {
        name: [value for value in document["Parameters"][name]["AllowedValues"] if value]
        for name in ("TurnTimeout", "WorkerTimeout")
    }
    return [
        (int(turn), int(worker))
        for worker in allowed["WorkerTimeout"]
        for turn in allowed["TurnTimeout"]
        if not refused(document, WorkerTurns="2", TurnTimeout=turn, WorkerTimeout=worker)
    ]


_worker: ContextVar[int | None] = ContextVar("worker", default=None)
"""The invocation of a turn, by its number; None for one of the quarantine queue."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """What became of the turns of one dead worker."""

    starts: list[float]
    """When they began, in seconds since their messages were visible again; inf: not in time."""
    receives: int
    """The most receives of one of them, with that of the worker that has died."""
    taken: float
    """The share of the workers in which one of them ran, and whose places it took from others."""


@dataclass(kw_only=True)
class Stage(House):
    """Busy workers, each of whose invocations lasts up to `run_s`, with `turns` places."""

    places: int = 0
    visibility_s: int = VISIBILITY_S
    limit_s: int
    run_s: int
    receives: Counter[str] = field(default_factory=Counter)
    suspects: set[str] = field(default_factory=set)
    ran: dict[str, int] = field(default_factory=dict)
    """The suspects that have run in one of the workers, each with the worker's number."""
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

    async def watched(self, count: int) -> list[Death]:
        """One death after the other, each at any time of its workers' lives."""
        quarantine = self.backends.quarantine
        assert isinstance(quarantine, SlowQueue)
        sources = [
            asyncio.create_task(self._source(self.queue, WORKERS)),
            asyncio.create_task(self._source(quarantine, self.turns)),  # as template.yaml has
        ]
        for _ in range(WAITING):
            await self._wait_in_queue()
        await self.clock.sleep(self.run_s * self.chance.uniform(0.5, 1.5))
        outcomes = []
        for _ in range(count):
            outcomes.append(await self._death())
            await self.clock.sleep(self.run_s * self.chance.random())
        self.is_over = True
        await self.queue.shutdown()
        await quarantine.shutdown()
        await asyncio.gather(*sources)
        return outcomes

    async def _death(self) -> Death:
        """As many turns as share a worker have lost it, and their messages are visible again."""
        begun = self.clock.monotonic()
        until = begun + 2 * (VISIBILITY_S + self.limit_s)
        suspects = [await self._wait_in_queue(is_suspect=True) for _ in range(self.turns)]
        while self.clock.monotonic() < until and not self.started.keys() >= set(suspects):
            await self.clock.sleep(0.1)
        return Death(
            starts=[self.started.get(each, float("inf")) - begun for each in suspects],
            receives=1 + max(self.receives[each] for each in suspects),
            taken=len({self.ran[each] for each in suspects if each in self.ran}) / WORKERS,
        )

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
        worker = _worker.get()
        if task_id not in self.suspects and not self.is_over:
            await self._wait_in_queue()
        elif task_id in self.suspects and worker is not None:
            self.ran[task_id] = worker
        await self.clock.sleep(self.limit_s * self.chance.uniform(0.05, 0.97))
        await complete(context, queue)

    async def _source(self, queue: SlowQueue, concurrency: int) -> None:
        """Lambda's event source: an invocation for each message, so many at a time."""
        free = asyncio.Semaphore(concurrency)
        numbers = itertools.count() if queue is self.queue else itertools.repeat(None)

        async def invoke(record: EventRecord) -> None:
            _worker.set(next(numbers))
            until = self.clock.monotonic() + self.run_s
            answer = await self._function()._answer(
                {"Records": [record]}, Context(self.clock, until)
            )
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


class Context:
    """Lambda's context of an invocation that ends at `until`."""

    def __init__(self, clock: LoopClock, until: float) -> None:
        self._clock = clock
        self._until = until

    def get_remaining_time_in_millis(self) -> int:
        return int(1000 * (self._until - self._clock.monotonic()))


def simulate(turn_s: int, run_s: int, *, turns: int, deaths: int, seed: int = 1) -> list[Death]:
    """Return what became of the turns of so many dead workers."""
    outcomes: list[Death] = []

    async def play(_: House) -> None:
        outcomes.extend(await stage.watched(deaths))

    stage = Stage(limit_s=turn_s, run_s=run_s, turns=turns, seed=seed)
    stage.run(play)
    return outcomes

"""Turns of dead workers among busy ones: the deployed worker function under a clock that jumps."""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final

from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.queues.fifo import EventRecord, Handle
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.head import Operation
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.function import WorkerFunction
from a2a_serverless_tools.testing.process import _Engine, _InlineHeartbeat
from tests.infrastructure.test_address import refused
from tests.support.messages import request
from tests.support.queues import MemoryQueue, records
from tests.support.template import read
from tests.support.workers import Agent, complete

VISIBILITY_S: Final = 60.0
WORKERS: Final = 2
"""The least WorkerConcurrency: each worker has half of the places."""
WAITING: Final = 3
"""Healthy turns that wait in the queue at any time, so that no place is ever free for long."""
REQUEST_S: Final = 0.03
"""Seconds of one receive."""


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


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer as soon as nothing else is left to do."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Jumps(self))

    def time(self) -> float:
        return self.now


class _Jumps(selectors.DefaultSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._jumping = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "All tasks wait for one another."
            self._jumping.now += timeout
        return ready


class LoopClock:
    """The time of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Queue(MemoryQueue[Operation]):
    """A queue in memory whose receives take their time and are counted, by task."""

    def __init__(self, clock: LoopClock, receives: Counter[str], name: str) -> None:
        super().__init__(Operation, visibility_s=VISIBILITY_S, clock=clock, name=name)
        self._receives = receives

    async def _receive(self, limit: int) -> tuple[list[Any], float]:
        records, next_s = await super()._receive(limit)
        for record in records:
            self._receives[self.decode_record(record).message.task_id] += 1
        return records, next_s

    async def pull(self, limit: int, wait_s: float) -> list[Handle[Operation]]:
        await asyncio.sleep(REQUEST_S)
        return await super().pull(limit, wait_s)


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
class Stage:
    """Busy workers, each of whose invocations lasts up to `run_s`, with `turns` places."""

    turn_s: int
    run_s: int
    turns: int
    clock: LoopClock
    chance: random.Random
    started: dict[str, float] = field(default_factory=dict)
    receives: Counter[str] = field(default_factory=Counter)
    suspects: set[str] = field(default_factory=set)
    ran: dict[str, int] = field(default_factory=dict)
    """The suspects that have run in one of the workers, each with the worker's number."""
    is_over: bool = False

    def __post_init__(self) -> None:
        settings = Settings(
            worker_turns=self.turns,
            turn_limit_s=self.turn_s,
            run_limit_s=self.run_s,
            visibility_s=VISIBILITY_S,
        )
        self.queue = Queue(self.clock, self.receives, "Operation.fifo")
        self.quarantine = Queue(self.clock, self.receives, "Quarantine.fifo")
        self.settings = settings
        self.backends = replace(
            memory_backends(settings, self.clock),
            operations=self.queue,
            quarantine=self.quarantine,
        )
        self.agent = Agent(self._work)
        adapter = WorkerAdapter(self.backends, self.agent, settings)
        self.engine = _Engine(self.backends, adapter)

    async def deaths(self, count: int) -> list[Death]:
        """One death after the other, each at any time of its workers' lives."""
        sources = [
            asyncio.create_task(self._source(self.queue, WORKERS)),
            asyncio.create_task(self._source(self.quarantine, self.turns)),  # as template.yaml has
        ]
        for _ in range(WAITING):
            await self._send()
        await self.clock.sleep(self.run_s * self.chance.uniform(0.5, 1.5))
        outcomes = []
        for _ in range(count):
            outcomes.append(await self._death())
            await self.clock.sleep(self.run_s * self.chance.random())
        self.is_over = True
        await self.queue.shutdown()
        await self.quarantine.shutdown()
        await asyncio.gather(*sources)
        return outcomes

    async def _death(self) -> Death:
        """As many turns as share a worker have lost it, and their messages are visible again."""
        begun = self.clock.monotonic()
        until = begun + 2 * (VISIBILITY_S + self.turn_s)
        suspects = [await self._send(is_suspect=True) for _ in range(self.turns)]
        while self.clock.monotonic() < until and not self.started.keys() >= set(suspects):
            await self.clock.sleep(0.1)
        return Death(
            starts=[self.started.get(each, float("inf")) - begun for each in suspects],
            receives=1 + max(self.receives[each] for each in suspects),
            taken=len({self.ran[each] for each in suspects if each in self.ran}) / WORKERS,
        )

    async def _send(self, *, is_suspect: bool = False) -> str:
        """Let a turn wait in the queue, its worker dead or not yet there; return its task's id."""
        opened = await self.engine.storage.open_task("ctx", request("work"), caller=Caller())
        if is_suspect:
            self.suspects.add(opened.head.task_id)
            await self.engine.storage.commit(opened.head, Commit(token="dead", claims=True))
        await self.engine.enqueue(opened.head)
        return opened.head.task_id

    async def _work(self, context: RequestContext, queue: EventQueue) -> None:
        """Take any part of the limit; a healthy turn that begins lets another one wait."""
        task_id = context.task_id or ""
        self.started[task_id] = self.clock.monotonic()
        worker = _worker.get()
        if task_id not in self.suspects and not self.is_over:
            await self._send()
        elif task_id in self.suspects and worker is not None:
            self.ran[task_id] = worker
        await self.clock.sleep(self.turn_s * self.chance.uniform(0.05, 0.97))
        await complete(context, queue)

    async def _source(self, queue: Queue, concurrency: int) -> None:
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
        function = WorkerFunction(self.backends, self.agent, self.settings)
        function._loop.close()
        function._adapter = WorkerAdapter(
            self.backends,
            self.agent,
            self.settings,
            heartbeat=_InlineHeartbeat(),
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
    loop = JumpingLoop()
    try:
        stage = Stage(
            turn_s=turn_s,
            run_s=run_s,
            turns=turns,
            clock=LoopClock(loop),
            chance=random.Random(seed),  # noqa: S311 - a seeded schedule
        )
        return loop.run_until_complete(stage.deaths(deaths))
    finally:
        loop.close()

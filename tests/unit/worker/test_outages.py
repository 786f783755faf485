"""Outages of an hour and of a day, by the clock: what waited runs once, and nothing fails for it.

All is driven as template.yaml deploys it, over the backends in memory. In storms a write may be
applied when its writer has given it up, has written again, or has died: so its condition alone
protects what others have stored meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final, TypeVar
from unittest.mock import AsyncMock

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskPushNotificationConfig

from a2a_serverless import errors
from a2a_serverless.errors import A2AServerlessError, UnavailableError
from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.conversation import conversation_queue
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.table import Item, Key, Range, Table, Write
from a2a_serverless.tasks.entries import TurnOpened
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
from tests.support.messages import request, texts
from tests.support.present import present
from tests.support.queues import is_empty, records, take
from tests.support.template import read
from tests.support.workers import Agent, PacedClock, S, chunk, complete, params_of, status
from tests.unit.worker.shares import House, LaggingTable, SlowQueue
from tests.unit.worker.stand import Patch, Stand

HOUR_S = 3600
SWEEP_EVERY_S = 60
RECOVERY_S = 300
"""How soon after an outage everything has run."""
STEP_S = 20
TURNS = 20


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
        self.dead_letters = present(self.bench.backends.dead_letters)
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

    async def states(self, heads: list[Head]) -> Counter[S]:
        return Counter([await self.state(head) for head in heads])

    async def assert_each_has_run_once(self, heads: list[Head]) -> None:
        assert await self.states(heads) == {S.TASK_STATE_COMPLETED: len(heads)}
        starts = Counter(context.task_id for context in self.agent.started)
        assert starts == {head.task_id: 1 for head in heads}


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    """A stack that has seen nothing yet; its thousands of expected errors are not logged."""
    logging.disable(logging.CRITICAL)
    yield Deployment()
    logging.disable(logging.NOTSET)


def down(monkeypatch: Patch, requests: dict[type, tuple[str, ...]]) -> None:
    """Let these requests fail, until `monkeypatch` is undone."""
    for owner, names in requests.items():
        for name in names:
            monkeypatch.setattr(owner, name, AsyncMock(side_effect=UnavailableError))


@pytest.mark.long
async def test_two_hours_without_the_table(deployment: Deployment, monkeypatch: Patch) -> None:
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


async def test_an_hour_without_the_queue(deployment: Deployment, monkeypatch: Patch) -> None:
    """Turns are accepted, and no sweep can send them: none waits on when the queue is back."""
    with monkeypatch.context() as outage:
        down(outage, SENDS)
        deployment.has_queue = False
        heads: list[Head] = []
        for _ in range(5):
            heads += await deployment.accept(TURNS // 5)
            await deployment.wait(HOUR_S / 5)
        assert await deployment.states(heads) == {S.TASK_STATE_SUBMITTED: TURNS}
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
        limits = {"turn_limit_s": self.limit_s, "run_limit_s": self.run_s}
        return Settings(worker_turns=self.turns, visibility_s=VISIBILITY_S, **limits)

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
        beat = _InlineHeartbeat()
        function._adapter = WorkerAdapter(self.backends, agent, self.settings, heartbeat=beat)
        return function


@pytest.mark.parametrize(("turn_s", "run_s"), pairs() if LONG else pairs()[:1])
def test_the_turns_of_a_dead_worker_start_soon(turn_s: int, run_s: int) -> None:
    """Within a visibility, a turn and 10 s, in three receives, and in the place of nobody."""
    busy = Busy(limit_s=turn_s, run_s=run_s, seed=1)
    busy.run(lambda _: busy.play())
    starts = [busy.started[each] - busy.died_at for each in busy.suspects]
    assert max(starts) <= VISIBILITY_S + turn_s + LATE_S
    assert 1 + max(busy.receives[each] for each in busy.suspects) <= 3
    assert not any(busy.neighbours)


# -- storms: writes are lost, not answered, or applied late ----------------------------------------


SEEDS: Final = range(10 if LONG else 1)
TASKS: Final = 40 if LONG else 20
TALKS: Final = 10
"""The conversations that the tasks belong to: their turns wait for one another."""
AFTERWARDS: Final = [number for number in range(TASKS, TASKS + 20) if number % 4 in (0, 3)]
"""The numbers of the tasks that are sent after the storm: plain ones, one in each conversation."""
CHUNKS: Final = ["0", "1", "2", "3"]
BAD: Final = 0.12
"""The share of the requests that meet a fault, for `BAD_S` seconds."""
BAD_S: Final = 600.0
LATEST_S: Final = 40.0
"""The longest time after which a write is applied that was not answered."""
WITHIN_S: Final = 4 * 3600.0
"""The time in which all has to be at rest after the storm."""

T = TypeVar("T")


class LateTable(LaggingTable):
    """A table some of whose requests have no answer, and some of whose writes are applied late."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(lambda: chance.expovariate(20))
        self._chance = chance
        self.is_bad = True
        self.met = Counter[str]()
        self.late: list[asyncio.Task[None]] = []

    def _meets(self, *faults: str) -> str:
        fault = ""
        if self.is_bad and self._chance.random() < BAD:
            fault = self._chance.choice(faults)
            self.met[fault] += 1
        return fault

    async def load(self, keys: Iterable[Key], **options: Any) -> dict[Key, Item | None]:
        if self._meets("read lost"):
            raise UnavailableError
        return await super().load(keys, **options)

    async def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        if self._meets("read lost"):
            raise UnavailableError
        async for page in super().query(wanted):
            yield page

    async def write(self, *writes: Write, **options: Any) -> None:
        fault = self._meets("write lost", "answer lost", "applied late")
        if fault == "applied late":
            self.late.append(asyncio.ensure_future(self._write_late(writes, options)))
        elif fault != "write lost":
            await super().write(*writes, **options)
        if fault:
            await asyncio.sleep(self._chance.uniform(0, 15))  # `aws.repeat` gives up
            raise UnavailableError

    async def _write_late(self, writes: tuple[Write, ...], options: dict[str, Any]) -> None:
        await asyncio.sleep(self._chance.uniform(0, LATEST_S))
        try:
            await super().write(*writes, **options)
        except errors.ConditionFailedError:
            self.met["applied late, and refused"] += 1
        else:
            self.met["applied late, and stored"] += 1


@dataclass(kw_only=True)
class Storm(House):
    """One deployment in a storm, and what its clients want of it."""

    places: int = 6
    visibility_s: int = 30
    is_serial: bool = True
    deaths: float = 0.05
    heads: dict[int, Head] = field(default_factory=dict)
    """The tasks by the numbers of their messages."""

    def _table(self) -> LateTable:
        self.late = LateTable(self.chance)
        return self.late

    async def play(self) -> None:
        """Let the storm pass, and all come to rest."""
        await asyncio.gather(*(self._client(number) for number in range(TASKS)))
        await self.clock.sleep(BAD_S)
        self.late.is_bad = False
        await self._rest()
        # Once more in each conversation: what the storm has left of the others is in nobody's way.
        await asyncio.gather(*(self._client(number) for number in AFTERWARDS))
        await self._rest()
        await asyncio.gather(*self.late.late, return_exceptions=True)
        await self._check()

    async def _work(self, context: RequestContext, queue: EventQueue) -> None:
        """Ask a question in the first turn of some tasks; say four chunks in the last one."""
        if "ask" in context.get_user_input():
            await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "what?"))
            return
        for text in CHUNKS:
            await queue.enqueue_event(chunk(context, text))
            await self.clock.sleep(self.chance.uniform(0, 4))
        await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))

    async def _client(self, number: int) -> None:
        """Send one task's messages, each until it is answered; cancel some tasks."""
        await self.clock.sleep(self.chance.uniform(0, 120))
        asks = number % 4 == 1
        opened = await self._until_answered(
            lambda: self.storage.open_task(
                f"talk {number % TALKS}",
                request("ask" if asks else "work"),
                idempotency_key=f"first {number}",
            )
        )
        head = self.heads[number] = opened.head
        if head.turn.parked == "":
            await self._woken(head)
        hook = TaskPushNotificationConfig(id="a", task_id=head.task_id, url="https://hook.example/")
        await self._until_answered(lambda: self.storage.webhooks.put(hook))
        if asks:
            await self._answer(head, number)
        elif number % 4 == 2:
            await self.clock.sleep(self.chance.uniform(0, 20))
            await self._until_answered(lambda: self.storage.request_cancel(head.task_id))

    async def _answer(self, head: Head, number: int) -> None:
        commit = Commit(entries=(TurnOpened(request("work")),), idempotency_key=f"second {number}")

        async def answered() -> Head | None:
            found = present(await self.storage.head(head.task_id))
            if found.turn.number > 1:  # an earlier try was stored, and not answered
                return found
            if found.state != S.TASK_STATE_INPUT_REQUIRED:
                raise errors.ConcurrencyError
            return await self.storage.commit(found, commit)

        found = await self._until_answered(answered)
        if found is not None and found.turn.is_open:
            await self._woken(found)

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> Any:
        while True:
            try:
                return await call()
            except (UnavailableError, errors.ConcurrencyError):
                await self.clock.sleep(self.chance.uniform(0.5, 5))
            except (errors.RepeatedKeyError, errors.TaskTerminalStateError):
                return None

    # -- what has to hold ------------------------------------------------------------------------

    async def _rest(self) -> None:
        ends_at = self.clock.monotonic() + WITHIN_S
        while not await self.at_rest() and self.clock.monotonic() < ends_at:
            await self.clock.sleep(30)

    async def at_rest(self) -> bool:
        """Whether each task has ended, and no message is on the queue."""
        found = [await self.storage.head(head.task_id) for head in self.heads.values()]
        return is_empty(self.queue) and all(
            head is not None and head.is_terminal and not head.turn.is_open for head in found
        )

    async def _check(self) -> None:
        assert await self.at_rest(), [
            (number, await self.storage.head(head.task_id)) for number, head in self.heads.items()
        ]
        for number, opened in self.heads.items():
            log = present(await self.storage.read(opened.task_id))
            task = present(await self.storage.load_task(opened.task_id))
            assert [one.version for one in log.records] == list(range(1, log.head.version + 1))
            assert log.head.due_at is None
            ends = [S.TASK_STATE_COMPLETED, *[S.TASK_STATE_CANCELED] * (number % 4 == 2)]
            assert log.head.state in ends, log.head
            said = texts(task, "a")
            if log.head.state == S.TASK_STATE_COMPLETED:
                assert "".join(said) == "".join(CHUNKS), (number, said)
            turns = sum(isinstance(e, TurnOpened) for one in log.records for e in one.entries)
            assert turns == (2 if number % 4 == 1 else 1)
            assert [push.config.id for push in await self.storage.webhooks.all(task.id)] == ["a"]
        listed = await list_tasks(self.storage, ListTasksQuery(page_size=100))
        assert {task.id for task in listed.tasks} == {one.task_id for one in self.heads.values()}
        assert len(listed.tasks) == TASKS + TALKS
        for talk in range(TALKS):
            assert (await conversation_queue(self.storage, f"talk {talk}")).positions == ()


def met_in(seed: int) -> set[str]:
    """What the requests of a storm have met."""
    storm = Storm(seed=seed)
    storm.run(lambda _: storm.play())
    return {*storm.late.met}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_of_late_writes_loses_nothing(seed: int) -> None:
    """Each task ends once, as it should, each chunk is there once, and nothing waits."""
    every = {
        *("read lost", "write lost", "answer lost", "applied late"),
        *("applied late, and refused", "applied late, and stored"),
    }
    met = set[str]()
    while met != every and seed < 500:  # one in thirty stores nothing late
        met, seed = met | met_in(seed), seed + 100
    assert met == every

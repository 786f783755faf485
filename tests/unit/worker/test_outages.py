"""Outages of an hour and of a day, by the clock: what waited runs once, and nothing fails for it.

Worker, queues, dead letter consumer and sweeper are driven as template.yaml deploys them, over the
backends in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import Task, TaskState

from a2a_serverless.errors import A2AServerlessError, UnavailableError
from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.function import WorkerFunction
from a2a_serverless.worker.sweeper import DeadLetters, Sweeper
from a2a_serverless_tools.local.provision import queue_attributes
from tests.support.databases import LONG
from tests.support.handlers import LambdaContext
from tests.support.messages import request
from tests.support.queues import is_empty, take
from tests.support.workers import Agent, PacedClock, complete, params_of
from tests.unit.worker.quarantine import VISIBILITY_S, pairs, simulate

HOUR_S = 3600
SWEEP_EVERY_S = 60
RECOVERY_S = 300
"""How soon after an outage everything has run."""
STEP_S = 20
TURNS = 40

COMPLETED = TaskState.TASK_STATE_COMPLETED
SUBMITTED = TaskState.TASK_STATE_SUBMITTED

TABLE: dict[type, tuple[str, ...]] = {
    DurableStorage: (
        *("head", "read", "look", "postpone", "_create", "_apply"),
        "request_cancel",
    ),
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


class Deployment:
    """One stack. Time passes in steps, after each of which all that can happen has happened."""

    def __init__(self) -> None:
        queue = _attributes("queue")
        self.settings = Settings(visibility_s=float(queue["VisibilityTimeout"]))
        self.clock = HoursClock()
        self.backends = memory_backends(self.settings, self.clock)
        assert isinstance(self.backends.operations, TableQueue)
        self.operations = self.backends.operations  # what an event source polls
        assert self.backends.dead_letters is not None
        self.dead_letters = self.backends.dead_letters
        self.agent = Agent(self._work)
        self.worker = WorkerFunction(self.backends, self.agent, self.settings)
        self.loop = asyncio.new_event_loop()
        self.has_queue = True
        self.has_worker = True
        self.resends = 0

    def close(self) -> None:
        self.worker.close()
        self.loop.close()

    async def _work(self, context: RequestContext, queue: EventQueue) -> None:
        await complete(context, queue)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    # -- what happens --------------------------------------------------------------------------

    def accept(self, count: int) -> list[Head]:
        """New tasks, whose operations are sent unless the queue is down, as the API does it."""
        storage = self.backends.storage
        heads: list[Head] = []
        for _ in range(count):
            heads.append(self.run(storage.open_task("context", request())).head)
            self._tried(lambda: self.operations.send(Operation.to_run(params_of(heads[-1]))))
        return heads

    def pass_time(self, seconds: float) -> None:
        """Let time pass: a sweep each minute, and all deliveries that are visible."""
        for _ in range(int(seconds / STEP_S)):
            self.clock.skip(STEP_S)
            if int(self.clock.monotonic()) % SWEEP_EVERY_S == 0:
                self._tried(self._sweep)
            if self.has_queue:
                self._deliver(self.operations, self._work_on)
                self._deliver(self.dead_letters, self._handle_dead_letter)

    def _tried(self, step: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        """Whether an invocation came to its end."""
        try:
            self.run(step())
        except A2AServerlessError:
            return False
        return True

    async def _sweep(self) -> None:
        sweeper = Sweeper(
            self.backends.storage,
            self.backends.operations,
            clock=self.clock,
            give_up_s=self.settings.give_up_s,
        )
        self.resends += (await sweeper.sweep()).sent

    def _deliver(
        self, queue: TableQueue[Operation], consume: Callable[[EventRecord], bool]
    ) -> None:
        while (record := take(queue)) is not None:
            if consume(record):
                self.run(queue.delete(record))

    def _work_on(self, record: EventRecord) -> bool:
        if not self.has_worker:  # it comes again when its visibility has run out
            return False
        context = LambdaContext(left_s=self.settings.run_limit_s)
        return not self.worker.handle({"Records": [record]}, context)["batchItemFailures"]

    def _handle_dead_letter(self, record: EventRecord) -> bool:
        backends = self.backends
        letters = DeadLetters(backends.storage, backends.operations, retry=self.settings.retry())
        return self._tried(lambda: letters.handle(record["body"]))

    # -- what has become of it -------------------------------------------------------------------

    def tasks(self, heads: list[Head]) -> list[Task]:
        return [self.run(self.backends.storage.load_task(head.task_id)) for head in heads]

    def states(self, heads: list[Head]) -> Counter[TaskState]:
        return Counter(task.status.state for task in self.tasks(heads))

    def starts(self) -> Counter[str | None]:
        return Counter(context.task_id for context in self.agent.started)


def _attributes(queue: str) -> dict[str, str]:
    """A queue's attributes in a deployment."""
    return queue_attributes(queue, "arn:dead-letters")


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    """A stack that has seen nothing yet; its thousands of expected errors are not logged."""
    logging.disable(logging.CRITICAL)
    made = Deployment()
    yield made
    made.close()
    logging.disable(logging.NOTSET)


def down(monkeypatch: pytest.MonkeyPatch, requests: dict[type, tuple[str, ...]]) -> None:
    """Let these requests fail, until `monkeypatch` is undone."""

    async def refuse(*_: object, **__: object) -> None:
        raise UnavailableError

    for owner, names in requests.items():
        for name in names:
            monkeypatch.setattr(owner, name, refuse)


def assert_each_has_run_once(deployment: Deployment, heads: list[Head]) -> None:
    assert deployment.states(heads) == {COMPLETED: len(heads)}
    assert deployment.starts() == {head.task_id: 1 for head in heads}


@pytest.mark.long
def test_two_hours_without_the_table(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All deliveries run out before the table is back, and no task fails."""
    heads = deployment.accept(TURNS)
    with monkeypatch.context() as outage:
        down(outage, TABLE)
        deployment.pass_time(2 * HOUR_S)
        assert is_empty(deployment.operations)
        assert not is_empty(deployment.dead_letters)
    deployment.pass_time(RECOVERY_S)
    assert_each_has_run_once(deployment, heads)
    assert is_empty(deployment.operations)
    assert is_empty(deployment.dead_letters)


def test_an_hour_without_the_queue(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are accepted, and no sweep can send them: none waits on when the queue is back."""
    with monkeypatch.context() as outage:
        down(outage, SENDS)
        deployment.has_queue = False
        heads: list[Head] = []
        for _ in range(5):
            heads += deployment.accept(TURNS // 5)
            deployment.pass_time(HOUR_S / 5)
        assert deployment.states(heads) == {SUBMITTED: TURNS}
    deployment.has_queue = True
    deployment.pass_time(RECOVERY_S)
    assert_each_has_run_once(deployment, heads)
    assert deployment.resends <= TURNS


def test_six_hours_without_a_worker(deployment: Deployment) -> None:
    """After six hours without a worker each turn runs once within one visibility time-out."""
    heads = deployment.accept(10)
    deployment.has_worker = False
    deployment.pass_time(6 * HOUR_S)
    assert deployment.states(heads) == {SUBMITTED: 10}
    deployment.has_worker = True
    deployment.pass_time(deployment.settings.visibility_s + RECOVERY_S)
    assert_each_has_run_once(deployment, heads)


LATE_S = 10
"""Seconds beyond a visibility and a turn within which a turn of a dead worker has begun."""


@pytest.mark.parametrize(("turn_s", "run_s"), pairs() if LONG else pairs()[:1])
def test_the_turns_of_a_dead_worker_start_soon(turn_s: int, run_s: int) -> None:
    """Among busy workers they begin within a visibility, one turn and 10 s, in three receives."""
    for death in simulate(turn_s, run_s, turns=2, deaths=1):
        assert max(death.starts) <= VISIBILITY_S + turn_s + LATE_S
        assert death.receives <= 3
        assert death.taken == 0

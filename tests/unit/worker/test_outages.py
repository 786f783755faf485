"""Outages of an hour and of a day, by the clock: what waited runs once, and nothing fails for it.

Worker, queues, dead letter consumer and sweeper are driven as template.yaml deploys them, over the
backends in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from unittest.mock import AsyncMock

import pytest
from a2a.types import TaskState

from a2a_serverless.errors import A2AServerlessError, UnavailableError
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.worker.sweeper import DeadLetters
from a2a_serverless_tools.local.provision import queue_attributes
from tests.support.databases import LONG
from tests.support.messages import request
from tests.support.queues import is_empty, take
from tests.support.workers import Agent, PacedClock, complete, params_of
from tests.unit.worker.quarantine import VISIBILITY_S, pairs, simulate
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


LATE_S = 10
"""Seconds beyond a visibility and a turn within which a turn of a dead worker has begun."""


@pytest.mark.parametrize(("turn_s", "run_s"), pairs() if LONG else pairs()[:1])
def test_the_turns_of_a_dead_worker_start_soon(turn_s: int, run_s: int) -> None:
    """Among busy workers they begin within a visibility, one turn and 10 s, in three receives."""
    for death in simulate(turn_s, run_s, turns=2, deaths=1):
        assert max(death.starts) <= VISIBILITY_S + turn_s + LATE_S
        assert death.receives <= 3
        assert death.taken == 0

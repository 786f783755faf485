"""A turn that emits more than its partition takes: nothing is throttled, and nothing is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.settings import Settings
from a2a_serverless.storage.dynamodb import DynamoTable
from a2a_serverless.wiring import memory_backends
from tests.support import workers
from tests.support.databases import Database, moto_database
from tests.support.partitions import Partitions


@pytest.fixture(params=["moto", pytest.param("dynamodb", marks=pytest.mark.emulators)])
def table(request: pytest.FixtureRequest) -> Iterator[Database]:
    """The table on moto, and on DynamoDB Local."""
    if request.param == "moto":
        with moto_database() as database:
            yield database
        return
    yield request.getfixturevalue("database")


@dataclass(frozen=True)
class World:
    """A worker on such a table, whose time passes while nothing is asked of the table."""

    table: Database
    clock: workers.PacedClock
    partitions: Partitions
    during: Callable[[Awaitable[Any]], Awaitable[Any]]

    async def run(self, execute: workers.Execute) -> list[str]:
        """Run a turn of an agent to its end, in one attempt; return the texts of its artifact."""
        storage = self.table.storage(clock=self.clock)
        backends = replace(memory_backends(Settings(), self.clock), storage=storage)
        bench = workers.Bench(workers.Agent(execute), clock=self.clock, backends=backends)
        task = await self.during(bench.send())
        assert await self.during(bench.work())
        done = await self.during(bench.task(task))
        assert done.status.state == workers.S.TASK_STATE_COMPLETED
        return workers.artifact_texts(done)["a"]


@pytest.fixture
def world(table: Database) -> Iterator[World]:
    """A worker on the table."""
    clock = workers.PacedClock()
    with workers.answered(clock) as during:
        yield World(table, clock, Partitions(table.client, clock), during)


def emitting(texts: list[str]) -> workers.Execute:
    """An agent that emits chunks as fast as they are taken."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        for text in texts:
            await queue.enqueue_event(workers.chunk(context, text))
        await workers.complete(context, queue)

    return execute


FLOODS = {"20 MB in large events": (67, 300_000), "10,000 small events": (10_000, 20)}


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("count", "size"), FLOODS.values(), ids=FLOODS)
async def test_a_flood_is_never_throttled(
    world: World, request: pytest.FixtureRequest, count: int, size: int
) -> None:
    """Each event is there once, in order; no second has more units than a partition takes."""
    count //= 10 if "moto" in request.node.name else 1
    texts = [f"{number:06d}".ljust(size, "x") for number in range(count)]
    assert await world.run(emitting(texts)) == ["".join(texts)]
    assert not world.partitions.throttled
    assert world.partitions.most("TASK#") <= 900


@pytest.mark.long
async def test_a_flood_without_a_pace(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the partition refuses is sent again: each event is there once, after one attempt."""
    monkeypatch.setattr(DynamoTable, "partition_units", None)
    texts = [f"{number:06d}".ljust(300_000, "x") for number in range(5)]
    assert await world.run(emitting(texts)) == ["".join(texts)]
    assert world.partitions.throttled

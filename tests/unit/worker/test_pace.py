"""A turn whose partition takes so many write units a second: who waits, and who does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import Artifact

from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import MAX_COMMIT_BYTES
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.pace import commit_units
from a2a_serverless.worker import RetryLater
from tests.support.workers import (
    Agent,
    Bench,
    PacedClock,
    S,
    chunk,
    complete,
    status_text,
)

Emit = Callable[[int], Awaitable[None]]

PARTITION = 1000
LARGE = 300_000
"""Of these, a second has room for one."""
LARGEST = MAX_COMMIT_BYTES - 1000
LARGEST_S = commit_units(LARGEST) / 900
"""How long a commit of that size keeps the next one waiting."""


class World:
    """A worker on such a table, and the seconds at which its agent's calls have returned."""

    def __init__(self, handle: Callable[[World, Emit], Awaitable[None]]) -> None:
        self.clock = PacedClock()
        self.returned: list[float] = []
        self._handle = handle
        self.bench = Bench(Agent(self._execute), clock=self.clock)

    async def _execute(self, context: RequestContext, queue: EventQueue) -> None:
        async def emit(size: int) -> None:
            await queue.enqueue_event(chunk(context, "x" * size))
            self.returned.append(round(self.clock.monotonic(), 3))

        await self._handle(self, emit)
        await complete(context, queue)
        self.returned.append(round(self.clock.monotonic(), 3))

    async def begin(self, *, deadline: float | None = None) -> tuple[Head, asyncio.Task[bool]]:
        """Send a message, and begin its turn."""
        task = await self.bench.send()
        return task, asyncio.create_task(self.bench.work(deadline=deadline))

    async def sizes(self, task: Head) -> list[int]:
        """The sizes of the chunks of the task, of which a reader gets one text."""
        log = await self.bench.storage.read(task.task_id)
        assert log is not None
        artifact = log.fold().artifacts.get("a", Artifact())
        return [len(part.text) for part in artifact.parts]


@pytest.fixture(autouse=True)
def _pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryTable, "partition_units", PARTITION)
    monkeypatch.setattr(MemoryTable, "blobs_beside", lambda *_, **__: None)


def emitting(*sizes: int) -> Callable[[World, Emit], Awaitable[None]]:
    """An agent that emits chunks of these sizes, one after the other."""

    async def handle(world: World, emit: Emit) -> None:
        for size in sizes:
            await emit(size)

    return handle


@pytest.mark.parametrize(
    ("sizes", "returned"),
    [
        ([400_000], [0, 0]),  # the end has room in the same second
        ([10] * 3 + [300_000], [0] * 5),
        ([LARGE] * 3, [0, 1, 2, 2]),
        ([LARGEST, 10], [0, 0, round(LARGEST_S, 3)]),
        ([60_000, 430_000], [0, 1, 1]),  # together they would be larger than a second's
    ],
)
async def test_the_agent_waits_until_its_partition_takes_more(
    sizes: list[int], returned: list[float]
) -> None:
    """It waits in the call that emits, so that nothing piles up; and in no other case."""
    world = World(emitting(*sizes))
    task, working = await world.begin()
    await world.clock.pass_time(60)
    assert await working
    assert (world.returned, await world.sizes(task)) == (returned, sizes)


async def test_a_cancel_is_heard_while_the_agent_waits() -> None:
    """The agent is cancelled in its call, and the task ends as soon as the partition takes that."""
    world = World(emitting(*[LARGE] * 10))
    task, working = await world.begin()
    await world.clock.pass_time(2.5)
    await world.bench.cancel(task)
    await world.clock.pass_time(2)
    assert await working
    assert (await world.bench.head(task)).state == S.TASK_STATE_CANCELED
    assert world.returned == [0, 1, 2, 3]  # it is heard with the commit at 3 s


async def test_a_deletion_is_heard_while_the_agent_waits() -> None:
    """The turn ends with its next commit, which is refused; nothing of the task comes back."""
    world = World(emitting(*[LARGE] * 10))
    task, working = await world.begin()
    await world.clock.pass_time(2.5)
    assert await delete_task(world.bench.storage, task.task_id)
    await world.clock.pass_time(2)
    assert await working
    assert not await world.bench.storage.items_of(task.task_id)


async def test_a_deadline_is_kept_while_the_agent_waits() -> None:
    """A turn that waits is given back in time, and its next attempt goes on from the log."""
    world = World(emitting(LARGEST, LARGE))
    task, working = await world.begin(deadline=5)
    await world.clock.pass_time(4.5)
    assert working.done()
    assert not await working
    head = await world.bench.head(task)
    assert head.turn.released is not None
    assert head.turn.released.reason == "DeadlineError"


async def test_an_end_is_stored_before_the_deadline() -> None:
    """An end that waits for its second is stored when the turn has to stop, and not dropped."""
    world = World(emitting(LARGEST))
    task, working = await world.begin(deadline=5)
    await world.clock.pass_time(4.5)
    assert working.done()
    assert await working
    assert (await world.bench.head(task)).state == S.TASK_STATE_COMPLETED


async def test_the_lease_is_renewed_while_the_agent_waits() -> None:
    """Renewals are no commits of the writer's, and do not wait with them."""
    world = World(emitting(*[LARGE] * 10))
    world.bench.storage.timing = replace(world.bench.storage.timing, lease_s=4, renew_before_s=2)
    task, working = await world.begin()
    await world.clock.pass_time(2)
    before = (await world.bench.head(task)).due_at
    await world.clock.pass_time(4)
    after = (await world.bench.head(task)).due_at
    assert before is not None
    assert after is not None
    assert after > before
    await world.clock.pass_time(10)
    assert await working


async def test_what_is_dropped_keeps_nothing_waiting() -> None:
    """A turn that is given back while its batch waits drops that, and says at once why."""

    async def gives_up(world: World, emit: Emit) -> None:
        await emit(LARGE)
        waiting = asyncio.ensure_future(emit(LARGE))
        await world.clock.sleep(0.1)
        waiting.cancel()
        raise RetryLater(30, "the index is being built")

    world = World(gives_up)
    task, working = await world.begin()
    await world.clock.pass_time(0.2)
    assert working.done()
    assert not await working
    assert "the index is being built" in status_text(await world.bench.task(task))
    assert await world.sizes(task) == [LARGE]

"""A turn whose partition takes so many write units a second: who waits, and who does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import MAX_COMMIT_BYTES
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.pace import commit_units
from a2a_serverless.worker import RetryLater
from a2a_serverless.worker.outbox import PAUSE_ROUNDS
from a2a_serverless_tools.testing.clock import START_MS
from tests.support.workers import Agent, S, chunk, complete
from tests.unit.worker.stand import Patch, Stand

Emit = Callable[[str], Awaitable[None]]
Does = Callable[["World", Emit], Awaitable[None]]

PARTITION = 1000
LARGE = 300_000
"""Of these, a second has room for one."""
LARGEST = MAX_COMMIT_BYTES - 1000
LARGEST_S = commit_units(LARGEST) / 900
"""How long a commit of that size keeps the next one waiting."""


class World(Stand):
    """A worker on such a table, and the seconds at which its agent's calls have returned."""

    def __init__(self, does: Does, **settings: Any) -> None:
        self.returned: list[float] = []
        self._does = does
        super().__init__(Agent(self._execute), **settings)

    async def _execute(self, context: RequestContext, queue: EventQueue) -> None:
        async def emit(text: str) -> None:
            await queue.enqueue_event(chunk(context, text))
            self.returned.append(round(self.clock.monotonic(), 3))

        await self._does(self, emit)
        await complete(context, queue)
        self.returned.append(round(self.clock.monotonic(), 3))

    async def commits(self) -> list[tuple[int, str]]:
        """When each commit with chunks was stored, in ms, and their texts."""
        return [
            ((record.at or 0) - START_MS, "".join(texts))
            for record in await self.bench.records(self.task)
            if (texts := [part.text for each in record.entries for part in _parts(each)])
        ]


def _parts(entry: object) -> Sequence[Any]:
    return entry.artifact.parts if isinstance(entry, ArtifactWritten) else ()


@pytest.fixture(autouse=True)
def _pace(monkeypatch: Patch) -> None:
    monkeypatch.setattr(MemoryTable, "partition_units", PARTITION)
    monkeypatch.setattr(MemoryTable, "blobs_beside", lambda *_, **__: None)


def emitting(*sizes: int) -> Does:
    async def handle(_: World, emit: Emit) -> None:
        for size in sizes:
            await emit("x" * size)

    return handle


@pytest.mark.parametrize(
    ("sizes", "returned", "stored"),
    [
        ([400_000], [0, 0], [400_000]),  # the end has room in the same second
        ([10] * 3 + [300_000], [0] * 5, [300_030]),
        ([LARGE] * 3, [0, 1, 2, 2], [LARGE] * 3),
        ([LARGEST, 10], [0, 0, round(LARGEST_S, 3)], [LARGEST, 10]),
        # Together they would be larger than a second's.
        ([60_000, 430_000], [0, 1, 1], [60_000, 430_000]),
    ],
)
async def test_the_agent_waits_until_its_partition_takes_more(
    sizes: list[int], returned: list[float], stored: list[int]
) -> None:
    """It waits in the call that emits, so that nothing piles up; and in no other case."""
    world = World(emitting(*sizes))
    assert await (await world.begin(60))
    assert (world.returned, [len(text) for _, text in await world.commits()]) == (returned, stored)


async def test_a_cancel_is_heard_while_the_agent_waits() -> None:
    """The agent is cancelled in its call, and the task ends as soon as the partition takes that."""
    world = World(emitting(*[LARGE] * 10))
    working = await world.begin(2.5)
    await world.cancel()
    await world.clock.pass_time(2)
    assert await working
    assert await world.state() == S.TASK_STATE_CANCELED
    assert world.returned == [0, 1, 2, 3]  # it is heard with the commit at 3 s


@pytest.mark.parametrize(("sizes", "is_stored"), [([LARGEST, LARGE], False), ([LARGEST], True)])
async def test_a_deadline_is_kept_as_the_agent_waits(sizes: list[int], *, is_stored: bool) -> None:
    """A turn that waits is given back in time; an end that waits is stored as the turn stops."""
    world = World(emitting(*sizes))
    working = await world.begin(4.5, deadline=5)
    assert working.done()
    assert await working is is_stored
    assert (await world.state() == S.TASK_STATE_COMPLETED) is is_stored
    assert is_stored or (await world.released()).reason == "DeadlineError"


async def test_what_is_dropped_keeps_nothing_waiting() -> None:
    """A turn that is given back while its batch waits drops that, and says at once why."""

    async def gives_up(world: World, emit: Emit) -> None:
        await emit("x" * LARGE)
        waiting = asyncio.ensure_future(emit("x" * LARGE))
        await world.clock.sleep(0.1)
        waiting.cancel()
        raise RetryLater(30, "the index is being built")

    world = World(gives_up)
    working = await world.begin(0.2)
    assert working.done()
    assert not await working
    assert "the index is being built" in await world.text()
    assert [len(text) for _, text in await world.commits()] == [LARGE]


async def commits_of(does: Does) -> list[tuple[int, str]]:
    """Run an agent, and return when it was committed, and what."""

    async def and_lasts(world: World, emit: Emit) -> None:
        await does(world, emit)
        await world.clock.sleep(5)

    world = World(and_lasts)
    assert await (await world.begin(60))
    return await world.commits()


@pytest.mark.parametrize(
    ("emitted", "committed"),
    [
        ((0, 150, 300), [(0, "a"), (150, "b"), (300, "c")]),
        ((0, 100), [(0, "a"), (100, "b")]),
        ((0, 20, 40, 110), [(0, "a"), (120, "bcd")]),
        ((500, 590, 690, 1000), [(500, "a"), (690, "bc"), (1000, "d")]),
    ],
)
async def test_a_chunk_after_a_silence_is_committed_at_once(emitted: Any, committed: Any) -> None:
    """A chunk 0.1 s or more after the last commit began is committed at once."""

    async def paced(world: World, emit: Emit) -> None:
        for number, at_ms in enumerate(emitted):
            await world.clock.sleep(at_ms / 1000 - world.clock.monotonic())
            await emit("abcd"[number])

    assert await commits_of(paced) == committed


async def test_a_steady_stream_costs_one_commit_more() -> None:
    """400 chunks, 5 ms apart: the first one's commit comes on top of one for each 0.1 s."""

    async def steady(world: World, emit: Emit) -> None:
        for _ in range(400):
            await emit("x")
            await world.clock.sleep(0.005)

    began = await commits_of(steady)
    assert (sum(len(texts) for _, texts in began), began[0]) == (400, (0, "x"))
    # Without it: a batch is open for 0.1 s, and the next one opens with the chunk behind it.
    assert len(began) <= 1 + -(-399 // 20)


async def test_what_an_agent_emits_at_once_is_one_commit() -> None:
    """Chunks that are a few rounds of the event loop apart are one commit."""

    async def in_one_go(_: World, emit: Emit) -> None:
        for text in "abcdefgh":
            await emit(text)
            for _round in range(PAUSE_ROUNDS // 2):
                await asyncio.sleep(0)

    assert await commits_of(in_one_go) == [(0, "abcdefgh")]


async def test_an_agent_that_never_pauses_is_committed_all_the_same() -> None:
    """The entries of an agent that never pauses are committed every 0.1 s."""

    async def busy(world: World, emit: Emit) -> None:
        ticks = [asyncio.create_task(world.clock.sleep(number / 20)) for number in range(1, 11)]
        while not all(tick.done() for tick in ticks):
            await emit("x")

    assert [at_ms for at_ms, _ in await commits_of(busy)][:2] == [100, 200]


async def test_chunks_wait_as_long_as_the_setting_says() -> None:
    """A longer wait is fewer commits for the same answer, of which no chunk is missing."""

    async def stream(world: World, emit: Emit) -> None:
        for number in range(8):
            await emit(str(number))
            await world.clock.sleep(0.3)

    for flush_ms, count in ((100, 8), (1000, 3)):
        world = World(stream, flush_ms=flush_ms)
        assert await (await world.begin(10))
        assert (await world.artifacts(), len(await world.commits())) == ({"a": ["01234567"]}, count)

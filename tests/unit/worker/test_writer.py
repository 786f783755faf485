"""When a turn's entries are committed: at once after a silence, in company while more come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.outbox import PAUSE_ROUNDS
from tests.support.workers import Agent, Bench, PacedClock, artifact_texts, chunk, complete

Emit = Callable[[str], Awaitable[None]]


@pytest.fixture(autouse=True, params=[None, 1000], ids=["no pace", "pace"])
def takes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions that take any number of write units, and so many in a second."""
    monkeypatch.setattr(MemoryTable, "partition_units", request.param)


async def commits_of(
    agent: Callable[[PacedClock, Emit], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, str]]:
    """Run an agent, and return when each commit with chunks began, in ms, and their texts."""
    clock = PacedClock()
    began: list[tuple[int, str]] = []
    commit_plain = DurableStorage.commit

    async def commit(self: DurableStorage, head: Head, commit: Commit) -> Head:
        texts = [e.artifact.parts[0].text for e in commit.entries if isinstance(e, ArtifactWritten)]
        if texts:
            began.append((round(clock.monotonic() * 1000), "".join(texts)))
        return await commit_plain(self, head, commit)

    monkeypatch.setattr(DurableStorage, "commit", commit)

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        async def emit(text: str) -> None:
            await queue.enqueue_event(chunk(context, text))

        await agent(clock, emit)
        await clock.sleep(5)
        await complete(context, queue)

    bench = Bench(Agent(execute), clock=clock)
    await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(60)
    assert await working
    return began


def paced(*times_ms: int) -> Callable[[PacedClock, Emit], Awaitable[None]]:
    """An agent that emits the chunks a, b, … at these times."""

    async def agent(clock: PacedClock, emit: Emit) -> None:
        for number, at_ms in enumerate(times_ms):
            await clock.sleep(at_ms / 1000 - clock.monotonic())
            await emit("abcdefgh"[number])

    return agent


@pytest.mark.parametrize(
    ("emitted", "committed"),
    [
        ((0, 150, 300), [(0, "a"), (150, "b"), (300, "c")]),
        ((0, 100), [(0, "a"), (100, "b")]),
        ((0, 20, 40, 110), [(0, "a"), (120, "bcd")]),
        ((500, 590, 690, 1000), [(500, "a"), (690, "bc"), (1000, "d")]),
    ],
)
async def test_a_chunk_after_a_silence_is_committed_at_once(
    emitted: Sequence[int], committed: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk 0.1 s or more after the last commit began is committed at once."""
    assert await commits_of(paced(*emitted), monkeypatch) == committed


async def test_what_an_agent_emits_at_once_is_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that are a few rounds of the event loop apart are one commit."""

    async def in_one_go(clock: PacedClock, emit: Emit) -> None:
        for text in "abcdefgh":
            await emit(text)
            for _ in range(PAUSE_ROUNDS // 2):
                await asyncio.sleep(0)

    assert await commits_of(in_one_go, monkeypatch) == [(0, "abcdefgh")]


async def test_an_agent_that_never_pauses_is_committed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The entries of an agent that never pauses are committed every 0.1 s."""

    async def busy(clock: PacedClock, emit: Emit) -> None:
        ticks = [asyncio.create_task(clock.sleep(number / 20)) for number in range(1, 11)]
        while not all(tick.done() for tick in ticks):
            await emit("x")

    began = await commits_of(busy, monkeypatch)
    assert [at_ms for at_ms, _ in began][:2] == [100, 200]


@pytest.mark.long
async def test_a_steady_stream_costs_one_commit_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,600 chunks, 5 ms apart: the first one's commit comes on top of one for each 0.1 s."""

    async def steady(clock: PacedClock, emit: Emit) -> None:
        for _ in range(1600):
            await emit("x")
            await clock.sleep(0.005)

    began = await commits_of(steady, monkeypatch)
    assert sum(len(texts) for _, texts in began) == 1600
    assert began[0] == (0, "x")
    # Without it: a batch is open for 0.1 s, and the next one opens with the chunk behind it.
    assert len(began) == 1 + -(-1599 // 21)


CHUNKS = 8


@pytest.mark.parametrize(("flush_ms", "most"), [(100, CHUNKS + 2), (1000, 4)])
async def test_chunks_wait_as_long_as_the_setting_says(flush_ms: int, most: int) -> None:
    """A longer wait is fewer commits for the same answer, of which no chunk is missing."""
    clock = PacedClock()

    async def stream(context: RequestContext, queue: EventQueue) -> None:
        for number in range(CHUNKS):
            await queue.enqueue_event(chunk(context, str(number)))
            await clock.sleep(0.3)
        await complete(context, queue)

    bench = Bench(Agent(stream), clock=clock, flush_ms=flush_ms)
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(10)
    assert await working
    commits = len(await bench.records(task)) - 1
    assert artifact_texts(await bench.task(task)) == {"a": ["".join(map(str, range(CHUNKS)))]}
    assert commits <= most
    assert commits > CHUNKS or flush_ms > 100

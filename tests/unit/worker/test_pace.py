"""A turn whose partition takes so many write units a second: who waits, and who does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import Artifact

from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import MAX_COMMIT_BYTES, DurableStorage
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.pace import commit_units
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import RetryLater
from a2a_serverless.worker.outbox import PAUSE_ROUNDS
from tests.support.workers import Agent, PacedClock, S, chunk, complete
from tests.unit.worker.stand import Stand

Emit = Callable[[int], Awaitable[None]]

PARTITION = 1000
LARGE = 300_000
"""Of these, a second has room for one."""
LARGEST = MAX_COMMIT_BYTES - 1000
LARGEST_S = commit_units(LARGEST) / 900
"""How long a commit of that size keeps the next one waiting."""


class World(Stand):
    """A worker on such a table, and the seconds at which its agent's calls have returned."""

    def __init__(self, handle: Callable[[World, Emit], Awaitable[None]]) -> None:
        self.returned: list[float] = []
        self._does = handle
        super().__init__(Agent(self._execute))

    async def _execute(self, context: RequestContext, queue: EventQueue) -> None:
        async def emit(size: int) -> None:
            await queue.enqueue_event(chunk(context, "x" * size))
            self.returned.append(round(self.clock.monotonic(), 3))

        await self._does(self, emit)
        await complete(context, queue)
        self.returned.append(round(self.clock.monotonic(), 3))

    async def sizes(self) -> list[int]:
        """The sizes of the chunks of the task, of which a reader gets one text."""
        log = await self.storage.read(self.task.task_id)
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
    assert await (await world.begin(60))
    assert (world.returned, await world.sizes()) == (returned, sizes)


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
async def test_a_deadline_is_kept_while_the_agent_waits(
    sizes: list[int], *, is_stored: bool
) -> None:
    """A turn that waits is given back in time, and its next attempt goes on from the log.

    An end that waits for its second is stored when the turn has to stop, and not dropped.
    """
    world = World(emitting(*sizes))
    working = await world.begin(4.5, deadline=5)
    assert working.done()
    assert await working is is_stored
    head = await world.head()
    assert (head.state == S.TASK_STATE_COMPLETED) is is_stored
    if not is_stored:
        assert head.turn.released is not None
        assert head.turn.released.reason == "DeadlineError"


async def test_what_is_dropped_keeps_nothing_waiting() -> None:
    """A turn that is given back while its batch waits drops that, and says at once why."""

    async def gives_up(world: World, emit: Emit) -> None:
        await emit(LARGE)
        waiting = asyncio.ensure_future(emit(LARGE))
        await world.clock.sleep(0.1)
        waiting.cancel()
        raise RetryLater(30, "the index is being built")

    world = World(gives_up)
    working = await world.begin(0.2)
    assert working.done()
    assert not await working
    assert "the index is being built" in await world.text()
    assert await world.sizes() == [LARGE]


# -- when entries are committed ------------------------------------------------------------------


Says = Callable[[str], Awaitable[None]]


async def commits_of(
    agent: Callable[[PacedClock, Says], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, str]]:
    """Run an agent, and return when each commit with chunks began, in ms, and their texts."""
    began: list[tuple[int, str]] = []
    commit_plain = DurableStorage.commit

    async def commit(self: DurableStorage, head: Head, commit: Commit) -> Head:
        texts = [e.artifact.parts[0].text for e in commit.entries if isinstance(e, ArtifactWritten)]
        if texts:
            began.append((round(stand.clock.monotonic() * 1000), "".join(texts)))
        return await commit_plain(self, head, commit)

    monkeypatch.setattr(DurableStorage, "commit", commit)

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        async def emit(text: str) -> None:
            await queue.enqueue_event(chunk(context, text))

        await agent(stand.clock, emit)
        await stand.clock.sleep(5)
        await complete(context, queue)

    stand = Stand(Agent(execute))
    assert await (await stand.begin(60))
    return began


def paced(*times_ms: int) -> Callable[[PacedClock, Says], Awaitable[None]]:
    """An agent that emits the chunks a, b, … at these times."""

    async def agent(clock: PacedClock, emit: Says) -> None:
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


async def test_a_steady_stream_costs_one_commit_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 chunks, 5 ms apart: the first one's commit comes on top of one for each 0.1 s."""

    async def steady(clock: PacedClock, emit: Says) -> None:
        for _ in range(400):
            await emit("x")
            await clock.sleep(0.005)

    began = await commits_of(steady, monkeypatch)
    assert sum(len(texts) for _, texts in began) == 400
    assert began[0] == (0, "x")
    # Without it: a batch is open for 0.1 s, and the next one opens with the chunk behind it.
    assert len(began) <= 1 + -(-399 // 20)


async def test_what_an_agent_emits_at_once_is_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that are a few rounds of the event loop apart are one commit."""

    async def in_one_go(clock: PacedClock, emit: Says) -> None:
        for text in "abcdefgh":
            await emit(text)
            for _ in range(PAUSE_ROUNDS // 2):
                await asyncio.sleep(0)

    assert await commits_of(in_one_go, monkeypatch) == [(0, "abcdefgh")]


async def test_an_agent_that_never_pauses_is_committed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The entries of an agent that never pauses are committed every 0.1 s."""

    async def busy(clock: PacedClock, emit: Says) -> None:
        ticks = [asyncio.create_task(clock.sleep(number / 20)) for number in range(1, 11)]
        while not all(tick.done() for tick in ticks):
            await emit("x")

    began = await commits_of(busy, monkeypatch)
    assert [at_ms for at_ms, _ in began][:2] == [100, 200]


CHUNKS = 8


@pytest.mark.parametrize(("flush_ms", "most"), [(100, CHUNKS + 2), (1000, 4)])
async def test_chunks_wait_as_long_as_the_setting_says(flush_ms: int, most: int) -> None:
    """A longer wait is fewer commits for the same answer, of which no chunk is missing."""

    async def stream(context: RequestContext, queue: EventQueue) -> None:
        for number in range(CHUNKS):
            await queue.enqueue_event(chunk(context, str(number)))
            await stand.clock.sleep(0.3)
        await complete(context, queue)

    stand = Stand(Agent(stream), flush_ms=flush_ms)
    assert await (await stand.begin(10))
    commits = len(await stand.bench.records(stand.task)) - 1
    assert await stand.artifacts() == {"a": ["".join(map(str, range(CHUNKS)))]}
    assert commits <= most
    assert commits > CHUNKS or flush_ms > 100

"""Following a task: what is delivered, in which order, and where a resumed tail begins."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from a2a.types import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent

from a2a_serverless.errors import TaskNotFoundError
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.tail import Tail, TailEvent, _poll_interval
from a2a_serverless.tasks.entries import ArtifactWritten, StatusChanged
from a2a_serverless.tasks.fold import Cursor, Log
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from tests.support.clocks import ManualClock, Timetable
from tests.support.commits import COMPLETED, WORKING, claim, opened, status, to, wrote
from tests.support.memory import PolledTable, memory_storage
from tests.support.workers import idle


def shown(delivery: TailEvent) -> str:
    match delivery.event:
        case Task():
            return "task:" + "".join(p.text for a in delivery.event.artifacts for p in a.parts)
        case TaskStatusUpdateEvent():
            return TaskState.Name(delivery.event.status.state).removeprefix("TASK_STATE_").lower()
        case TaskArtifactUpdateEvent():
            return "".join(part.text for part in delivery.event.artifact.parts)
        case _:
            raise AssertionError


def ended(head: Head) -> bool:
    return head.is_terminal


@pytest.fixture
def storage(clock: ManualClock) -> DurableStorage:
    return memory_storage(clock=clock)


async def running(storage: DurableStorage) -> Head:
    """A task whose agent works: submitted; working, 1, 2; 3."""
    head = await opened(storage)
    for commit in (
        claim("A", status(WORKING), wrote("1"), wrote("2")),
        Commit(entries=(wrote("3"),), token="A"),
    ):
        head = await storage.commit(head, commit)
    return head


async def follow(tail: Tail) -> list[TailEvent]:
    deadline = asyncio.get_running_loop().time() + 30
    return [delivery async for delivery in tail.events(until=ended, deadline=deadline)]


async def test_events_in_order(storage: DurableStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event once, also while it waits; in memory nothing is read until a commit wakes it."""
    reads, read_plain, changed_plain = list[str](), storage.read, storage.changed

    async def read(task_id: str, **options: Any) -> Log | None:
        reads.append(task_id)
        return await read_plain(task_id, **options)

    async def changed(task_id: str, version: int, timeout_s: float) -> None:
        assert timeout_s > 29
        await changed_plain(task_id, version, timeout_s)

    head = await opened(storage)
    tail = await Tail.open(storage, head.task_id)
    monkeypatch.setattr(storage, "read", read)
    monkeypatch.setattr(storage, "changed", changed)
    following = asyncio.create_task(follow(tail))
    for commit in (
        claim("A", status(WORKING), wrote("1")),
        Commit(entries=(wrote("2"),), token="A"),
        to(COMPLETED, token="A"),
    ):
        await idle()
        head = await storage.commit(head, commit)
        await idle()
    assert [shown(d) for d in await following] == ["working", "1", "2", "completed"]
    assert reads == [head.task_id] * 3
    assert tail.fold.task() == await storage.load_task(head.task_id)


async def test_resuming_at_any_cursor_gives_the_rest(storage: DurableStorage) -> None:
    """Task and rest are the whole, wherever it was cut; a foreign cursor gets the task as it is."""
    head = await storage.commit(await running(storage), to(COMPLETED, token="A"))
    tail, first = await Tail.resume(storage, head.task_id, await start_of(storage, head))
    everything = await follow(tail)
    assert shown(first) == "task:"
    assert [shown(d) for d in everything] == ["working", "1", "2", "3", "completed"]
    for cut, delivery in enumerate(everything):
        tail, snapshot = await Tail.resume(storage, head.task_id, delivery.cursor)
        assert snapshot.cursor == delivery.cursor
        assert shown(snapshot) == "task:" + "123"[: min(cut, 3)]
        assert [d.cursor for d in await follow(tail)] == [d.cursor for d in everything[cut + 1 :]]
    tag = first.cursor.tag
    for cursor in (Cursor(2, 0, "aaaaaa"), Cursor(99, 0, tag), Cursor(0, 0, tag)):
        tail, snapshot = await Tail.resume(storage, head.task_id, cursor)
        assert shown(snapshot) == "task:123"
        assert await follow(tail) == []


async def test_unknown_and_deleted_tasks_end_the_tail(storage: DurableStorage) -> None:
    """A tail of an unknown or deleted task raises TaskNotFoundError."""
    with pytest.raises(TaskNotFoundError):
        await Tail.open(storage, "nobody")
    head = await opened(storage)
    tail = await Tail.open(storage, head.task_id)
    following = asyncio.create_task(follow(tail))
    await asyncio.sleep(0)
    await delete_task(storage, head.task_id)
    with pytest.raises(TaskNotFoundError):
        await following


async def test_a_slow_reader_is_ended(storage: DurableStorage, clock: ManualClock) -> None:
    """While the task goes on; the next goes on behind it; what a finished task owes is not cut."""
    head = await running(storage)
    start = await start_of(storage, head)
    tail, _ = await Tail.resume(storage, head.task_id, start)
    taken = await take_slowly(tail, clock, deadline=2.0)
    assert [shown(d) for d in taken] == ["working", "1"]
    assert not ended(tail.head)
    await storage.commit(head, to(COMPLETED, token="A"))
    whole = ["working", "1", "2", "3", "completed"]
    for cursor, options, expected in (
        (taken[-1].cursor, {"deadline": 1.0}, whole[2:]),
        (start, {"deadline": -0.8}, whole),  # a read that took longer than the whole limit
        (start, {"deadline": 1.0, "stop": 3.0}, whole[:3]),
    ):
        tail, _ = await Tail.resume(storage, head.task_id, cursor)
        limits = {name: clock.monotonic() + after for name, after in options.items()}
        assert [shown(d) for d in await take_slowly(tail, clock, **limits)] == expected


async def take_slowly(
    tail: Tail, clock: ManualClock, *, deadline: float, stop: float = math.inf
) -> list[TailEvent]:
    """Return what a reader gets who takes a second for each event."""
    taken = []
    async for delivery in tail.events(until=ended, deadline=deadline, stop=stop):
        taken.append(delivery)
        clock.advance(1.0)
    return taken


async def start_of(storage: DurableStorage, head: Head) -> Cursor:
    return Cursor(1, 0, (await Tail.open(storage, head.task_id)).snapshot().cursor.tag)


class Polled(DurableStorage):
    """Storage that does not wake its readers, as DynamoDB, and counts how often it is read."""

    def __init__(self, clock: Timetable) -> None:
        super().__init__(PolledTable(clock), clock=clock)
        self.reads = 0

    async def read(self, *args: Any, **options: Any) -> Log | None:
        self.reads += 1
        return await super().read(*args, **options)


async def streamed(
    *, apart_s: float, flush_s: float, chunks: int = 10
) -> tuple[list[float], Polled]:
    """How late a stream shows each chunk and, 10 ms after the last one, the turn's end.

    The storage has counted the reads from the first chunk on.
    """
    clock = Timetable()
    storage = Polled(clock)
    heads = [await opened(storage)]
    heads.append(await storage.commit(heads[-1], claim("A")))

    def at(seconds: float, entry: ArtifactWritten | StatusChanged) -> float:
        async def commit() -> None:
            heads.append(await storage.commit(heads[-1], Commit(entries=(entry,), token="A")))

        clock.at(seconds, commit)
        return seconds

    made = [at(apart_s * (n + 1), wrote(str(n))) for n in range(chunks)]
    made.append(at(made[-1] + 0.01, status(COMPLETED)))
    tail = await Tail.open(storage, heads[0].task_id)
    seen: list[float] = []
    async for _ in tail.events(until=ended, deadline=60, flush_s=flush_s):
        if not seen:
            storage.reads = 0
        seen.append(clock.monotonic())
    return [late - begun for late, begun in zip(seen, made, strict=True)], storage


@pytest.mark.parametrize(
    ("apart_s", "flush_s", "most_reads"),
    [(0.1, 0.1, 30), (0.2, 0.1, 69), (0.5, 0.5, 30), (1, 0.5, 94)],
)
async def test_a_stream_reads_little(apart_s: float, flush_s: float, most_reads: int) -> None:
    """After chunks it reads once for the end, and then when others may be there: none is late."""
    late, storage = await streamed(apart_s=apart_s, flush_s=flush_s)
    as_before, other = await streamed(apart_s=apart_s, flush_s=0)
    assert max(late[:-1]) <= max(0.025, 0.1 * apart_s) + 0.001
    assert late[-1] <= max(0.025, late[-2])  # of a poll that has found the last chunk, too
    assert max(late) <= max(as_before) + 0.001
    assert storage.reads <= most_reads < other.reads


async def test_a_quiet_task_is_read_once_a_second_at_most() -> None:
    """After 15 ms polls wait a tenth of the silence, from 25 ms to 1 s, and not for chunks."""
    silences = [(0, 0.015), (0.015, 0.025), (5, 0.5), (600, 1.0)]
    assert [_poll_interval(silent_s) for silent_s, _ in silences] == [s for _, s in silences]
    waits = [(0.1, 0, 0.025), (2, 0.475, 0.2), (0, 5, 0.015), (0.015, 5, 1.0)]
    assert [_poll_interval(*args) for *args, _ in waits] == [seconds for *_, seconds in waits]
    clock = Timetable()
    storage = Polled(clock)
    tail = await Tail.open(storage, (await opened(storage)).task_id)
    reads: list[int] = []

    async def note() -> None:
        reads.append(storage.reads)

    for seconds in (0, 10, 30):
        clock.at(seconds, note)
    assert [one async for one in tail.events(until=ended, deadline=30)] == []
    first, quick, slow = reads
    assert abs(quick - first - 48) <= 1
    assert abs(slow - quick - 20) <= 1

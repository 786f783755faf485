"""Snapshots of long tasks, over each table: a shorter way to what the log says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from a2a.types import Artifact, Part, TaskState, TaskStatus

from a2a_serverless.errors import ConfigurationError, InvalidArgumentError, UnavailableError
from a2a_serverless.storage import durable, snapshots
from a2a_serverless.storage.blobs import Blobs, MemoryBlobs
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.directory import DirectoryBlobs
from a2a_serverless.storage.durable import _NEWEST, DurableStorage
from a2a_serverless.storage.snapshots import NearSnapshots
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Table
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.blobs import Blob, BlobOwner
from a2a_serverless.tasks.entries import (
    OFFLOAD_BYTES,
    ArtifactWritten,
    Caller,
    Entry,
    StatusChanged,
    TurnOpened,
    Unknown,
)
from a2a_serverless.tasks.fold import Cursor, Log, Snapshot, incarnation_tag
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import new_token
from a2a_serverless.tasks.rules import SNAPSHOT_BYTES, Commit, wants_snapshot
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from tests.support.clocks import ManualClock
from tests.support.messages import request
from tests.support.present import present
from tests.support.workers import Bench, artifact_texts

CHUNK = "x" * 6_000
ASKS = TaskState.TASK_STATE_INPUT_REQUIRED


@pytest.fixture
def blobs(backend: Table, clock: ManualClock, tmp_path: Path) -> Iterator[Blobs]:
    """The store that goes with each table: a folder with a file, else dictionaries."""
    is_file = isinstance(backend, SqliteTable)
    yield (
        DirectoryBlobs(tmp_path / "blobs", clock, keep_s=3600) if is_file else MemoryBlobs(clock)
    )
    backend.blobs = None


@pytest.fixture
def storage(storage: DurableStorage, blobs: Blobs) -> DurableStorage:
    """The storage on each table, with its store."""
    storage.table.blobs = blobs
    return storage


def written(text: str, *, append: bool = True, name: str = "a") -> Entry:
    artifact = Artifact(artifact_id=name, parts=[Part(text=text)])
    return ArtifactWritten(artifact, append=append)


def status_of(state: TaskState) -> Entry:
    return StatusChanged(TaskStatus(state=state))


async def turn(storage: DurableStorage, head: Head | None, text: str, *, chunks: int = 4) -> Head:
    """Let a turn write chunks and ask; return HEAD then."""
    if head is None:
        head = (await storage.open_task("ctx", request(text))).head
    else:
        head = await storage.commit(head, Commit(entries=(TurnOpened(request(text), Caller()),)))
    token = new_token()
    head = await storage.commit(head, Commit(token=token, claims=True))
    for number in range(chunks):
        entry = written(f"{text}{number} {CHUNK}", append=number > 0, name=text)
        head = await storage.commit(head, Commit(entries=(entry,), token=token))
    return await storage.commit(
        head, Commit(entries=(status_of(ASKS),), token=token, ends_turn=True)
    )


async def long_task(storage: DurableStorage, turns: int = 6) -> Head:
    """Return HEAD of a task whose turns each were followed by what a worker does."""
    head: Head | None = None
    for number in range(turns):
        head = await turn(storage, head, f"{number}")
        await after_turn(storage, head)
        head = await stored(storage, head)
    assert head is not None
    assert head.snapshot.version
    return head


async def after_turn(storage: DurableStorage, head: Head) -> None:
    """Do what a worker does when it has ended a turn."""
    if wants_snapshot(head):
        await snapshots.take_snapshot(storage, head)


async def stored(storage: DurableStorage, head: Head) -> Head:
    return present(await storage.head(head.task_id))


async def read(storage: DurableStorage, head: Head, *, is_whole: bool = False) -> Log:
    return present(await storage.read(head.task_id, is_whole=is_whole))


async def test_a_process_reads_a_snapshot_once(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept in memory until HEAD names a later one, which takes its place."""
    head = await long_task(storage)
    asked: list[Head] = []

    async def noted(reader: DurableStorage, named: Head) -> Snapshot | None:
        if reader is other:
            asked.append(named)
        return await snapshots.snapshot_of(reader, named)

    monkeypatch.setattr(durable, "snapshot_of", noted)
    other = replace(storage, near=NearSnapshots())
    for _ in range(3):
        assert present((await read(other, head)).since).last == head.snapshot.version
    assert len(asked) == 1
    first = head.snapshot.version
    while head.snapshot.version == first:
        head = await turn(storage, head, "more")
        await after_turn(storage, head)
        head = await stored(storage, head)
    for _ in range(3):
        assert present((await read(other, head)).since).last == head.snapshot.version
        assert (await read(other, head)).fold().task() == await storage.load_task(head.task_id)
    assert len(asked) == 2


async def test_a_link_to_a_file_before_the_snapshot_is_taken(storage: DurableStorage) -> None:
    """Another one of the task is refused, and one that the snapshot stands for is not."""
    large = b"x" * (OFFLOAD_BYTES + 1)
    sent = request("0")
    sent.message.parts.append(Part(raw=large))
    opened = (await storage.open_task("ctx", sent)).head
    token = new_token()
    head = await storage.commit(opened, Commit(token=token, claims=True))
    ends = Commit(entries=(status_of(ASKS),), token=token, ends_turn=True)
    head = await storage.commit(head, ends)
    for number in range(6):
        head = await turn(storage, head, f"{number}")
        await after_turn(storage, head)
        head = await stored(storage, head)
    assert opened.version not in [one.version for one in (await read(storage, head)).records]
    blob = Blob.of(large, BlobOwner(storage.scope.digest, head.task_id, head.incarnation))
    for size, is_taken in ((blob.size + 1, False), (blob.size, True)):
        answer = request("again")
        answer.message.parts.append(Part(url=f"https://store/{replace(blob, size=size).key}"))
        commit = Commit(entries=(TurnOpened(answer, Caller()),))
        if is_taken:
            await storage.commit(head, commit)
        else:
            with pytest.raises(InvalidArgumentError, match="that the task does not have"):
                await storage.commit(head, commit)


async def snapshots_of(storage: DurableStorage, *heads: Head) -> list[bool]:
    """Return which of the snapshots that HEADs have named are stored."""
    return [await snapshots.snapshot_of(storage, head) is not None for head in heads]


def without_ids(log: Log) -> Any:
    fold = log.fold()
    return fold.task(), fold.reply, fold.turn_at(fold.version)


async def test_a_reader_gets_the_same(storage: DurableStorage) -> None:
    """With a snapshot a task reads as its whole log does, behind turns and inside of one."""
    head: Head | None = None
    for number in range(5):
        head = await turn(storage, head, f"{number}")
        await after_turn(storage, head)
        head = await stored(storage, head)
        log, whole = await read(storage, head), await read(storage, head, is_whole=True)
        assert whole.since is None
        assert without_ids(log) == without_ids(whole)
        assert await storage.load_task(head.task_id, 1) == whole.fold().task(1)
    assert head is not None
    head = await storage.commit(head, Commit(entries=(TurnOpened(request("6"), Caller()),)))
    first = new_token()
    head = await storage.commit(head, Commit(token=first, claims=True))
    head = await storage.commit(head, Commit(entries=(written("half", name="6"),), token=first))
    log, whole = await read(storage, head), await read(storage, head, is_whole=True)
    assert log.since is not None
    assert len(log.records) == head.version - log.since.version < len(whole.records)
    assert without_ids(log) == without_ids(whole)
    assert log.restarted().task() == whole.restarted().task()
    assert (log.caller, log.beginnings(), log.replayed()) == (
        *(whole.caller, whole.beginnings(), whole.replayed()),
    )


async def test_what_is_read_does_not_grow(storage: DurableStorage) -> None:
    """However long the task: a snapshot, and at most 64 KB of log and a turn, are read."""
    head: Head | None = None
    longest = 0
    for number in range(12):
        head = await turn(storage, head, f"{number}")
        await after_turn(storage, head)
        head = await stored(storage, head)
        log = await read(storage, head)
        longest = max(longest, sum(len(str(record.entries)) for record in log.records))
    assert head is not None
    assert head.size > 280_000
    assert longest < SNAPSHOT_BYTES + 30_000


async def test_a_short_task_has_no_snapshot(storage: DurableStorage) -> None:
    """Nor has one whose turn is open, or that has written little since its last one."""
    head = await turn(storage, None, "1", chunks=2)
    await after_turn(storage, head)
    assert not (await stored(storage, head)).snapshot.version
    head = await long_task(storage)
    await after_turn(storage, head)
    assert (await stored(storage, head)).snapshot.version == head.snapshot.version
    opened = await storage.commit(head, Commit(entries=(TurnOpened(request("6"), Caller()),)))
    opened = await storage.commit(opened, Commit(entries=(written(CHUNK * 12),)))
    await after_turn(storage, opened)
    assert (await stored(storage, head)).snapshot.version == head.snapshot.version


async def test_the_snapshot_before_is_deleted(storage: DurableStorage) -> None:
    """One snapshot of a task is stored; a reader that knows another one reads the whole log."""
    head = await long_task(storage)
    old, now = head, await long_task_more(storage, head)
    assert now.snapshot.version > old.snapshot.version
    assert await snapshots_of(storage, old, now) == [False, True]


async def long_task_more(storage: DurableStorage, head: Head) -> Head:
    """Return HEAD of the task after so many turns that it has another snapshot."""
    for number in range(4):
        head = await turn(storage, head, f"more {number}")
        await after_turn(storage, head)
        head = await stored(storage, head)
    return head


@pytest.mark.parametrize("content", [None, b"", b"[1, 1, 1, 1]\n"])
async def test_a_snapshot_that_cannot_be_read_is_not_missed(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """Missing, damaged or of another version: the whole log is read instead."""
    head = await long_task(storage)
    whole = await read(storage, head, is_whole=True)

    async def found(*_: object) -> bytes | None:
        return content

    monkeypatch.setattr(snapshots, "whole", found)
    assert await read(storage, head) == whole
    assert await storage.load_task(head.task_id) == whole.fold().task()


@pytest.mark.parametrize("error", [ConfigurationError("It refuses."), UnavailableError("S3")])
async def test_a_store_that_refuses_hinders_no_reader(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The whole log is in the table, and is read instead."""
    head = await long_task(storage)
    whole = await read(storage, head, is_whole=True)

    async def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(blobs, "get", refuse)
    assert await read(storage, head) == whole


async def test_a_store_that_refuses_hinders_no_turn(
    storage: DurableStorage,
    blobs: Blobs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The worker logs it, and the task is read as before."""

    async def refuse(*_: object) -> None:
        raise ConfigurationError("The bucket refuses.")

    monkeypatch.setattr(blobs, "put", refuse)
    head = await turn(storage, None, "1", chunks=12)
    await after_turn(storage, head)
    assert "A snapshot was not stored: The bucket refuses." in caplog.text
    log = await read(storage, head)
    assert (log.since, log.head.snapshot.version) == (None, 0)


async def test_a_late_snapshot_is_dropped(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was held up before it named its snapshot does not take back a newer one."""
    head = await turn(storage, None, "1", chunks=12)
    late = await held_up(storage, monkeypatch, head)
    newer = await long_task_more(storage, head)
    await late()
    after = await stored(storage, head)
    assert after.snapshot.version == newer.snapshot.version
    assert await snapshots_of(storage, after) == [True]
    assert await blobs_of(storage, head) == [f"!{after.snapshot.version}"]


async def held_up(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch, head: Head
) -> Callable[[], Awaitable[None]]:
    """Let a worker take a snapshot, until it is to name it; return what lets it go on."""
    kept = storage.table.write
    waiting, held = asyncio.Event(), asyncio.Event()

    async def later(*writes: Any, **options: Any) -> None:
        waiting.set()
        await held.wait()
        await kept(*writes, **options)

    with monkeypatch.context() as patched:
        patched.setattr(storage.table, "write", later)
        late = asyncio.create_task(after_turn(storage, head))
        await waiting.wait()

    async def goes_on() -> None:
        held.set()
        await late

    return goes_on


async def test_a_snapshot_that_is_named_meanwhile_is_deleted(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker deletes the snapshot that it replaces, also if it has read HEAD before that."""
    head = await turn(storage, None, "1", chunks=12)
    first = await held_up(storage, monkeypatch, head)
    head = await turn(storage, head, "2", chunks=12)
    second = await held_up(storage, monkeypatch, head)
    await first()
    await second()
    assert (await stored(storage, head)).snapshot.version == head.version
    assert await blobs_of(storage, head) == [f"!{head.version}"]


async def blobs_of(storage: DurableStorage, head: Head) -> list[str]:
    """Return the marks of a task's stored snapshots."""
    blobs = storage.table.blobs
    within = f"{head.scope}.{head.task_id}/{head.incarnation}/"
    if isinstance(blobs, MemoryBlobs):
        keys = list(blobs._contents)
    else:
        assert isinstance(blobs, DirectoryBlobs)
        keys = [str(path.relative_to(blobs._folder)) for path in blobs._folder.rglob("*.*")]
    return sorted({key.removeprefix(within).split("/")[0] for key in keys if within in key})


@pytest.mark.parametrize("is_moved", [False, True], ids=["as it was", "moved by another"])
async def test_a_lost_answer_leaves_the_snapshot(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch, *, is_moved: bool
) -> None:
    """The write was made, and is refused when it is repeated: what HEAD names stays."""
    head = await turn(storage, None, "1", chunks=12)
    kept = storage.table.write

    async def twice(*writes: Any, **options: Any) -> None:
        await kept(*writes, **options)
        monkeypatch.undo()
        if is_moved:
            follow_up = Commit(entries=(TurnOpened(request("more"), Caller()),))
            await storage.commit(await stored(storage, head), follow_up)
        await kept(*writes, **options)

    monkeypatch.setattr(storage.table, "write", twice)
    await after_turn(storage, head)
    head = await stored(storage, head)
    assert await snapshots_of(storage, head) == [True]


async def test_a_deleted_task_leaves_no_snapshot(storage: DurableStorage) -> None:
    """Also if a worker stores one after the deletion."""
    head = await long_task(storage)
    last = await turn(storage, head, "last", chunks=12)
    await delete_task(storage, last.task_id)
    assert await blobs_of(storage, head) == []
    await after_turn(storage, last)
    assert await blobs_of(storage, head) == []


async def test_a_task_that_is_deleted_meanwhile_leaves_nothing(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker has read it before, and stores a snapshot after the deletion."""
    last = await turn(storage, None, "1", chunks=12)
    put = blobs.put

    async def late(*given: Any) -> None:
        await delete_task(storage, last.task_id)
        await put(*given)

    monkeypatch.setattr(blobs, "put", late)
    await after_turn(storage, last)
    assert await blobs_of(storage, last) == []
    if isinstance(blobs, DirectoryBlobs):
        assert [*blobs._folder.iterdir()] == []


async def test_a_snapshot_keeps_what_a_newer_release_knows(storage: DurableStorage) -> None:
    """A log with an entry that cannot be read and counts gets no snapshot, which would lose it."""
    head = (await storage.open_task("ctx", request("1"))).head
    head = await storage.commit(head, Commit(entries=(Unknown(b"~", 0x80, b"?"),)))
    token = new_token()
    head = await storage.commit(head, Commit(token=token, claims=True))
    entries = (written(CHUNK * 12), status_of(ASKS))
    head = await storage.commit(head, Commit(entries=entries, token=token, ends_turn=True))
    await after_turn(storage, head)
    assert not (await stored(storage, head)).snapshot.version


async def test_streams_have_the_same_ids(storage: DurableStorage) -> None:
    """A stream that opens, or goes on from any event, is as with the whole log."""
    head = await long_task(storage)
    opened = await Tail.open(storage, head.task_id)
    whole = await Tail.open(storage, head.task_id, is_whole=True)
    assert opened.snapshot() == whole.snapshot()
    for version in range(1, head.version + 1, 3):
        cursor = Cursor(version, 0, incarnation_tag(head.incarnation))
        tail, opening = await Tail.resume(storage, head.task_id, cursor)
        assert opening.cursor == cursor
        assert opening.event == (await as_of(storage, head, version))
        assert tail.fold.task() == whole.fold.task()


async def as_of(storage: DurableStorage, head: Head, version: int) -> Any:
    log = await read(storage, head, is_whole=True)
    return log.fold(version).task()


async def test_a_task_with_many_small_commits(storage: DurableStorage) -> None:
    """More commits since the snapshot than the first page of a read has."""
    head = await long_task(storage)
    head = await storage.commit(head, Commit(entries=(TurnOpened(request("6"), Caller()),)))
    token = new_token()
    head = await storage.commit(head, Commit(token=token, claims=True))
    for number in range(_NEWEST + 5):
        head = await storage.commit(
            head, Commit(entries=(written(f"{number}", name="6"),), token=token)
        )
    log, whole = await read(storage, head), await read(storage, head, is_whole=True)
    assert log.since is not None
    assert len(log.records) > _NEWEST
    assert without_ids(log) == without_ids(whole)


async def test_commits_of_which_a_page_has_few(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DynamoDB ends a page at 1 MB: the read goes on at once, and does not wait for a writer."""
    head = (await storage.open_task("ctx", request("1"))).head
    parts = [Part(text="x" * 30_000, media_type=f"text/{number}") for number in range(10)]
    for number in range(5):
        entry = ArtifactWritten(Artifact(artifact_id=f"{number}", parts=parts))
        head = await storage.commit(head, Commit(entries=(entry,)))
    monkeypatch.setattr(storage.clock, "sleep", Mock(side_effect=AssertionError))
    assert await read(storage, head) == await read(storage, head, is_whole=True)


class Talker(Worker):
    """Says much in each turn, and asks; the second attempt of each turn does."""

    def __init__(self) -> None:
        self.given: list[int] = []

    async def handle(self, ctx: TaskContext) -> None:
        self.given.append(len(ctx.history))
        await ctx.emit_text_artifact(f"{ctx.user_text} {CHUNK * 4}", artifact_id=ctx.user_text)
        await ctx.request_input("And then?")


async def test_turns_go_on_behind_a_snapshot(blobs: Blobs) -> None:
    """The agent of a later turn is given the whole history, and the task has all artifacts."""
    agent = Talker()
    bench = Bench(WorkerExecutor(agent))
    bench.storage.table.blobs = blobs
    task = await bench.send("0")
    assert await bench.work()
    for number in range(1, 8):
        head = present(await bench.storage.head(task.task_id))
        await bench.follow_up(head, f"{number}")
        assert await bench.work()
    head = present(await bench.storage.head(task.task_id))
    assert head.snapshot.version > 0
    assert agent.given == [2 * number for number in range(8)]
    done = await bench.task(task)
    assert [*artifact_texts(done)] == [f"{number}" for number in range(8)]
    assert await bench.storage.load_task(task.task_id) == (
        (await read(bench.storage, head, is_whole=True)).fold().task()
    )

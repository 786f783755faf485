"""Snapshots of long tasks, over each table: a shorter way to what the log says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from a2a.types import Artifact, Part

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
    CRITICAL,
    OFFLOAD_BYTES,
    ArtifactWritten,
    TurnOpened,
    Unknown,
)
from a2a_serverless.tasks.fold import Cursor, Log, Record, Snapshot, incarnation_tag
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.identity import new_token
from a2a_serverless.tasks.rules import SNAPSHOT_BYTES, Commit, wants_snapshot
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from tests.support.clocks import ManualClock
from tests.support.commits import (
    INPUT_REQUIRED,
    claim,
    follow_up,
    log_of,
    newest,
    opened,
    status,
    to,
    wrote,
)
from tests.support.messages import request, said
from tests.support.present import present
from tests.support.workers import Bench, artifact_texts

CHUNK = "x" * 6_000


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


async def turn(storage: DurableStorage, head: Head | None, text: str, *, chunks: int = 4) -> Head:
    """Let a turn write chunks and ask; return HEAD then."""
    head = await claimed(storage, head, text)
    token = head.turn.token
    for number in range(chunks):
        entry = wrote(f"{text}{number} {CHUNK}", name=text)
        head = await storage.commit(head, Commit(entries=(entry,), token=token))
    return await storage.commit(head, to(INPUT_REQUIRED, token=token, ends_turn=True))


async def sent(storage: DurableStorage, head: Head | None, text: str, **options: Any) -> Head:
    """Let a client send a message; return HEAD with the turn that it has opened."""
    if head is None:
        return await opened(storage, text, **options)
    return await storage.commit(head, follow_up(text))


async def claimed(storage: DurableStorage, head: Head | None, text: str) -> Head:
    """Let a client send a message, and a worker claim the turn; return HEAD then."""
    return await storage.commit(await sent(storage, head, text), claim(new_token()))


async def long_task(storage: DurableStorage, head: Head | None = None, *, turns: int = 4) -> Head:
    """Return HEAD of a task after more turns, which each were followed by what a worker does."""
    for number in range(turns):
        head = await turn(storage, head, f"{head.version if head else 0}-{number}")
        await after_turn(storage, head)
        head = await newest(storage, head)
    assert head is not None
    assert head.snapshot.version
    return head


async def after_turn(storage: DurableStorage, head: Head) -> None:
    """Do what a worker does when it has ended a turn."""
    if wants_snapshot(head):
        await snapshots.take_snapshot(storage, head)


async def read(storage: DurableStorage, head: Head) -> Log:
    """The log of a task as its readers get it."""
    return await log_of(storage, head, is_whole=False)


async def test_it_is_read_once(storage: DurableStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept in memory until HEAD names a later one, which takes its place."""
    head = await long_task(storage)
    asked: list[Head] = []

    async def noted(reader: DurableStorage, named: Head) -> Snapshot | None:
        if reader is other:
            asked.append(named)
        return await snapshots.snapshot_of(reader, named)

    monkeypatch.setattr(durable, "snapshot_of", noted)
    other = replace(storage, near=NearSnapshots())
    for number in (1, 2):
        for _ in range(3):
            assert present((await read(other, head)).since).last == head.snapshot.version
            assert (await read(other, head)).fold().task() == await storage.load_task(head.task_id)
        assert len(asked) == number
        head = await long_task(storage, head)


async def test_a_link_to_a_file_before_the_snapshot_is_taken(storage: DurableStorage) -> None:
    """Another one of the task is refused, and one that the snapshot stands for is not."""
    large = b"x" * (OFFLOAD_BYTES + 1)
    said = request("0")
    said.message.parts.append(Part(raw=large))
    first = (await storage.open_task("ctx", said)).head
    ends = claim("t", status(INPUT_REQUIRED), ends_turn=True)
    head = await long_task(storage, await storage.commit(first, ends))
    assert first.version not in [one.version for one in (await read(storage, head)).records]
    blob = Blob.of(large, BlobOwner(storage.scope.digest, head.task_id, head.incarnation))
    for size, is_taken in ((blob.size + 1, False), (blob.size, True)):
        answer = request("again")
        answer.message.parts.append(Part(url=f"https://store/{replace(blob, size=size).key}"))
        commit = Commit(entries=(TurnOpened(answer),))
        if is_taken:
            await storage.commit(head, commit)
        else:
            with pytest.raises(InvalidArgumentError, match="that the task does not have"):
                await storage.commit(head, commit)


async def check_same(storage: DurableStorage, head: Head) -> Log:
    """Compare what a reader gets with the whole log, and return it."""
    log, whole = await read(storage, head), await log_of(storage, head)
    assert whole.since is None
    assert log.head == whole.head
    one, other = log.fold(), whole.fold()
    assert one.task() == other.task()
    assert (one.reply, one.turn_at(one.version)) == (other.reply, other.turn_at(other.version))
    assert await storage.load_task(head.task_id, 1) == other.task(1)
    if head.turn.is_open:
        assert log.restarted().task() == whole.restarted().task()
        assert (log.opening, log.caller) == (whole.opening, whole.caller)
        assert (log.beginnings(), log.replayed()) == (whole.beginnings(), whole.replayed())
    return log


async def test_a_reader_gets_the_same(storage: DurableStorage) -> None:
    """A snapshot reads as the whole log; of any length it, 64 KB of log and a turn are read."""
    head, longest = None, 0
    for number in range(9):
        head = await turn(storage, head, f"{number}")
        await after_turn(storage, head)
        head = await newest(storage, head)
        log = await check_same(storage, head)
        longest = max(longest, sum(len(str(record.entries)) for record in log.records))
    assert head is not None
    assert head.size > 2 * (SNAPSHOT_BYTES + 30_000)
    assert longest < SNAPSHOT_BYTES + 30_000
    head = await claimed(storage, head, "13")
    for number in range(_NEWEST + 5):
        piece = Commit(entries=(wrote(f"{number}", name="13"),), token=head.turn.token)
        head = await storage.commit(head, piece)
        if number == 0:
            await check_same(storage, head)
    log = await check_same(storage, head)
    assert _NEWEST < len(log.records) == head.version - present(log.since).version


async def test_a_short_task_has_no_snapshot(storage: DurableStorage) -> None:
    """Nor has one whose turn is open, or that has written little since its last one."""
    head = await turn(storage, None, "1", chunks=2)
    await after_turn(storage, head)
    assert not (await newest(storage, head)).snapshot.version
    head = await long_task(storage)
    await after_turn(storage, head)
    assert (await newest(storage, head)).snapshot.version == head.snapshot.version
    running = await claimed(storage, head, "6")
    more = Commit(entries=(wrote(CHUNK * 12),), token=running.turn.token)
    await after_turn(storage, await storage.commit(running, more))
    assert (await newest(storage, head)).snapshot.version == head.snapshot.version


UNREADABLE = [None, b"", b"[1, 1, 1, 1]\n", ConfigurationError("no"), UnavailableError("S3")]


async def test_a_snapshot_that_cannot_be_read_is_not_missed(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, damaged, of another version, or in a store that refuses: the whole log is read."""
    head = await long_task(storage)
    whole = await log_of(storage, head)
    for found in UNREADABLE:
        with monkeypatch.context() as patch:
            if isinstance(found, Exception):
                patch.setattr(blobs, "get", AsyncMock(side_effect=found))
            else:
                patch.setattr(snapshots, "whole", AsyncMock(return_value=found))
            reader = replace(storage, near=NearSnapshots())
            assert await read(reader, head) == whole
            assert await reader.load_task(head.task_id) == whole.fold().task()


async def test_a_store_that_refuses_hinders_no_turn(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker logs it, and the task is read as before."""
    refuses = AsyncMock(side_effect=ConfigurationError("The bucket refuses."))
    monkeypatch.setattr(storage.table.blobs, "put", refuses)
    head = await turn(storage, None, "1", chunks=12)
    await after_turn(storage, head)
    assert "A snapshot was not stored: The bucket refuses." in caplog.text
    log = await read(storage, head)
    assert (log.since, log.head.snapshot.version) == (None, 0)


@pytest.mark.parametrize("is_newer_late", [False, True])
async def test_a_late_snapshot_is_dropped(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch, *, is_newer_late: bool
) -> None:
    """A worker that was held up takes back no newer snapshot, and one is left, whoever was late."""
    head = await turn(storage, None, "1", chunks=12)
    late = await held_up(storage, monkeypatch, head)
    if is_newer_late:
        head = await turn(storage, head, "2", chunks=12)
        newer = await held_up(storage, monkeypatch, head)
        await late()
        await newer()
        last = head.version
    else:
        last = (await long_task(storage, head)).snapshot.version
        await late()
    after = await newest(storage, head)
    assert after.snapshot.version == last
    assert await snapshots.snapshot_of(storage, after) is not None
    assert await blobs_of(storage, head) == [f"!{last}"]


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
            await storage.commit(await newest(storage, head), follow_up())
        await kept(*writes, **options)

    monkeypatch.setattr(storage.table, "write", twice)
    await after_turn(storage, head)
    assert await snapshots.snapshot_of(storage, await newest(storage, head)) is not None


async def test_a_deleted_task_leaves_no_snapshot(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a worker stores one after the deletion, or has read the task before it."""
    head = await turn(storage, await long_task(storage), "last", chunks=12)
    await delete_task(storage, head.task_id)
    assert await blobs_of(storage, head) == []
    await after_turn(storage, head)
    assert await blobs_of(storage, head) == []
    last, put = await turn(storage, None, "1", chunks=12), blobs.put

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
    head = await opened(storage, "1")
    head = await storage.commit(head, Commit(entries=(Unknown(b"~", 0x80, b"?"),)))
    entries = (wrote(CHUNK * 12), status(INPUT_REQUIRED))
    ends = claim("t", *entries, ends_turn=True)
    head = await storage.commit(head, ends)
    await after_turn(storage, head)
    assert not (await newest(storage, head)).snapshot.version


async def test_streams_have_the_same_ids(storage: DurableStorage) -> None:
    """A stream that opens, or goes on from any event, is as with the whole log."""
    head = await long_task(storage)
    short = await Tail.open(storage, head.task_id)
    whole = await Tail.open(storage, head.task_id, is_whole=True)
    assert short.snapshot() == whole.snapshot()
    log = await log_of(storage, head)
    for version in range(1, head.version + 1, 3):
        cursor = Cursor(version, 0, incarnation_tag(head.incarnation))
        tail, opening = await Tail.resume(storage, head.task_id, cursor)
        assert (opening.cursor, opening.event) == (cursor, log.fold(version).task())
        assert tail.fold.task() == whole.fold.task()


async def test_a_page_of_few(storage: DurableStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """DynamoDB ends a page at 1 MB: the read goes on at once, and does not wait for a writer."""
    head = await opened(storage, "1")
    parts = [Part(text="x" * 30_000, media_type=f"text/{number}") for number in range(10)]
    for number in range(5):
        entry = ArtifactWritten(Artifact(artifact_id=f"{number}", parts=parts))
        head = await storage.commit(head, Commit(entries=(entry,)))
    monkeypatch.setattr(storage.clock, "sleep", Mock(side_effect=AssertionError))
    assert await read(storage, head) == await log_of(storage, head)


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
        head = await newest(bench.storage, task)
        await bench.follow_up(head, f"{number}")
        assert await bench.work()
    head = await newest(bench.storage, task)
    assert head.snapshot.version > 0
    assert agent.given == [2 * number for number in range(8)]
    done = await bench.task(task)
    assert [*artifact_texts(done)] == [f"{number}" for number in range(8)]
    folded = (await log_of(bench.storage, head)).fold()
    assert await bench.storage.load_task(task.task_id) == folded.task()


COMMITS = 4
HOUR = 3600
TASK = {"task_id": "chosen-by-the-client", "ttl_s": HOUR}


@pytest.fixture
def _few_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short task is a long one."""
    monkeypatch.setattr(snapshots, "NEAR_COMMITS", COMMITS)


near_ones = pytest.mark.usefixtures("_few_commits")


async def answered(storage: DurableStorage, head: Head) -> Head:
    """Let the agent ask something back; return HEAD."""
    asks = claim(new_token(), status(INPUT_REQUIRED, "And?"), ends_turn=True)
    return await storage.commit(head, asks)


async def asked(storage: DurableStorage, texts: str) -> Head:
    """Return HEAD of a task with the turns of these messages, of which the last one is open."""
    head = await sent(storage, None, texts[0], **TASK)
    for text in texts[1:]:
        await read(storage, head)
        head = await sent(storage, await answered(storage, head), text)
    await read(storage, head)
    return head


@near_ones
async def test_a_long_task_is_read_from_near_its_end(storage: DurableStorage) -> None:
    """However many turns it has had, few commits are read; the reader gets what the log says."""
    head: Head | None = None
    for number in range(12):
        head = await sent(storage, head, f"{number}", **TASK)
        assert len((await check_same(storage, head)).records) <= COMMITS + 1
        accepted = Cursor(head.version, 0, incarnation_tag(head.incarnation))
        tail, opening = await Tail.resume(storage, head.task_id, accepted)
        assert opening.event == (await log_of(storage, head)).fold().task()
        head = await answered(storage, head)
        await tail.poll()
        assert tail.fold.task() == await storage.load_task(head.task_id)


@near_ones
@pytest.mark.parametrize("place", [None, 0, 4])
async def test_a_file_that_a_snapshot_has_is_told_of_ever_after(
    storage: DurableStorage, place: int | None
) -> None:
    """By the snapshots that are made from it, too: an agent gets a link in the file's place."""
    head = await asked(storage, "abc")
    for number in range(9):
        said = request(f"{number}")
        if number == place:
            said.message.parts.append(Part(url="https://files.example/a"))
        commit = Commit(entries=(TurnOpened(said),))
        head = await storage.commit(await answered(storage, head), commit)
        await read(storage, head)
    kept = present(storage.near.of(head))
    assert kept.is_plain is (place is None)
    assert snapshots._read(snapshots._written(kept)) == kept


@near_ones
async def test_another_process_writes_behind_it(storage: DurableStorage) -> None:
    """What another process has committed since is read, and the turn that it has ended is over."""
    head = await asked(storage, "abcd")
    other = replace(storage, near=NearSnapshots())
    head = await answered(other, await sent(other, await answered(other, head), "e"))
    task = present(await storage.load_task(head.task_id))
    assert said(task)[-3:] == ["d", "And?", "e"]
    assert (await check_same(storage, head)).since is not None


@near_ones
@pytest.mark.parametrize("expires", [False, True])
async def test_a_task_made_anew_under_its_id_is_another_one(
    storage: DurableStorage, clock: ManualClock, *, expires: bool
) -> None:
    """Neither after a deletion by another process nor after its expiry is the earlier one shown."""
    head = await asked(storage, "abcd")
    assert (await read(storage, head)).since is not None
    other = replace(storage, near=NearSnapshots())
    if expires:
        clock.advance(HOUR)
    else:
        await delete_task(other, head.task_id)
    head = await asked(other, "vwxyz")  # longer: its version is beyond that of the snapshot
    assert head.version > COMMITS
    task = present(await storage.load_task(head.task_id))
    assert [text for text in said(task) if text != "And?"] == [*"vwxyz"]
    await check_same(storage, head)


@near_ones
async def test_a_task_that_is_gone_is_forgotten(storage: DurableStorage) -> None:
    """A reader that finds no task leaves nothing of it in memory."""
    head = await asked(storage, "abcd")
    assert storage.near.of(head) is not None
    await delete_task(storage, head.task_id)
    assert await storage.read(head.task_id, is_whole=False) is None
    assert storage.near.of(head) is None


@near_ones
async def test_what_is_kept_is_bounded_by_bytes(storage: DurableStorage) -> None:
    """The snapshot that was used last stays; a task that is too large alone has none."""
    head = await asked(storage, "abcd")
    log = await read(storage, head)
    others = [replace(log, head=replace(head, task_id=name)) for name in "xyz"]
    near = NearSnapshots(most_bytes=2 * head.size)
    for other in others[:2]:
        near.keep(replace(other, since=None, records=(await log_of(storage, head)).records))
    assert near.of(others[0].head) is not None
    near.keep(replace(others[2], since=None, records=(await log_of(storage, head)).records))
    assert [near.of(one.head) is not None for one in others] == [True, False, True]
    small = NearSnapshots(most_bytes=head.size - 1)
    small.keep(await log_of(storage, head))
    assert small.of(head) is None


@near_ones
async def test_what_a_restart_takes_back_is_not_in_it(storage: DurableStorage) -> None:
    """Nothing is kept where a turn was open before, goes on, or has an entry of a newer release."""
    head = await asked(storage, "abcd")
    log = await log_of(storage, head)
    near, turn, first = NearSnapshots(), log.head.turn, log.records[0]
    unknown = replace(first, entries=(*first.entries, Unknown(b"n", CRITICAL, b"")))
    for other in (
        replace(log, head=replace(log.head, turn=replace(turn, base=turn.number + 1))),
        replace(log, head=replace(log.head, turn=replace(turn, begun=1, begun_base=1))),
        replace(log, records=(unknown, *log.records[1:])),
    ):
        near.keep(other)
        assert near.of(log.head) is None
    near.keep(log)
    assert near.of(log.head) is not None


def test_the_commits_behind_it_are_read_as_they_were() -> None:
    """Also what they say of an attempt that has ended."""
    ended = AttemptEnd(token="1", reason="lost", at=7)
    first = Record(version=3, entries=(), token="2", at=8, ended=ended)
    kept = first, Record(version=4, entries=(), worker="w")
    snapshot = Snapshot(version=2, turn=1, shown=0, kept=kept)
    assert snapshots._read(snapshots._written(snapshot)) == snapshot

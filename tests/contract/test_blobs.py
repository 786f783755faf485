"""Stores of blobs, and the storage of tasks over each of them; no table sees what a blob has."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import ANY, Mock
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import requests
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    SendMessageRequest,
    TaskPushNotificationConfig,
    TaskStatus,
)
from botocore.exceptions import ClientError
from moto import mock_aws

from a2a_serverless.aws import client, forget_clients
from a2a_serverless.errors import (
    ConcurrencyError,
    ConfigurationError,
    ConversationFullError,
    InvalidArgumentError,
    StateTooLargeError,
    TaskNotFoundError,
    UnreadableTaskError,
)
from a2a_serverless.storage import conversation, durable
from a2a_serverless.storage.blobs import (
    AT_ONCE,
    CHUNK_BYTES,
    Blobs,
    InlineLimits,
    Link,
    MemoryBlobs,
    put_whole,
    store,
)
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.deletion import delete_context, delete_task
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.directory import DirectoryBlobs
from a2a_serverless.storage.durable import DurableStorage, _owner
from a2a_serverless.storage.layout import INDEXES, context_item, context_key, head_key
from a2a_serverless.storage.s3 import S3Blobs
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Item, Table, Update
from a2a_serverless.tasks.blobs import Blob, BlobOwner, ToStore, blob_at, blob_of, offload
from a2a_serverless.tasks.entries import (
    OFFLOAD_BYTES,
    ArtifactWritten,
    Recorded,
    StatusChanged,
    StepId,
    TurnOpened,
)
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from tests.support.clocks import ManualClock
from tests.support.databases import new_scope
from tests.support.present import present
from tests.support.workers import Bench, S

OWNER = BlobOwner("s" * 32, "task:1", "i" * 12)
LARGE = bytes(range(256)) * 256
PNG = Link(media_type="image/png", filename="Größe.png", seconds=60, base_url="http://agent/")
LINKS = InlineLimits(part_bytes=0, all_bytes=0, base_url="http://agent")


BUCKET = {"Bucket": "blobs", "CreateBucketConfiguration": {"LocationConstraint": "eu-central-1"}}


@contextmanager
def bucket(clock: ManualClock) -> Iterator[S3Blobs]:
    """A store in a bucket on moto."""
    with mock_aws():
        forget_clients()
        client("s3").create_bucket(**BUCKET)
        yield S3Blobs("blobs", clock)
    forget_clients()


@pytest.fixture(params=["memory", "folder", pytest.param("s3", marks=pytest.mark.long)])
def blobs(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Blobs]:
    """An empty store of each kind; S3 on moto."""
    match request.param:
        case "memory":
            yield MemoryBlobs(clock)
        case "folder":
            yield DirectoryBlobs(tmp_path / "blobs", clock, keep_s=3600)
        case _:
            with bucket(clock) as on_s3:
                yield on_s3


@pytest.fixture
def puts(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> list[Blob]:
    """What is put into the store."""
    noted, put = list[Blob](), blobs.put

    async def note(blob: Blob, *content: Any) -> None:
        noted.append(blob)
        await put(blob, *content)

    monkeypatch.setattr(blobs, "put", note)
    return noted


async def refuse(*_: object) -> None:
    raise ConfigurationError("The bucket refuses.")


@pytest.fixture
def backend(blobs: Blobs, tmp_path: Path) -> Iterator[Table]:
    """The table that goes with each store: a file with the folder, else dictionaries."""
    with ExitStack() as opened:
        table: Table = MemoryTable(INDEXES)
        if isinstance(blobs, DirectoryBlobs):
            table = opened.enter_context(closing(SqliteTable(tmp_path / "table", INDEXES)))
        table.blobs = blobs
        yield table


async def whole(blobs: Blobs, blob: Blob) -> bytes:
    return b"".join([chunk async for chunk in blobs.chunks(blob)])


@pytest.mark.long(but=3)
async def test_what_is_stored_is_read(blobs: Blobs) -> None:
    """Whole, or in chunks; from bytes, or from a file wherever it stands; twice is once."""
    content = LARGE * (CHUNK_BYTES // len(LARGE)) + b"end"
    blob, file = Blob.of(content, OWNER), io.BytesIO(content)
    file.seek(5)
    for source in (content, file, content):
        await blobs.put(blob, source, "image/png")
        assert await blobs.get(blob) == content
    sizes = [len(chunk) async for chunk in blobs.chunks(blob)]
    assert sizes == [CHUNK_BYTES, 3]
    assert await whole(blobs, blob) == content
    assert [chunk async for chunk in blobs.chunks(blob, CHUNK_BYTES + 1)] == [b"nd"]


async def test_what_is_missing_is_told(blobs: Blobs) -> None:
    """Reading and copying a blob that is not there tells so, and raises nothing."""
    blob, other = Blob.of(LARGE, OWNER), Blob.of(LARGE, OWNER._replace(task_id="t2"))
    assert await blobs.get(blob) is None
    assert await whole(blobs, blob) == b""
    assert not await blobs.copy(blob, other)
    await blobs.put(blob, LARGE, "")
    assert await blobs.copy(blob, other)
    assert await blobs.get(other) == LARGE


async def test_a_file_that_changes_meanwhile_is_refused(blobs: Blobs) -> None:
    """A sentence says what to do, and nothing is stored under the digest of what it was."""
    blob = Blob.of(LARGE, OWNER)
    if isinstance(blobs, S3Blobs):  # moto takes any content; S3 answers this
        changed = ClientError({"Error": {"Code": "BadDigest"}}, "PutObject")
        missing = ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")
        blobs._client = Mock(
            put_object=Mock(side_effect=changed), get_object=Mock(side_effect=missing)
        )
    with pytest.raises(InvalidArgumentError, match="emit it when all of it is written"):
        await blobs.put(blob, io.BytesIO(LARGE[::-1]), "")
    assert await blobs.get(blob) is None


async def test_a_failure_leaves_nothing(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits behind a file that cannot be stored is not begun, also not later."""
    begun: list[str] = []

    async def full(blob: Blob, *_: object) -> None:
        begun.append(blob.key)
        await asyncio.sleep(0)
        raise ConfigurationError("full")

    monkeypatch.setattr(blobs, "put", full)
    contents = [LARGE + bytes([number]) for number in range(30)]
    to_store = [ToStore(Blob.of(content, OWNER), content, "") for content in contents]
    with pytest.raises(ConfigurationError, match="full"):
        await store(blobs, to_store)
    assert len(asyncio.all_tasks()) == 1
    assert len(begun) <= 2 * AT_ONCE


async def test_a_deletion_is_of_one_incarnation(blobs: Blobs) -> None:
    """Another incarnation, and an id that begins alike, lose nothing; the last takes the folder."""
    later = OWNER._replace(incarnation="j" * 12)
    alike = OWNER._replace(task_id=f"{OWNER.task_id}0")
    owners = enumerate((OWNER, OWNER, later, alike))
    stored = [Blob.of(LARGE + bytes([number]), owner) for number, owner in owners]
    for number, blob in enumerate(stored):
        await blobs.put(blob, LARGE + bytes([number]), "")
    for _ in range(2):
        await blobs.delete(OWNER)
    expected = [None, None, LARGE + b"\2", LARGE + b"\3"]
    assert [await blobs.get(blob) for blob in stored] == expected
    if isinstance(blobs, DirectoryBlobs):
        await blobs.delete(later)
        assert not (blobs._folder / OWNER.prefix).parent.exists()


async def test_uploads_are_found_by_their_person(blobs: Blobs) -> None:
    """In every scope, whatever else is stored there, page by page; a deletion counts them."""
    person, other = "p" * 16, "q" * 16
    scopes = [person + tenant * 16 for tenant in "abc"]
    uploads = [
        BlobOwner.uploads(scope)._replace(incarnation=f"{scope[-1]}{n:011}")
        for scope in (scopes[0], scopes[2], other + "a" * 16)
        for n in range(2)
    ]
    tasks = [BlobOwner(scope, f"task:{n}", "i" * 12) for scope in scopes[:2] for n in range(2)]
    states = [BlobOwner.of_state(scopes[1], "context", "w" * 12)]
    for owner in (*uploads, *tasks, *states):
        await blobs.put(Blob.of(LARGE, owner), LARGE, "")
    assert await blobs.scopes(person) == scopes
    assert await blobs.scopes(person + "c" * 16) == [scopes[2]]
    assert await blobs.scopes("r" * 16) == []
    for scope, count in zip(scopes, (2, 0, 2), strict=True):
        found = [blob async for blob in blobs.uploads(scope)]
        assert found == [Blob.of(LARGE, one) for one in uploads if one.scope == scope]
        start, keys = BlobOwner.uploads(scope).prefix, [blob.key for blob in found]
        assert await blobs.keys(start, limit=1) == keys[:1]
        assert await blobs.keys(start, "".join(keys[:1])) == keys[1:]
        assert await blobs.delete(BlobOwner.uploads(scope)) == count
        assert await blobs.delete(BlobOwner.uploads(scope)) == 0
    assert await blobs.scopes(person) == scopes[:2]
    assert len([blob async for blob in blobs.uploads(other + "a" * 16)]) == 2


async def test_a_link_of_s3(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a signature of version 4, the asked life, one object, its type, and is a download."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with bucket(clock) as blobs:
        blob = Blob.of(LARGE, OWNER)
        await blobs.put(blob, LARGE, "text/html")
        link = urlsplit(await blobs.link(blob, PNG))
        query = parse_qs(link.query)
        assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
        assert query["X-Amz-Expires"] == ["60"]
        # Any other host would send on for the first hours of a bucket, and the signature is of one.
        assert link.netloc == "blobs.s3.eu-central-1.amazonaws.com"
        assert unquote(link.path).endswith(f"/{blob.key}")
        answer = await asyncio.to_thread(requests.get, link.geturl(), timeout=10)
        assert answer.content == LARGE
        assert answer.headers["Content-Type"] == "image/png"
        name = "attachment; filename*=UTF-8''Gr%C3%B6%C3%9Fe.png"
        assert answer.headers["Content-Disposition"] == name


async def test_a_bucket_that_refuses_is_named(clock: ManualClock) -> None:
    """One sentence names bucket, reason and setting, also for an object that is not deleted."""
    with (
        bucket(clock),
        pytest.raises(ConfigurationError, match=r"bucket none refuses.*NoSuchBucket.*A2A_BL"),
    ):
        await S3Blobs("none", clock).put(Blob.of(LARGE, OWNER), LARGE, "")
    blobs = S3Blobs("blobs", clock)
    blobs._client = Mock(
        list_objects_v2=Mock(return_value={"Contents": [{"Key": "k"}]}),
        delete_objects=Mock(return_value={"Errors": [{"Key": "k", "Code": "AccessDenied"}]}),
    )
    async with asyncio.timeout(60):
        with pytest.raises(ConfigurationError, match=r"bucket blobs refuses.*AccessDenied"):
            await blobs.delete(OWNER)


async def test_a_link_ends_and_cannot_be_changed(tmp_path: Path, clock: ManualClock) -> None:
    """It names one blob until its time, in every process of the store; no field may be changed."""
    of_folder = DirectoryBlobs(tmp_path, clock, keep_s=60)
    same = DirectoryBlobs(tmp_path, clock, keep_s=60)
    for blobs, reader in ((MemoryBlobs(clock),) * 2, (of_folder, same)):
        blob, other = Blob.of(LARGE, OWNER), Blob.of(b"other", OWNER)
        parts = urlsplit(await blobs.link(blob, PNG))
        path, query = unquote(parts.path), {k: v[0] for k, v in parse_qs(parts.query).items()}
        assert parts.netloc == "agent"
        found = present(reader.linked(path, query))
        assert (found[0], found[1].media_type) == (blob, "image/png")
        assert reader.linked(path.replace(blob.digest, other.digest), query) is None
        for name, value in query.items():
            assert reader.linked(path, {**query, name: f"{value}1"}) is None
            assert reader.linked(path, {n: v for n, v in query.items() if n != name}) is None
        clock.advance(60)
        assert reader.linked(path, query) is None


async def test_a_folder_keeps_its_files_from_others(tmp_path: Path, clock: ManualClock) -> None:
    """Its user's alone; a failed write leaves nothing; an unreadable file is told, not missing."""
    blobs, blob = DirectoryBlobs(tmp_path / "blobs", clock, keep_s=60), Blob.of(LARGE, OWNER)
    await blobs.put(blob, LARGE, "")
    await blobs.link(blob, PNG)
    for path in (tmp_path / "blobs").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(28, "No space left on device")

    other = Blob.of(b"other", OWNER)
    with pytest.raises(ConfigurationError, match=r"5 bytes cannot be stored .*No space left"):
        await blobs.put(other, Broken(), "")
    files = [each.name for each in (tmp_path / "blobs" / OWNER.prefix).iterdir()]
    assert files == [f"{blob.digest}.{blob.size}"]
    (tmp_path / "blobs" / other.key).mkdir()  # as root, mode bits refuse nothing
    for reading in (blobs.get(other), whole(blobs, other)):
        with pytest.raises(ConfigurationError, match=r"cannot be read: Is a directory; check"):
            await reading


async def test_a_folder_forgets_what_has_expired(tmp_path: Path, clock: ManualClock) -> None:
    """What an incarnation has stored goes after its time; what is younger stays."""
    old, new = Blob.of(LARGE, OWNER), Blob.of(LARGE, OWNER._replace(task_id="new"))
    await DirectoryBlobs(tmp_path, clock, keep_s=3600).put(old, LARGE, "")
    await DirectoryBlobs(tmp_path, clock, keep_s=-1).put(new, LARGE, "")
    await DirectoryBlobs(tmp_path, clock, keep_s=3600).put(Blob.of(b"1", OWNER), b"1", "")
    assert await DirectoryBlobs(tmp_path, clock, keep_s=1).get(old) is None
    assert await DirectoryBlobs(tmp_path, clock, keep_s=1).get(new) == LARGE


def said(*parts: Part) -> SendMessageRequest:
    return SendMessageRequest(message=Message(message_id="m", role=Role.ROLE_USER, parts=parts))


async def begun(storage: DurableStorage, *parts: Part) -> Head:
    return (await storage.open_task("ctx", said(*parts))).head


async def test_a_task_is_read_as_it_was_written(storage: DurableStorage) -> None:
    """Messages and artifacts byte for byte, while its log has references alone."""
    parts = [Part(text="see"), Part(raw=LARGE, filename="a"), Part(text="ä" * OFFLOAD_BYTES)]
    head = await begun(storage, *parts)
    artifact = Artifact(artifact_id="a", parts=[Part(raw=LARGE), Part(raw=LARGE + b"2")])
    head = await storage.commit(head, Commit(entries=(ArtifactWritten(artifact),)))
    assert head.size < 4_000
    task = present(await storage.load_task(head.task_id))
    assert list(task.history[0].parts) == parts
    assert task.artifacts[0] == artifact
    log = present(await storage.read(head.task_id))
    shown = (await storage.shown(log)).fold().task(None, include_artifacts=True)
    assert (list(shown.history[0].parts), shown.artifacts[0]) == (parts, artifact)
    assert log.fold().task(None, include_artifacts=True).artifacts[0] != artifact


async def test_a_commit_names_only_what_is_stored(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store refuses, nothing is committed; without one no reference is taken, a link is."""
    head = await begun(storage, Part(text="hi"))
    monkeypatch.setattr(blobs, "put", refuse)
    artifact = Artifact(artifact_id="a", parts=[Part(raw=LARGE)])
    with pytest.raises(ConfigurationError):
        await storage.commit(head, Commit(entries=(ArtifactWritten(artifact),)))
    with pytest.raises(ConfigurationError):
        await begun(storage, Part(raw=LARGE))
    assert not present(await storage.load_task(head.task_id)).artifacts
    storage.table.blobs = None
    with pytest.raises(InvalidArgumentError, match="only this service writes"):
        await begun(storage, Part(url=Blob.of(LARGE, OWNER).reference))
    elsewhere = await begun(storage, Part(url="https://files.example/a"))
    task = present(await storage.load_task(elsewhere.task_id))
    assert task.history[0].parts[0].url == "https://files.example/a"


async def test_a_missing_blob_hides_nothing_else(
    storage: DurableStorage, blobs: Blobs, caplog: pytest.LogCaptureFixture
) -> None:
    """A sentence stands in its place, the log has its digest; with another digest it is missing."""
    parts = [Part(raw=LARGE, filename="lost.png"), Part(text="here"), Part(raw=LARGE + b"2")]
    head = await begun(storage, *parts, Part(raw=LARGE + b"3"))
    damaged = Blob.of(LARGE + b"3", _owner(head))
    await blobs.delete(_owner(head))
    await blobs.put(Blob.of(LARGE + b"2", _owner(head)), LARGE + b"2", "")
    match blobs:
        case MemoryBlobs():
            blobs._contents[damaged.key] = b"x" * damaged.size
        case DirectoryBlobs():
            (blobs._folder / damaged.key).write_bytes(b"x" * damaged.size)
        case _:
            client("s3").put_object(Bucket="blobs", Key=damaged.key, Body=b"x" * damaged.size)
    task = present(await storage.load_task(head.task_id))
    lost, text, kept, odd = task.history[0].parts
    assert lost.text == f"[lost.png: {len(LARGE)} bytes that are not stored any more]"
    assert (text.text, kept.raw) == ("here", LARGE + b"2")
    assert "not stored any more" in odd.text
    logged = {each.digest for each in caplog.records if hasattr(each, "digest")}
    assert logged == {hashlib.sha256(LARGE).hexdigest(), damaged.digest}
    storage.table.blobs = None  # as in a process without a store
    task = present(await storage.load_task(head.task_id, inline=LINKS))
    assert all("not stored any more" in task.history[0].parts[n].text for n in (0, 2, 3))


async def test_a_large_message(storage: DurableStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop, on which other turns run and deliveries are extended, does not wait for digests."""
    are_main: list[bool] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        are_main.append(threading.current_thread() is threading.main_thread())
        return offload(*args, **kwargs)

    monkeypatch.setattr(durable, "offload", noted)
    await begun(storage, Part(raw=LARGE * 20))
    assert are_main.count(False) == 1
    await begun(storage, Part(raw=LARGE))
    assert are_main.count(False) == 1


LATE = ("artifact", "step", "file", "message")


class Late(Worker):
    """Stores something large of a task that is deleted meanwhile."""

    def __init__(self, kind: str, delete: Callable[[TaskContext], Awaitable[object]]) -> None:
        self._kind = kind
        self._delete = delete

    async def handle(self, ctx: TaskContext) -> None:
        async def large() -> str:
            await self._delete(ctx)
            return "x" * len(LARGE)

        match self._kind:
            case "step":
                await ctx.step("late", large)
            case "artifact":
                await ctx.emit_artifact("late", text=await large())
            case "file":
                await ctx.emit_file(io.BytesIO((await large()).encode()))
        await ctx.complete()


@pytest.mark.parametrize("kind", LATE)
async def test_a_late_blob_is_deleted(blobs: Blobs, puts: list[Blob], kind: str) -> None:
    """By its writer, whose commit finds the task gone: an attempt, or who sends a message."""

    async def delete(ctx: TaskContext) -> None:
        assert await delete_task(bench.storage, ctx.task_id)

    bench = Bench(WorkerExecutor(Late(kind, delete)))
    bench.storage.table.blobs = blobs
    head = await bench.send()
    if kind == "message":
        asked = StatusChanged(TaskStatus(state=S.TASK_STATE_INPUT_REQUIRED))
        head = await bench.storage.commit(head, Commit(entries=(asked,)))
        assert await delete_task(bench.storage, head.task_id)
        with pytest.raises(TaskNotFoundError):
            await bench.storage.commit(head, Commit(entries=(TurnOpened(said(Part(raw=LARGE))),)))
    else:
        assert await bench.work()
    (late,) = set(puts)
    assert await blobs.get(late) is None


async def test_a_refused_commit_deletes_nothing(storage: DurableStorage, blobs: Blobs) -> None:
    """Another writer has committed, or has ended the task: its blobs are those of its log."""
    head = await begun(storage, Part(raw=LARGE))
    made = Commit(entries=(ArtifactWritten(Artifact(artifact_id="a", parts=[Part(raw=LARGE)])),))
    for _ in range(2):  # as if the first answer was lost
        await storage.commit(head, made)
    with pytest.raises(ConcurrencyError):
        await storage.commit(head, replace(made, commit_id="another"))
    await storage.forget_gone(head)
    key = head_key(head.scope, head.task_id)
    await storage.table.write(Update(key=key, values={}, remove=["incarnation"]))
    await storage.forget_gone(head)  # HEAD is damaged, and may be restored
    assert await blobs.get(Blob.of(LARGE, _owner(head))) == LARGE


@pytest.mark.parametrize("reason", ["repeated", "full", "push", "link"])
async def test_a_refused_creation_leaves_no_blob(
    storage: DurableStorage,
    blobs: Blobs,
    puts: list[Blob],
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    """No deletion would ever find what it has stored: there is no task."""
    first = await storage.open_task("ctx", said(Part(raw=LARGE)), idempotency_key="k")
    puts.clear()
    parts, options = [Part(raw=LARGE)], dict[str, Any]()
    refused: AbstractContextManager[object] = nullcontext()

    async def missing(*_: Blob) -> bool:
        while not puts:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return False

    if reason == "repeated":
        options["idempotency_key"] = "k"
    else:
        refused = pytest.raises((InvalidArgumentError, ConversationFullError))
    if reason == "full":
        storage.is_serial = True
        monkeypatch.setattr(conversation, "MOST_WAITING", 0)
        await begun(storage)
    elif reason == "push":
        options["push"] = TaskPushNotificationConfig(url="x" * 100_000)
    elif reason == "link":
        monkeypatch.setattr(blobs, "copy", missing)
        parts.append(Part(url=f"https://store/{Blob.of(b'gone', _owner(first.head)).key}"))
    with refused:
        again = await storage.open_task("ctx", said(*parts), **options)
        assert (again.created, again.head.task_id) == (False, first.head.task_id)
    assert [await blobs.get(blob) for blob in puts] == [None]
    assert await blobs.get(Blob.of(LARGE, _owner(first.head))) == LARGE


async def test_a_put_ends_before_its_caller_does(tmp_path: Path, clock: ManualClock) -> None:
    """A thread would store what nobody knows of: a cancelled attempt waits for it."""
    began, goes_on = threading.Event(), threading.Event()

    class Slow(DirectoryBlobs):
        def _put(self, *arguments: Any) -> None:
            began.set()
            assert goes_on.wait(20)
            super()._put(*arguments)

    blobs = Slow(tmp_path, clock, keep_s=3600)
    putting = asyncio.create_task(put_whole(blobs, LARGE, OWNER))
    assert await asyncio.to_thread(began.wait, 20)
    for _ in range(2):
        putting.cancel()
        await asyncio.sleep(0)
        assert not putting.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await blobs.get(Blob.of(LARGE, OWNER)) == LARGE


async def test_a_link_to_a_file_of_the_caller_is_that_file(storage: DurableStorage) -> None:
    """It is copied to the new task, and stays when the first task goes with its own."""
    first = await begun(storage, Part(raw=LARGE, media_type="image/png"))
    task = present(await storage.load_task(first.task_id, inline=LINKS))
    (linked,) = task.history[0].parts
    assert linked.url.startswith("http")
    second = await begun(storage, Part(url=linked.url, media_type="image/png"))
    assert await delete_task(storage, first.task_id)
    found = present(await storage.load_task(second.task_id))
    assert found.history[0].parts[0].raw == LARGE
    with pytest.raises(InvalidArgumentError, match="is not stored: it never came, or has expired"):
        await begun(storage, Part(url=linked.url))


async def test_each_reading_has_the_same_form(storage: DurableStorage) -> None:
    """Whether a file is a link depends on its size and on the bytes before it alone."""
    inline = InlineLimits(part_bytes=len(LARGE), all_bytes=2 * len(LARGE), base_url="http://agent")
    files = [LARGE, LARGE[:40_000], LARGE[:40_001], LARGE + b"too large"]
    head = await begun(storage, *(Part(raw=raw) for raw in files))
    task = present(await storage.load_task(head.task_id, inline=inline))
    kinds = [part.WhichOneof("content") for part in task.history[0].parts]
    assert kinds == ["raw", "raw", "url", "url"]


async def test_many_blobs_are_stored_a_few_at_a_time(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact of 30 files keeps `AT_ONCE` of them under way, and stores equal ones once."""
    put, now, most, keys = blobs.put, 0, 0, list[str]()

    async def counted(blob: Blob, content: bytes, media_type: str) -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        keys.append(blob.key)
        await asyncio.sleep(0)
        await put(blob, content, media_type)
        now -= 1

    monkeypatch.setattr(blobs, "put", counted)
    parts = [Part(raw=LARGE + bytes([number % 20])) for number in range(30)]
    head = await begun(storage, *parts)
    assert len(keys) == len(set(keys)) == 20
    assert most <= AT_ONCE
    task = present(await storage.load_task(head.task_id))
    assert list(task.history[0].parts) == parts


TEXT = Random(1).randbytes(500_000).hex()  # noqa: S311
"""As a state: compressed, it has no room in an item."""


async def item_of(storage: DurableStorage) -> Item | None:
    return await storage.table.get(context_item(storage.scope.digest, "ctx"))


async def replaced(storage: DurableStorage, value: object) -> Blob | None:
    """Store a state as a turn does that has loaded the one before; return its blob."""
    before = await storage.contexts.find("ctx")
    head = await begun(storage, Part(text="hi"))
    write = context_write(value, before.version, has_blobs=True, replaced=before.place)
    await storage.commit(head, Commit(context_write=write))
    item, scope = await item_of(storage) or {}, storage.scope.digest
    return blob_at(item.get("value"), BlobOwner.of_state(scope, context_key(scope, "ctx"), ""))


async def test_a_state_is_read_as_it_was_written(storage: DurableStorage) -> None:
    """A short one is in its item as it is, a longer one compressed, one without room a blob."""
    for length, form in ((10, None), (300_000, "zlib"), (10, None), (1_000_000, "blob"), (1, None)):
        blob = await replaced(storage, {"é": TEXT[:length]})
        assert await storage.contexts.load("ctx") == ({"é": TEXT[:length]}, ANY)
        item = present(await item_of(storage))
        assert item.get("form") == form
        assert (blob is not None) is (form == "blob")
    assert await storage.contexts.load("ctx") == ({"é": TEXT[:1]}, 5)


async def test_a_state_that_is_replaced_leaves_no_blob(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deleted after the commit, which stands anyway; a reader of the old item reads again."""
    found = []
    for value in (TEXT, TEXT, [TEXT], "short"):
        old = await item_of(storage)
        found.append(await replaced(storage, value))
        if old is not None:
            assert (await storage.contexts.read("ctx", old)).value == value
    assert found[3] is None
    gone = [blob for blob in found if blob is not None]
    assert len({blob.key for blob in gone}) == 3
    assert [await blobs.get(blob) for blob in gone] == [None] * 3
    last = present(await replaced(storage, TEXT))
    monkeypatch.setattr(blobs, "delete", refuse)
    await replaced(storage, "short")
    assert await storage.contexts.load("ctx") == ("short", 6)
    assert await blobs.get(last) is not None


async def test_a_state_that_is_refused_leaves_no_blob(
    storage: DurableStorage, blobs: Blobs, puts: list[Blob]
) -> None:
    """Another turn has stored one since this one was loaded: no item names the later one's blob."""
    write = context_write(TEXT, (await storage.contexts.find("ctx")).version, has_blobs=True)
    await replaced(storage, "short")
    head = await begun(storage, Part(text="hi"))
    with pytest.raises(ConcurrencyError):
        await storage.commit(head, Commit(context_write=write))
    assert len(puts) == 1
    assert await blobs.get(puts[0]) is None


async def test_a_deleted_context_leaves_no_blob(storage: DurableStorage, blobs: Blobs) -> None:
    """Nor does that of another caller with the same contextId go."""
    other = storage.for_scope(new_scope())
    mine = present(await replaced(storage, TEXT))
    theirs = present(await replaced(other, TEXT))
    await delete_context(storage, "ctx")
    assert [await blobs.get(mine), await item_of(storage)] == [None, None]
    assert await blobs.get(theirs) is not None
    assert await other.contexts.load("ctx") == (TEXT, 1)


async def test_a_state_whose_blob_is_missing(storage: DurableStorage, blobs: Blobs) -> None:
    """One sentence names the object, the context can begin anew; no client's part names one."""
    blob = present(await replaced(storage, TEXT))
    link = f"https://agent/.blobs/{blob.key}"
    task = present(await storage.load_task((await begun(storage, Part(url=link))).task_id))
    assert task.history[0].parts[0].url == link
    assert blob_of(Part(url=blob.reference)) is None
    await blobs.delete(blob.owner)
    with pytest.raises(UnreadableTaskError, match=f"restore its object {re.escape(blob.key)}"):
        await storage.contexts.load("ctx")
    await delete_context(storage, "ctx")
    assert await storage.contexts.load("ctx") == (None, 0)


def test_a_state_has_a_limit() -> None:
    """50 MB where there is a store; without one what an item holds of it, compressed."""
    with pytest.raises(StateTooLargeError, match="50000002 bytes, and 50000000 can be kept: begin"):
        context_write("x" * 50_000_000, has_blobs=True)
    with pytest.raises(StateTooLargeError, match="bytes, and 340000 can be kept: begin another"):
        context_write(TEXT)
    assert len(context_write("x" * 1_000_000).value) < 10_000
    with pytest.raises(StateTooLargeError, match="2000002 bytes, and 2000000 can be kept: begin"):
        context_write("x" * 2_000_000)


async def test_a_record_is_read_as_it_was_written(storage: DurableStorage, blobs: Blobs) -> None:
    """A short one is in the log, a long one a blob of its task, and goes with it."""
    head = await begun(storage, Part(text="hi"))
    short = Recorded(StepId("a", "", 1), "bytes", LARGE[:OFFLOAD_BYTES])
    long = Recorded(StepId("b", "", 1), "json", LARGE)
    assert await storage.offload_record(head, short) is short
    stored = await storage.offload_record(head, long)
    assert (stored.is_offloaded, len(stored.value) < 100) == (True, True)
    assert [await storage.whole_record(head, one) for one in (short, stored)] == [short, long]
    await delete_task(storage, head.task_id)
    assert await storage.whole_record(head, stored) is None

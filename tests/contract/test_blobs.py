"""Stores of blobs, and the storage of tasks over each of them; no table sees what a blob has."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import ANY, AsyncMock, Mock
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
from a2a_serverless.worker.steps import MAX_RESULT_BYTES
from tests.support.clocks import ManualClock
from tests.support.databases import new_scope
from tests.support.present import present
from tests.support.workers import Bench, S

OWNER = BlobOwner("s" * 32, "task:1", "i" * 12)
LARGE = bytes(range(256)) * 256
PNG = Link(media_type="image/png", filename="Größe.png", seconds=60, base_url="http://agent/")
LINKS = InlineLimits(part_bytes=0, all_bytes=0, base_url="http://agent")


@pytest.fixture(params=["memory", "folder", pytest.param("s3", marks=pytest.mark.long)])
def blobs(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Blobs]:
    """An empty store of each kind; S3 on moto."""
    match request.param:
        case "memory":
            yield MemoryBlobs(clock)
        case "folder":
            yield DirectoryBlobs(tmp_path / "blobs", clock, keep_s=3600)
        case _:
            with mock_aws():
                forget_clients()
                client("s3").create_bucket(
                    Bucket="blobs", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
                )
                yield S3Blobs("blobs", clock)
            forget_clients()


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
        blobs._client = Mock(put_object=Mock(side_effect=changed), get_object=_missing)
    with pytest.raises(InvalidArgumentError, match="emit it when all of it is written"):
        await blobs.put(blob, io.BytesIO(LARGE[::-1]), "")
    assert await blobs.get(blob) is None


def _missing(**_: object) -> None:
    raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")


async def test_a_deletion_that_a_bucket_refuses_ends(clock: ManualClock) -> None:
    """S3 tells of each object that it keeps in an answer that is no error."""
    blobs = S3Blobs("blobs", clock)
    kept = {"Errors": [{"Key": "k", "Code": "AccessDenied"}]}
    listed = {"Contents": [{"Key": "k"}]}
    blobs._client = Mock(
        list_objects_v2=Mock(return_value=listed), delete_objects=Mock(return_value=kept)
    )
    async with asyncio.timeout(60):
        with pytest.raises(ConfigurationError, match=r"bucket blobs refuses.*AccessDenied"):
            await blobs.delete(OWNER)


async def test_a_folder_has_nothing_of_a_deleted_task(tmp_path: Path, clock: ManualClock) -> None:
    """Its own folder goes with the last incarnation's."""
    blobs, later = DirectoryBlobs(tmp_path, clock, keep_s=60), OWNER._replace(incarnation="j" * 12)
    for owner in (OWNER, later):
        await blobs.put(Blob.of(LARGE, owner), LARGE, "")
    await blobs.delete(OWNER)
    assert await blobs.get(Blob.of(LARGE, later)) == LARGE
    await blobs.delete(later)
    assert not (tmp_path / OWNER.prefix).parent.exists()


async def test_a_failure_leaves_nothing_at_work(blobs: Blobs) -> None:
    """What waits behind a file that cannot be stored is not begun, also not later."""
    begun: list[str] = []

    async def refuse(blob: Blob, *_: object) -> None:
        begun.append(blob.key)
        await asyncio.sleep(0)
        raise ConfigurationError("full")

    blobs.put = refuse  # type: ignore[method-assign, assignment]
    contents = [LARGE + bytes([number]) for number in range(30)]
    to_store = [ToStore(Blob.of(content, OWNER), content, "") for content in contents]
    with pytest.raises(ConfigurationError, match="full"):
        await store(blobs, to_store)
    assert len(asyncio.all_tasks()) == 1
    assert len(begun) <= 2 * AT_ONCE


async def test_a_deletion_is_of_one_incarnation(blobs: Blobs) -> None:
    """What another incarnation, and another task whose id begins alike, has stored stays."""
    later = OWNER._replace(incarnation="j" * 12)
    alike = OWNER._replace(task_id=f"{OWNER.task_id}0")
    for number, owner in enumerate((OWNER, OWNER, later, alike)):
        await blobs.put(Blob.of(LARGE + bytes([number]), owner), LARGE + bytes([number]), "")
    for _ in range(2):
        await blobs.delete(OWNER)
    assert [await blobs.get(Blob.of(LARGE + bytes([n]), OWNER)) for n in (0, 1)] == [None, None]
    assert await blobs.get(Blob.of(LARGE + b"\2", later)) == LARGE + b"\2"
    assert await blobs.get(Blob.of(LARGE + b"\3", alike)) == LARGE + b"\3"


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


async def test_a_link_of_s3_fixes_what_it_gives(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a signature of version 4, the asked life, one object, its type, and is a download."""
    with mock_aws():
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        forget_clients()
        client("s3").create_bucket(
            Bucket="blobs", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
        )
        blobs, blob = S3Blobs("blobs", clock), Blob.of(LARGE, OWNER)
        await blobs.put(blob, LARGE, "text/html")
        link = await blobs.link(blob, PNG)
        query = parse_qs(urlsplit(link).query)
        assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
        assert query["X-Amz-Expires"] == ["60"]
        # Any other host would send on for the first hours of a bucket, and the signature is of one.
        assert urlsplit(link).netloc == "blobs.s3.eu-central-1.amazonaws.com"
        assert unquote(urlsplit(link).path).endswith(f"/{blob.key}")
        answer = await asyncio.to_thread(requests.get, link, timeout=10)
        assert answer.content == LARGE
        assert answer.headers["Content-Type"] == "image/png"
        name = "attachment; filename*=UTF-8''Gr%C3%B6%C3%9Fe.png"
        assert answer.headers["Content-Disposition"] == name
    forget_clients()


async def test_a_bucket_that_refuses_is_named(clock: ManualClock) -> None:
    """One sentence names the bucket, the reason and the setting."""
    with mock_aws():
        forget_clients()
        with pytest.raises(ConfigurationError, match=r"bucket none refuses.*NoSuchBucket.*A2A_BL"):
            await S3Blobs("none", clock).put(Blob.of(LARGE, OWNER), LARGE, "")
    forget_clients()


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
    """Files and folders are its user's alone, and nothing is left of a write that failed."""
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


async def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, clock: ManualClock) -> None:
    """One sentence names the folder and the reason: it is not taken for a missing file."""
    blobs, blob = DirectoryBlobs(tmp_path, clock, keep_s=60), Blob.of(LARGE, OWNER)
    (tmp_path / blob.key).mkdir(parents=True)  # as root, mode bits refuse nothing
    with pytest.raises(ConfigurationError, match=r"cannot be read: Is a directory; check"):
        await blobs.get(blob)
    with pytest.raises(ConfigurationError, match=r"cannot be read: Is a directory; check"):
        await whole(blobs, blob)


async def test_a_folder_forgets_what_has_expired(tmp_path: Path, clock: ManualClock) -> None:
    """What an incarnation has stored goes after its time; what is younger stays."""
    old, new = Blob.of(LARGE, OWNER), Blob.of(LARGE, OWNER._replace(task_id="new"))
    await DirectoryBlobs(tmp_path, clock, keep_s=3600).put(old, LARGE, "")
    await DirectoryBlobs(tmp_path, clock, keep_s=-1).put(new, LARGE, "")
    assert await DirectoryBlobs(tmp_path, clock, keep_s=1).get(old) is None
    assert await DirectoryBlobs(tmp_path, clock, keep_s=1).get(new) == LARGE


# -- tasks -----------------------------------------------------------------------------------


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


async def test_a_commit_names_only_what_is_stored(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store refuses, nothing is committed, and the rest of the task stays readable."""
    head = await begun(storage, Part(text="hi"))

    async def refuse(*_: object) -> None:
        raise ConfigurationError("The bucket refuses.")

    monkeypatch.setattr(blobs, "put", refuse)
    artifact = Artifact(artifact_id="a", parts=[Part(raw=LARGE)])
    with pytest.raises(ConfigurationError):
        await storage.commit(head, Commit(entries=(ArtifactWritten(artifact),)))
    with pytest.raises(ConfigurationError):
        await begun(storage, Part(raw=LARGE))
    task = present(await storage.load_task(head.task_id))
    assert not task.artifacts


async def test_a_repeated_creation_leaves_no_blob(storage: DurableStorage, blobs: Blobs) -> None:
    """It has stored the content for a task that was not made: that goes at once."""
    first = await storage.open_task("ctx", said(Part(raw=LARGE)), idempotency_key="k")
    owners: list[BlobOwner] = []
    put = blobs.put

    async def noted(blob: Blob, content: bytes, media_type: str) -> None:
        owners.append(blob.owner)
        await put(blob, content, media_type)

    blobs.put = noted  # type: ignore[method-assign, assignment]
    again = await storage.open_task("ctx", said(Part(raw=LARGE)), idempotency_key="k")
    assert (again.created, again.head.task_id) == (False, first.head.task_id)
    assert await blobs.get(Blob.of(LARGE, owners[0])) is None
    task = present(await storage.load_task(first.head.task_id))
    assert task.history[0].parts[0].raw == LARGE


async def test_a_missing_blob_hides_nothing_else(
    storage: DurableStorage, blobs: Blobs, caplog: pytest.LogCaptureFixture
) -> None:
    """A sentence stands in its place, the log has its digest, and the other parts are shown."""
    parts = [Part(raw=LARGE, filename="lost.png"), Part(text="here"), Part(raw=LARGE + b"2")]
    head = await begun(storage, *parts)
    await blobs.delete(BlobOwner(head.scope, head.task_id, head.incarnation))
    await blobs.put(
        Blob.of(LARGE + b"2", BlobOwner(head.scope, head.task_id, head.incarnation)),
        LARGE + b"2",
        "",
    )
    task = present(await storage.load_task(head.task_id))
    lost, text, kept = task.history[0].parts
    assert lost.text == f"[lost.png: {len(LARGE)} bytes that are not stored any more]"
    assert (text.text, kept.raw) == ("here", LARGE + b"2")
    (logged,) = [each for each in caplog.records if hasattr(each, "digest")]
    assert logged.digest == hashlib.sha256(LARGE).hexdigest()


async def test_a_damaged_blob_is_not_shown(storage: DurableStorage, blobs: Blobs) -> None:
    """Content that is not that of its digest counts as missing."""
    head = await begun(storage, Part(raw=LARGE))
    blob = Blob.of(LARGE, BlobOwner(head.scope, head.task_id, head.incarnation))
    match blobs:
        case MemoryBlobs():
            blobs._contents[blob.key] = b"x" * blob.size
        case DirectoryBlobs():
            (blobs._folder / blob.key).write_bytes(b"x" * blob.size)
        case _:
            client("s3").put_object(Bucket="blobs", Key=blob.key, Body=b"x" * blob.size)
    task = present(await storage.load_task(head.task_id))
    assert "not stored any more" in task.history[0].parts[0].text


async def test_a_large_message_is_taken_apart_in_a_thread(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop, on which other turns run and deliveries are extended, does not wait for digests."""
    threads: list[bool] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return offload(*args, **kwargs)

    monkeypatch.setattr(durable, "offload", noted)
    await begun(storage, Part(raw=LARGE * 20))
    assert threads.count(False) == 1
    await begun(storage, Part(raw=LARGE))
    assert threads.count(False) == 1


async def test_no_reference_is_taken_where_no_blob_is_stored(storage: DurableStorage) -> None:
    """It would name something as soon as the deployment has a store."""
    url = Blob.of(LARGE, OWNER).reference
    storage.table.blobs = None
    with pytest.raises(InvalidArgumentError, match="only this service writes"):
        await begun(storage, Part(url=url))


async def test_a_deleted_task_leaves_no_blob(storage: DurableStorage, blobs: Blobs) -> None:
    """Its blobs go with it; those of another task with the same content stay."""
    heads = [await begun(storage, Part(raw=LARGE)) for _ in range(2)]
    assert await delete_task(storage, heads[0].task_id)
    owned = [BlobOwner(head.scope, head.task_id, head.incarnation) for head in heads]
    found = [await blobs.get(Blob.of(LARGE, owner)) for owner in owned]
    assert found == [None, LARGE]


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
async def test_what_is_stored_behind_a_deletion_is_deleted(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """By its writer, whose commit finds the task gone: an attempt, or who sends a message."""

    async def delete(ctx: TaskContext) -> None:
        assert await delete_task(bench.storage, ctx.task_id)

    bench = Bench(WorkerExecutor(Late(kind, delete)))
    bench.storage.table.blobs, keys = blobs, set[Blob]()
    put = blobs.put

    async def noted(blob: Blob, *content: Any) -> None:
        keys.add(blob)
        await put(blob, *content)

    monkeypatch.setattr(blobs, "put", noted)
    head = await bench.send()
    if kind == "message":
        asked = StatusChanged(TaskStatus(state=S.TASK_STATE_INPUT_REQUIRED))
        head = await bench.storage.commit(head, Commit(entries=(asked,)))
        assert await delete_task(bench.storage, head.task_id)
        with pytest.raises(TaskNotFoundError):
            await bench.storage.commit(head, Commit(entries=(TurnOpened(said(Part(raw=LARGE))),)))
    else:
        assert await bench.work()
    assert len(keys) == 1
    assert [await blobs.get(blob) for blob in keys] == [None]


async def test_what_a_live_task_names_outlives_a_refused_commit(
    storage: DurableStorage, blobs: Blobs
) -> None:
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


@pytest.mark.parametrize("reason", ["full", "push", "link"])
async def test_a_refused_creation_leaves_no_blob(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """No deletion would ever find what it has stored: there is no task."""
    put, owners, is_put = blobs.put, list[BlobOwner](), asyncio.Event()

    async def noted(blob: Blob, *content: Any) -> None:
        owners.append(blob.owner)
        await put(blob, *content)
        is_put.set()

    async def missing(*_: Blob) -> bool:
        return not await is_put.wait()

    monkeypatch.setattr(blobs, "put", noted)
    monkeypatch.setattr(blobs, "copy", missing)
    refused: type[Exception] = InvalidArgumentError
    parts, push = [Part(raw=LARGE)], None
    if reason == "full":
        storage.is_serial, refused = True, ConversationFullError
        monkeypatch.setattr(conversation, "MOST_WAITING", 0)
        await begun(storage)
    elif reason == "push":
        push = TaskPushNotificationConfig(url="x" * 100_000)
    else:
        gone = Blob.of(b"gone", _owner(await begun(storage)))
        parts.append(Part(url=f"https://store/{gone.key}"))
    with pytest.raises(refused):
        await storage.open_task("ctx", said(*parts), push=push)
    assert [await blobs.get(Blob.of(LARGE, owner)) for owner in owners] == [None]


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


async def test_a_link_to_a_file_of_the_caller_is_that_file(
    storage: DurableStorage, blobs: Blobs
) -> None:
    """It is copied to the new task, and stays when the first task is deleted."""
    first = await begun(storage, Part(raw=LARGE, media_type="image/png"))
    task = present(await storage.load_task(first.task_id, inline=LINKS))
    (linked,) = task.history[0].parts
    assert linked.url.startswith("http")
    second = await begun(storage, Part(url=linked.url, media_type="image/png"))
    await delete_task(storage, first.task_id)
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


# -- states of conversations, and records ----------------------------------------------------

TEXT = Random(1).randbytes(500_000).hex()  # noqa: S311
"""As a state: compressed, it has no room in an item."""


async def item_of(storage: DurableStorage) -> Item | None:
    return await storage.table.get(context_item(storage.scope.digest, "ctx"))


async def blob_of_state(storage: DurableStorage) -> Blob | None:
    item, scope = await item_of(storage) or {}, storage.scope.digest
    return blob_at(item.get("value"), BlobOwner.of_state(scope, context_key(scope, "ctx"), ""))


async def replaced(storage: DurableStorage, value: object) -> Blob | None:
    """Store a state as a turn does that has loaded the one before; return its blob."""
    before = await storage.contexts.find("ctx")
    head = await begun(storage, Part(text="hi"))
    write = context_write(value, before.version, has_blobs=True, replaced=before.place)
    await storage.commit(head, Commit(context_write=write))
    return await blob_of_state(storage)


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
    storage: DurableStorage, blobs: Blobs
) -> None:
    """It is deleted after the commit; a reader that has read the old item reads again."""
    found = []
    for value in (TEXT, TEXT, [TEXT], "short"):
        old = await item_of(storage)
        found.append(await replaced(storage, value))
        if old is not None:
            assert (await storage.contexts.read("ctx", old)).value == value
    assert found[3] is None
    kept = [blob for blob in found if blob is not None]
    assert len({blob.key for blob in kept}) == 3
    assert [await blobs.get(blob) for blob in kept] == [None] * 3


async def test_a_state_that_cannot_be_deleted_is_left(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that has replaced it stands."""
    await replaced(storage, TEXT)

    async def refuse(_: object) -> None:
        raise ConfigurationError("The bucket refuses.")

    monkeypatch.setattr(blobs, "delete", refuse)
    await replaced(storage, "short")
    assert await storage.contexts.load("ctx") == ("short", 2)


async def test_a_death_between_a_state_and_its_commit(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is the one before; the next attempt stores its own, and nothing else."""
    first = await replaced(storage, [1, TEXT])

    async def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    head = await begun(storage, Part(text="hi"))
    write = context_write([2, TEXT], 1, has_blobs=True, replaced=first.place if first else "")
    with monkeypatch.context() as patched:
        patched.setattr(storage.table, "write", die)
        with pytest.raises(KeyboardInterrupt):
            await storage.commit(head, Commit(context_write=write))
    assert await storage.contexts.load("ctx") == ([1, TEXT], 1)
    await replaced(storage, [3, TEXT])
    assert await storage.contexts.load("ctx") == ([3, TEXT], 2)


async def test_of_two_turns_with_one_state_one_is_refused(
    storage: DurableStorage, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is that of the first one, and can be read; nothing is left of the other."""
    put = AsyncMock(side_effect=blobs.put)
    monkeypatch.setattr(blobs, "put", put)
    first = await replaced(storage, [TEXT])
    heads = [await begun(storage, Part(text="hi")) for _ in range(2)]
    commits = [
        storage.commit(
            head,
            Commit(
                context_write=context_write(
                    [n, TEXT], 1, has_blobs=True, replaced=first.place if first else ""
                )
            ),
        )
        for n, head in enumerate(heads)
    ]
    await commits[0]
    with pytest.raises(ConcurrencyError):
        await commits[1]
    assert await storage.contexts.load("ctx") == ([0, TEXT], 2)
    stored = [await blobs.get(each.args[0]) is not None for each in put.await_args_list]
    assert stored == [False, True, False]


async def test_a_deleted_context_leaves_no_blob(storage: DurableStorage, blobs: Blobs) -> None:
    """Nor does that of another caller with the same contextId go."""
    other = storage.for_scope(new_scope())
    mine, theirs = await replaced(storage, TEXT), await replaced(other, TEXT)
    assert mine is not None
    assert theirs is not None
    await delete_context(storage, "ctx")
    assert [await blobs.get(mine), await item_of(storage)] == [None, None]
    assert await blobs.get(theirs) is not None
    assert await other.contexts.load("ctx") == (TEXT, 1)


async def test_a_state_whose_blob_is_missing(storage: DurableStorage, blobs: Blobs) -> None:
    """One sentence names the object; the context can be deleted, and begins anew."""
    blob = present(await replaced(storage, TEXT))
    await blobs.delete(blob.owner)
    with pytest.raises(UnreadableTaskError, match=f"restore its object {re.escape(blob.key)}"):
        await storage.contexts.load("ctx")
    await delete_context(storage, "ctx")
    assert await storage.contexts.load("ctx") == (None, 0)


async def test_no_part_names_a_state(storage: DurableStorage) -> None:
    """Neither a reference nor a link: what a client makes up is a URL as any other."""
    blob = present(await replaced(storage, TEXT))
    link = f"https://agent/.blobs/{blob.key}"
    task = present(await storage.load_task((await begun(storage, Part(url=link))).task_id))
    assert task.history[0].parts[0].url == link
    assert blob_of(Part(url=blob.reference)) is None


def test_a_state_has_a_limit() -> None:
    """50 MB where there is a store; without one what an item holds of it, compressed."""
    with pytest.raises(StateTooLargeError, match="50000002 bytes, and 50000000 can be kept: begin"):
        context_write("x" * 50_000_000, has_blobs=True)
    with pytest.raises(StateTooLargeError, match="bytes, and 340000 can be kept: begin another"):
        context_write(TEXT)
    assert len(context_write("x" * 1_000_000).value) < 10_000
    with pytest.raises(StateTooLargeError, match="2000002 bytes, and 2000000 can be kept: begin"):
        context_write("x" * 2_000_000)


async def test_the_largest_state_without_a_store_is_recorded() -> None:
    """It has room in the commit of a step whose result is the largest one, too."""

    class Thinking(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            state = await ctx.load_context()
            await ctx.step("think", lambda: "y" * (MAX_RESULT_BYTES - 2))
            await ctx.update_context(state or "x" * (StateTooLargeError.LIMIT_IN_LOG - 2))
            await ctx.complete()

    bench = Bench(WorkerExecutor(Thinking()))
    bench.storage.table.blobs = None
    for _ in range(2):
        task = await bench.send()
        assert await bench.work()
        assert (await bench.task(task)).status.state == S.TASK_STATE_COMPLETED


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

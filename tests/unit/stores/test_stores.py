"""What the stores for the SDK's own server do beyond what its SQL stores do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock

import pytest
from a2a import types
from a2a.server.cluster import ConcurrentTaskModificationError, TaskVersion
from a2a.utils.errors import InternalError, InvalidParamsError
from hypothesis import given, settings
from hypothesis import strategies as st

from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.dynamodb import DynamoTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Key, Put, _size_of
from a2a_serverless.stores import (
    DynamoDBPushNotificationConfigStore,
    DynamoDBTaskStore,
    create_table,
    memory_table,
)
from a2a_serverless.stores.content import apply, change_of
from a2a_serverless.stores.layout import OWN_INDEXES, head_key, list_place
from tests.support import stores as shared
from tests.support.clocks import ManualClock
from tests.support.databases import moto_database
from tests.support.stores import NEW, TABLE, Stores, caller, chunk_of, followed, on_table

DAY = 86_400
ME = caller("me")


def new_task(text: str = "x") -> types.Task:
    return types.Task(
        id="task",
        context_id="context",
        status=types.TaskStatus(state=types.TaskState.TASK_STATE_WORKING),
        artifacts=[types.Artifact(artifact_id="a", parts=[types.Part(text=text)])],
    )


def stored_in(table: MemoryTable) -> int:
    """The bytes of a table's items."""
    return sum(map(_size_of, table._items.values()))


async def saved(
    table: MemoryTable, text: str = "x", **options: Any
) -> tuple[Stores, types.Task, Any]:
    """The stores, the task that they have saved, and its version."""
    stores, task = on_table(table, **options), new_task(text)
    version = await stores.tasks.save(task, event=task, prev_version=NEW, context=ME)
    return stores, task, version


async def whole(table: MemoryTable, **options: Any) -> types.Task:
    """The task as a process reads it that has not saved it."""
    stored = await on_table(table, **options).tasks.get("task", ME)
    found: types.Task = stored.task
    return found


def expire(table: MemoryTable, clock: ManualClock) -> int:
    """Delete what has expired, as DynamoDB does; how many items."""
    now_s = clock.now_ms() // 1000
    expired = [key for key, it in table._items.items() if it.get("expires_at", 10**12) <= now_s]
    for key in expired:
        table._store(key, table._items[key], None)
    return len(expired)


@pytest.fixture
def table() -> MemoryTable:
    made = memory_table()
    assert isinstance(made, MemoryTable)
    return made


async def test_what_is_stored_grows_as_what_is_saved(table: MemoryTable) -> None:
    """200 chunks store twice as much as 100: no save stores the task again."""
    stores, task, version = await saved(table)
    sizes = []
    for number in range(200):
        event = chunk_of(task, f"{number:04d}" * 50)
        version = await stores.tasks.save(task, event=event, prev_version=version, context=ME)
        if number in (99, 199):
            sizes.append(stored_in(table))
    assert sizes[1] / sizes[0] < 2.05
    assert sizes[1] < 2.5 * task.ByteSize()
    assert await whole(table) == task


async def test_a_log_begins_anew(table: MemoryTable) -> None:
    """Of an artifact that is replaced again and again a read needs the last versions alone."""
    stores, task, version = await saved(table)
    events = [types.Task.FromString(task.SerializeToString())]
    for number in range(40):
        task.artifacts[0].parts[0].text = f"{number:04d}" * 2500
        version = await stores.tasks.save(task, event=task, prev_version=version, context=ME)
        events.append(types.Task.FromString(task.SerializeToString()))
    assert table._items[head_key("task")]["base"] > 20
    assert await whole(table) == task
    found = await followed(stores.stream, "task", len(events))
    assert [one.event for one in found] == events


async def test_a_cache_is_bounded(table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process keeps the tasks that it used last, up to a number of bytes."""
    monkeypatch.setattr("a2a_serverless.stores.tasks._CACHE_BYTES", 8000)
    store = on_table(table).tasks
    for number in range(9):
        task = new_task("x" * 1000)
        task.id = f"task-{number}"
        await store.save(task, prev_version=NEW, context=ME)
    assert [*store._known] == [f"task-{number}" for number in range(5, 9)]
    assert store._known_bytes < 8000
    assert (await store.get("task-0", ME)).task.id == "task-0"


@pytest.mark.parametrize("size", [345_000, 6_000_000])
async def test_a_large_change_is_in_several_items(table: MemoryTable, size: int) -> None:
    """Above an item's limit, and above a transaction's, a task is stored and read as it is."""
    stores, task, version = await saved(table, "x" * size)
    event = chunk_of(task, "y" * size)
    await stores.tasks.save(task, event=event, prev_version=version, context=ME)
    assert await whole(table) == task
    assert [one.event for one in await followed(stores.stream, "task", 2)][1] == event
    await stores.tasks.delete("task", ME)
    assert not table._items


async def test_a_save_that_is_cut_off(table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader takes what a dead process has left; a refused save deletes its parts again."""
    stores, task, version = await saved(table)
    before, large, write = dict(table._items), on_table(table), table.write
    with pytest.raises(ConcurrentTaskModificationError):
        await stores.tasks.save(new_task("x" * 800_000), prev_version=NEW, context=ME)
    assert table._items == before

    async def dies(*writes: Any, **options: Any) -> None:
        if len(writes) > 1:
            raise UnavailableError("cut off")
        await write(*writes, **options)

    event = chunk_of(task, "y" * 800_000)
    with monkeypatch.context() as patched:
        patched.setattr(table, "write", dies)
        with pytest.raises(InternalError, match="busy"):
            await large.tasks.save(task, event=event, prev_version=version, context=ME)
    task = new_task()
    event = chunk_of(task, "z" * 800_000)
    await stores.tasks.save(task, event=event, prev_version=version, context=ME)
    assert await whole(table) == task
    assert [one.event for one in await followed(stores.stream, "task", 2)][1] == event


async def test_a_bucket_takes_it(table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a bucket it has what is too large; who has none cannot read it."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with shared.moto_bucket("large") as s3:
        monkeypatch.setattr("a2a_serverless.storage.s3.client", lambda _: s3)
        _, task, _ = await saved(table, "x" * 500_000, bucket="large")
        assert stored_in(table) < 2000
        other = on_table(table, bucket="large")
        assert (await other.tasks.get("task", ME)).task == task
        assert [one.event for one in await followed(other.stream, "task", 1)] == [task]
        with pytest.raises(InternalError, match="cannot read"):
            await whole(table)
        await other.tasks.delete("task", ME)
        assert "Contents" not in s3.list_objects_v2(Bucket="large")


async def test_a_task_expires_after_its_last_save(table: MemoryTable, clock: ManualClock) -> None:
    """Whole until then, however old its parts; then its id is free; no life is no time to live."""
    stores, task, version = await saved(table, clock=clock, ttl_s=DAY)
    for number in range(5):
        clock.advance(DAY - 1)
        event = chunk_of(task, str(number))
        version = await stores.tasks.save(task, event=event, prev_version=version, context=ME)
        expire(table, clock)
        assert await whole(table, clock=clock) == task
    clock.advance(DAY)
    assert await stores.tasks.get("task", ME) is None
    assert (await stores.tasks.list(types.ListTasksRequest(), ME)).total_size == 0
    with pytest.raises(ConcurrentTaskModificationError):
        await stores.tasks.save(task, prev_version=version, context=ME)
    assert await stores.tasks.save(task, prev_version=NEW, context=ME) == TaskVersion(1)
    for store in (DynamoDBTaskStore, DynamoDBPushNotificationConfigStore):
        for ttl_s in (0, -1):
            with pytest.raises(ValueError, match="above 0"):
                store(table, ttl_s=ttl_s)


@pytest.mark.parametrize("later", [None, 100 * DAY])
async def test_a_longer_life(table: MemoryTable, clock: ManualClock, later: int | None) -> None:
    """A task that is saved with it is kept as a whole, whichever replica has saved it before."""
    short, task, version = await saved(table, clock=clock, ttl_s=DAY)
    long = on_table(table, clock=clock, ttl_s=later)
    for number, stores in enumerate([long, short, long]):
        event = chunk_of(task, str(number))
        version = await stores.tasks.save(task, event=event, prev_version=version, context=ME)
    clock.advance(50 * DAY)
    assert expire(table, clock)
    assert await whole(table, clock=clock) == task


async def test_a_task_is_deleted_and_created_while_it_is_read(table: MemoryTable) -> None:
    """Who has read the old HEAD gets the new task; no log is read for another one."""
    stores, _, _ = await saved(table)
    reader = on_table(table).tasks
    contents = reader._log.contents

    async def late(task_id: str, head: Any) -> Any:
        reader._log.contents = contents
        await stores.tasks.delete(task_id, ME)
        await stores.tasks.save(new_task("new"), prev_version=NEW, context=ME)
        return await contents(task_id, head)

    reader._log.contents = late
    assert (await reader.get("task", ME)).task == new_task("new")


async def test_a_deletion_is_finished(table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task is gone with the first one, and its content with the one that is not cut off."""
    stores, task, version = await saved(table)
    with monkeypatch.context() as patched:
        patched.setattr(table, "delete", AsyncMock(side_effect=UnavailableError("throttled")))
        with pytest.raises(InternalError, match="busy"):
            await stores.tasks.delete("task", ME)
    assert await on_table(table).tasks.get("task", ME) is None
    assert (await stores.tasks.list(types.ListTasksRequest(), ME)).total_size == 0
    with pytest.raises(ConcurrentTaskModificationError):
        await stores.tasks.save(task, prev_version=version, context=ME)
    await stores.tasks.delete("task", caller("another"))
    assert table._items
    await stores.tasks.delete("task", ME)
    assert not table._items


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """moto, with the runtime's table."""
    with moto_database() as database:
        yield database.client


async def test_a_table_is_created_once(client: Any) -> None:
    """With indexes and expiry; what is there stays. The runtime's serves, beside its own items."""
    for _ in range(2):
        await create_table(TABLE, client=client)
    for name in (TABLE, "tasks"):
        stores = on_table(DynamoTable(name, OWN_INDEXES, client=client))
        await stores.tasks.initialize()
    expiry = client.describe_time_to_live(TableName=TABLE)["TimeToLiveDescription"]
    assert expiry["AttributeName"] == "expires_at"
    await stores.tasks.save(new_task(), prev_version=NEW, context=ME)
    assert (await stores.tasks.list(types.ListTasksRequest(), ME)).total_size == 1
    assert OWN_INDEXES.items() <= INDEXES.items()


@pytest.mark.parametrize(
    ("keys", "told", "logged"),
    [
        (None, "cannot be used", "check"),
        (("thread_id", "checkpoint_id"), "not one of this store", "key"),
        (("PK", "SK"), "cannot be used", "by-scope"),
    ],
)
async def test_a_table_that_is_no_store(
    client: Any,
    keys: tuple[str, str] | None,
    told: str,
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A start fails with one sentence, and the log names the table's fault."""
    name = f"other-{'-'.join(keys or ('missing',))}"
    if keys is not None:
        kinds = zip(keys, ("HASH", "RANGE"), strict=True)
        client.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in kinds],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        )
    stores = on_table(DynamoTable(name, OWN_INDEXES, client=client))
    with pytest.raises(InternalError, match=told) as refused:
        await stores.tasks.initialize()
    assert name not in refused.value.message
    assert logged in caplog.text


async def test_a_damaged_task(table: MemoryTable, caplog: pytest.LogCaptureFixture) -> None:
    """A log with gaps, or none, and a webhook are told; another release's is left as it is."""
    await saved(table)
    (entry,) = [item for key, item in table._items.items() if key.SK.startswith("LOG#")]
    body = entry["body"]
    entry["body"] = b"\xff" * entry["cuts"] + body[entry["cuts"] :]
    with pytest.raises(InternalError, match="damaged"):
        await whole(table)
    configs = on_table(table).configs
    await configs.set_info("task", types.TaskPushNotificationConfig(id="1"), ME)
    (damaged,) = [item for key, item in table._items.items() if key.SK.startswith("CONFIG#")]
    damaged["config"] = b"\xff"
    with pytest.raises(InternalError, match="damaged"):
        await configs.get_info("task", ME)
    table._store(Key(entry["PK"], entry["SK"]), entry, None)
    with pytest.raises(InternalError, match="this release cannot read"):
        await whole(table)
    await table.write(Put(item={**table._items[head_key("task")], "format": 2}))
    anew = on_table(table).tasks.save(new_task(), prev_version=TaskVersion(1), context=ME)
    for wrong in (whole(table), anew):
        with pytest.raises(InternalError, match="this release cannot read"):
            await wrong
    assert "use the release that wrote it, or another table" in caplog.text


@pytest.mark.parametrize("value", [None, ("SS", ["x"])], ids=["missing", "odd"])
async def test_a_damaged_attribute(table: MemoryTable, value: object) -> None:
    """One that is missing, or none, is told by a sentence, too."""
    await saved(table)
    for key, names in (
        ("HEAD", ("incarnation", "version", "owner", "state", "base", "logged", "status_key")),
        ("LOG#", ("count", "cuts", "body")),
    ):
        (item,) = [item for item in table._items.values() if item["SK"].startswith(key)]
        for name in names:
            kept = item.pop(name)
            if value:
                item[name] = value
            with pytest.raises(InternalError, match="this release cannot read"):
                await whole(table)
            item[name] = kept
        assert (await whole(table)).id == "task"


async def test_a_busy_table(table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request fails by an error of the SDK's that says to try again; a subscriber waits."""
    stores, *_ = await saved(table)
    load, failures = table.load, [True]

    async def busy(*args: Any, **options: Any) -> Any:
        if failures and failures.pop():
            raise UnavailableError("throttled")
        return await load(*args, **options)

    monkeypatch.setattr(table, "load", busy)
    with pytest.raises(InternalError, match="busy: try again"):
        await stores.tasks.get("task", ME)
    failures[:] = [True]
    monkeypatch.setattr("a2a_serverless.stores.events._SLOWEST_POLL_S", 0.01)
    assert len(await followed(stores.stream, "task", 1)) == 1


@pytest.mark.parametrize("wrong", ["", "x" * 901])
async def test_an_id_that_does_not_fit(table: MemoryTable, wrong: str) -> None:
    """It is refused where something is stored by it."""
    stores, task = on_table(table), new_task()
    task.id = wrong
    config = types.TaskPushNotificationConfig(id="x" * 901)
    for call in (
        stores.tasks.save(task, prev_version=NEW, context=ME),
        stores.configs.set_info(wrong, types.TaskPushNotificationConfig(id="1"), ME),
        stores.configs.set_info("task", config, ME),
    ):
        with pytest.raises(InvalidParamsError, match="1 to 900 bytes"):
            await call


@pytest.mark.parametrize("second", [-62_135_596_801, 253_402_300_800])
def test_a_time_that_no_calendar_has(second: int) -> None:
    """It has no place in lists, such as that of a client's page token."""
    with pytest.raises(InvalidParamsError, match="in the years 1 to 9999"):
        list_place(second * 1_000_000_000, "task")


contents = st.lists(st.text("ab", max_size=12).map(str.encode), max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.lists(contents, min_size=1, max_size=6), st.binary(max_size=8))
def test_changes_lead_to_what_was_saved(versions: list[list[bytes]], event: bytes) -> None:
    """Whatever the contents were before, the change makes them those that are saved."""
    stored: list[bytearray] = []
    before: list[bytes] = []
    for after in versions:
        change = change_of(before, after, event)
        assert change.body.startswith(event)
        apply(stored, change)
        assert [bytes(one) for one in stored] == after
        before = after

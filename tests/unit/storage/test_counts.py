"""Counts that lists store for one another, on moto."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from a2a.types import TaskState

from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.listing import (
    MAX_TOTAL,
    ListTasksQuery,
    _Count,
    _count_key,
    _Listing,
    list_tasks,
)
from a2a_serverless_tools.contract import Storage
from tests.support.clocks import ManualClock
from tests.support.databases import Database, key, moto_database
from tests.support.messages import request

QUERY = ListTasksQuery(page_size=1, history_length=0)
AT = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database() -> Iterator[Database]:
    with moto_database() as database:
        yield database


@pytest.fixture
async def storage(database: Database, clock: ManualClock) -> DurableStorage:
    """A scope of three tasks, which no list has counted."""
    storage = database.storage(clock=clock)
    for number in range(3):
        clock.advance(1)
        await storage.open_task("c", request(str(number)))
    clock.advance(1)
    return storage


def stored(database: Database, storage: DurableStorage) -> dict[str, Any]:
    """The count of the query."""
    place = key(*_count_key(storage.scope.digest, _Listing.of(QUERY, storage.scope)))
    found: dict[str, Any] = database.client.get_item(TableName=database.table, Key=place)["Item"]
    return found


async def total(storage: DurableStorage, query: ListTasksQuery = QUERY) -> int:
    return (await list_tasks(storage, query)).total_size


async def test_a_count_is_used_until_it_expires(
    database: Database, storage: DurableStorage, clock: ManualClock
) -> None:
    """A stored count is used for a minute, whatever has been deleted meanwhile."""
    assert await total(storage) == 3
    made = stored(database, storage)
    for task in (await list_tasks(storage, ListTasksQuery(page_size=2))).tasks:
        await delete_task(storage, task.id)
    clock.advance(59)
    assert await total(storage, QUERY.model_copy(update={"page_size": 2})) == 1  # it shows all
    await storage.open_task("c", request())
    assert await total(storage) == 4
    assert stored(database, storage) == made
    clock.advance(1)
    assert await total(storage) == 2


async def test_each_filter_has_its_own(storage: DurableStorage, clock: ManualClock) -> None:
    """A count of all tasks is not taken for that of a state, or of a time."""
    assert await total(storage) == 3
    changed = datetime.fromtimestamp(clock.now_ms() / 1000 - 2, UTC).isoformat()
    since = QUERY.model_copy(update={"status_timestamp_after": changed})
    assert await total(storage, since) == 2
    submitted = QUERY.model_copy(update={"status": TaskState.TASK_STATE_SUBMITTED})
    assert await total(storage, submitted) == 3
    for task in (await list_tasks(storage, ListTasksQuery())).tasks:
        await Storage(storage).update_task(task.id, TaskState.TASK_STATE_WORKING)
    working = QUERY.model_copy(update={"status": TaskState.TASK_STATE_WORKING})
    assert await total(storage, working) == 3


async def test_no_other_scope_sees_it(storage: DurableStorage, database: Database) -> None:
    """A scope counts its own."""
    assert await total(storage) == 3
    assert await total(database.storage(clock=storage.clock)) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("total", {"S": "many"}),
        ("total", {"N": "2.5"}),
        ("total", {"N": str(MAX_TOTAL + 1)}),
        ("counted_at", None),
        ("expires_at", {"NULL": True}),
        ("expires_at", None),
    ],
)
async def test_a_damaged_count_is_made_again(
    database: Database, storage: DurableStorage, name: str, value: Any
) -> None:
    """A damaged count is made again, and the list shows the right total."""
    await total(storage)
    item = stored(database, storage) | {name: value}
    whole = {key: value for key, value in item.items() if value is not None}
    database.client.put_item(TableName=database.table, Item=whole)
    assert await total(storage) == 3


async def test_an_older_count_replaces_no_later_one(
    database: Database, storage: DurableStorage
) -> None:
    """An older count replaces no later one, and the same count may be written twice."""
    await total(storage)
    made = stored(database, storage)
    place = _count_key(storage.scope.digest, _Listing.of(QUERY, storage.scope))
    older = _Count.made(7, 7, int(made["counted_at"]["N"]) - 1)
    same = _Count.made(7, 7, int(made["counted_at"]["N"]))
    for count in (older, same):
        await storage.table.did(count.update(place))
    assert stored(database, storage) == made


async def test_a_list_does_without_its_write(database: Database, storage: DurableStorage) -> None:
    """If DynamoDB refuses the write, the list is answered all the same, after one attempt."""
    asked = []

    def refuse(**_: Any) -> None:
        asked.append(1)
        raise database.client.exceptions.InternalServerError(
            {"Error": {"Code": "InternalServerError"}}, "UpdateItem"
        )

    database.client.meta.events.register("before-call.dynamodb.UpdateItem", refuse)
    assert await total(storage) == 3
    assert len(asked) == 1


def test_a_large_scope_is_counted_rarely() -> None:
    """A count lasts a minute, or a second for each hundred entries that it has read."""
    lasts = {read: _Count.made(1, read, AT).expires_at - AT // 1000 for read in (4, 10_000, 10**6)}
    assert lasts == {4: 60, 10_000: 100, 10**6: 10_000}


def test_a_count_is_never_larger_than_the_protocols() -> None:
    """The protocol's number has 31 bits."""
    assert _Count.made(2**40, 1, AT).total == MAX_TOTAL

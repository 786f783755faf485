"""What storage does where others write all the time, or little is there of what it needs."""

from __future__ import annotations

from unittest import mock

import pytest
from a2a.types import TaskPushNotificationConfig

from a2a_serverless.errors import ConditionFailedError, StateTooLargeError, UnavailableError
from a2a_serverless.storage import allowance, changes, layout, signals
from a2a_serverless.storage.allowance import Allowance, Sleepers
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DeletionBarriers
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Key, Put, RefusedError, Update, are
from tests.support.clocks import ManualClock
from tests.support.databases import Dictionaries
from tests.support.messages import request


@pytest.fixture
def table() -> MemoryTable:
    return MemoryTable(INDEXES)


async def test_a_change_that_always_loses_ends(table: MemoryTable, clock: ManualClock) -> None:
    """It waits after each few losses, and says in the end what others have changed."""
    key = Key("A", "B")
    await table.write(Put(item=key._asdict()))
    lost = changes.Change(
        "before",
        lambda now: f"{now}, after",
        lambda _, after: Update(key=key, values={"said": after}, when=are(said="of nobody")),
        lambda _: "of others",
    )
    began = clock.monotonic()
    with pytest.raises(UnavailableError, match=f"have changed A {changes.MOST_TRIES} times"):
        await changes.change(table, clock, lost)
    assert clock.monotonic() > began
    assert not lost.is_stored


async def test_a_task_that_others_write_all_the_time(clock: ManualClock) -> None:
    """A webhook is not stored, and a task not created: in the end the caller reads why."""
    storage = Dictionaries(clock).storage(clock=clock)
    task_id = (await storage.open_task("context", request())).head.task_id
    given = TaskPushNotificationConfig(task_id=task_id, url="https://receiver.example/")
    refused = ConditionFailedError({0: None})
    with mock.patch.object(storage.table, "write", side_effect=refused):
        with pytest.raises(UnavailableError, match=f"Others wrote to task {task_id}, 40 times"):
            await storage.webhooks.put(given)
        with pytest.raises(UnavailableError, match="taken and free by turns, 5 times"):
            await storage.open_task("context", request())
    assert await storage.webhooks.all(task_id) == []


async def test_a_later_task_of_an_id_is_not_deleted(clock: ManualClock) -> None:
    """Where the incarnation is named that is meant."""
    storage = Dictionaries(clock).storage(clock=clock)
    head = (await storage.open_task("context", request())).head
    assert not await delete_task(storage, head.task_id, incarnation="an earlier one")
    assert await storage.head(head.task_id) == head


async def test_a_damaged_barrier_hides_no_other(clock: ManualClock) -> None:
    """One without a time holds up nothing."""
    storage = Dictionaries(clock).storage(clock=clock)
    barriers, until = DeletionBarriers(storage.table, clock), clock.now_ms() + 60_000
    scope, owner = storage.scope.digest, layout.owners_of(storage.scope.digest, "context")[0]
    for value, token in (("?", "damaged"), (until, "whole")):
        key = layout.barrier_item(owner, token)
        await storage.table.write(Update(key=key, values={"until": value}))
    assert await barriers.until(scope, "context") == until


async def test_the_size_of_a_state(clock: ManualClock) -> None:
    """Without a store for large content the bytes count that its item has: they are packed."""
    storage = Dictionaries(clock).storage(clock=clock)
    storage.table.blobs = None
    size, most = storage.contexts.size_of("x" * 200_000)
    assert (size < 1000, most) == (True, StateTooLargeError.LIMIT)


async def test_a_value_that_no_table_keeps_is_refused(table: MemoryTable) -> None:
    """Before anything is written."""
    with pytest.raises(RefusedError, match="no value of type float"):
        await table.write(Put(item={"PK": "A", "SK": "B", "share": 0.5}))
    assert await table.get(Key("A", "B")) is None


async def test_the_secret_of_waits_is_made_once(table: MemoryTable) -> None:
    """Other processes read it; one that is deleted while it is made is no secret."""
    made = await signals.wait_secret(table)
    signals._SECRETS.clear()
    with mock.patch.object(table, "did", side_effect=AssertionError):
        assert await signals.wait_secret(table) == made
    other = MemoryTable(INDEXES)
    with (
        mock.patch.object(other, "did", return_value=False),
        pytest.raises(UnavailableError, match="was deleted while it was made"),
    ):
        await signals.wait_secret(other)


async def test_many_callers_are_forgotten(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of them is bounded, and each is counted anew."""
    monkeypatch.setattr(allowance, "_MOST_CALLERS", 2)
    few = mock.AsyncMock(return_value=0)
    bound = Allowance(1000)
    assert all([await bound.admits(caller, 0, few) for caller in "abcab"])
    assert (len(bound._left) <= 2, few.await_count) == (True, 5)
    sleepers = Sleepers(Dictionaries(clock).storage(clock=clock), 2)
    monkeypatch.setattr(Sleepers, "count", mock.AsyncMock(return_value=9))
    for caller in "abc":
        await sleepers.note(caller)
    assert [*sleepers._watched] == ["c"]

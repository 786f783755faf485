"""A table that an older release has made: without the index by-id, and what adding it brings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import BY_ID, HEAD, event_sort, task_partition
from a2a_serverless.storage.listing import ListTasksQuery
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract.storage import Storage
from a2a_serverless_tools.local.template import Template
from tests.support.clocks import ManualClock
from tests.support.databases import Database, add_index, drop_index, key
from tests.support.messages import chunk, request

pytestmark = pytest.mark.emulators

TABLE = "older-tasks"


@pytest.fixture
def older(database: Database) -> Iterator[Database]:
    """A table of its own without the index, as an older release has made it."""
    client = database.client
    client.create_table(TableName=TABLE, **Template.load().table(stream=False))
    drop_index(client, TABLE, BY_ID)
    yield Database(client=client, table=TABLE)
    client.delete_table(TableName=TABLE)


def stored_by_an_older_release(older: Database, head: Head) -> None:
    """Take from a task what the index finds it by, which an older release does not write."""
    for sort in (HEAD, event_sort(head.incarnation, 1, 0)):
        older.client.update_item(
            TableName=TABLE,
            Key=key(task_partition(head.scope, head.task_id), sort),
            UpdateExpression="REMOVE id_key",
        )


async def refuses_to_find(storage: DurableStorage, head: Head) -> None:
    """Both ways through the index say in one sentence what the table lacks."""
    with pytest.raises(ConfigurationError, match=r"^The table has no index by-id yet: [^.]*\.$"):
        await storage.find(head.task_id)
    with pytest.raises(ConfigurationError, match=r"^The table has no index by-id yet: [^.]*\.$"):
        await storage.created_in(head.created_at)


async def test_everything_but_finding_works(older: Database, clock: ManualClock) -> None:
    """Tasks are made, run, paused, canceled, listed, repaired, pushed and deleted without by-id."""
    storage = older.storage(clock=clock)
    head = (await storage.open_task("context", request(), idempotency_key="key")).head
    head = await storage.commit(head, Commit(token="first", claims=True))
    end = AttemptEnd(token="first", reason="ValueError", correlation_id="0123")
    assert await storage.release(head, end, due_at=1)
    assert [due.task_id for due in await storage.due(clock.now_ms())] == [head.task_id]
    released = await storage.head(head.task_id)
    assert released is not None
    assert released.was_released
    head = await storage.commit(released, Commit(token="second", claims=True, restores=0))
    await Storage(storage).update_task(head.task_id, artifacts=[chunk("a", "x")])
    push = await storage.put_push(
        TaskPushNotificationConfig(task_id=head.task_id, id="a", url="https://receiver.example")
    )
    await storage.move_push(push, replace(push, failures=1))
    await Storage(storage).update_context("context", {"seen": 1})
    assert await Storage(storage).load_context("context") == {"seen": 1}
    await storage.request_cancel(head.task_id, by="alice")
    assert await storage.is_cancelled(head.task_id)
    await Storage(storage).update_task(head.task_id, TaskState.TASK_STATE_CANCELED)
    for context_id in (None, "context"):
        (task,) = (await storage.list_tasks(ListTasksQuery(context_id=context_id))).tasks
        assert (task.id, task.status.state) == (head.task_id, TaskState.TASK_STATE_CANCELED)
    log = await storage.read(head.task_id)
    assert log is not None
    assert log.head.generation == log.fold().generation == 5
    await refuses_to_find(storage, head)
    await storage.delete_task(head.task_id)
    assert await storage.head(head.task_id) is None


async def test_the_added_index_finds_what_this_release_made(
    older: Database, clock: ManualClock
) -> None:
    """The index is filled with tasks made before it; those of an older release need their scope."""
    storage = older.storage(clock=clock)
    old = (await storage.open_task("context", request())).head
    stored_by_an_older_release(older, old)
    new = (await storage.open_task("context", request())).head
    await refuses_to_find(storage, new)
    for head in (old, new):  # a later commit does not bring an older task into the index
        await storage.commit(head, Commit(token="attempt", claims=True))
    add_index(older.client, TABLE, BY_ID)
    own = (new.scope, new.task_id)
    assert await storage.find(new.task_id) == [own]
    made = await storage.created_in(clock.now_ms())
    assert [(head.scope, head.task_id) for head in made.heads] == [own]
    assert await storage.find(old.task_id) == []
    assert await storage.load_task(old.task_id) is not None


async def test_no_task_has_an_id_that_no_key_can_have(older: Database, clock: ManualClock) -> None:
    """On a table without `by-id`, an id that no key can hold is not found and is no error."""
    assert await older.storage(clock=clock).find("x" * 3000) == []

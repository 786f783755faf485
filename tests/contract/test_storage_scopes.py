"""Scoped views: outside of its scope a task does not exist."""

from __future__ import annotations

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState

from a2a_serverless.errors import InvalidArgumentError, TaskNotFoundError
from a2a_serverless.storage.conversation import conversation_queue
from a2a_serverless.storage.deletion import delete_context, delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import CancelRegistry, Storage
from tests.support.databases import new_scope
from tests.support.messages import message, request

WORKING = TaskState.TASK_STATE_WORKING


async def finds_nothing(view: DurableStorage, task_id: str) -> None:
    """Assert that a view finds no task by an id, and changes none."""
    assert await view.load_task(task_id) is None
    assert await view.head(task_id) is None
    assert await view.read(task_id) is None
    assert await Storage(view).get_version(task_id) is None
    assert await view.webhooks.all(task_id) == []
    assert await view.webhooks.get(task_id, "a") is None
    assert await delete_task(view, task_id) is False
    await view.webhooks.delete(task_id, "a")
    put = TaskPushNotificationConfig(task_id=task_id, id="a", url="https://other.example/")
    for refused in (
        Storage(view).update_task(task_id, WORKING),
        view.webhooks.put(put),
        CancelRegistry(view).request_cancel(task_id),
    ):
        with pytest.raises(TaskNotFoundError):
            await refused
    assert not await CancelRegistry(view).is_cancelled(task_id)


async def test_another_scopes_task_does_not_exist(storage: DurableStorage, tasks: Storage) -> None:
    """It is not found, listed, changed, canceled or deleted there; webhooks and states neither."""
    push = TaskPushNotificationConfig(id="a", url="https://receiver.example/")
    head = (await storage.open_task("ctx", request(), push=push)).head
    await tasks.update_context("ctx", "mine")
    task, (mine,) = await storage.load_task(head.task_id), await storage.webhooks.all(head.task_id)
    other = storage.for_scope(new_scope())
    await finds_nothing(other, head.task_id)
    assert await other.webhooks.move(mine, mine.answered("status 503", 1)) is None
    await Storage(other).update_context("ctx", "theirs")
    assert await delete_context(other, "ctx") == 0
    for query in (ListTasksQuery(), ListTasksQuery(context_id="ctx")):
        result = await list_tasks(other, query)
        assert (len(result.tasks), result.total_size) == (0, 0)
    assert await storage.load_task(head.task_id) == task
    assert await storage.webhooks.all(head.task_id) == [mine]
    assert await tasks.load_context("ctx") == "mine"
    assert await Storage(other).load_context("ctx") is None


async def test_scopes_share_chosen_ids(storage: DurableStorage) -> None:
    """The same id makes a task in each scope, independent of one another, with lines of its own."""
    storage.is_serial = True
    other = storage.for_scope(new_scope())
    mine = await storage.open_task("ctx", request(), task_id="chosen")
    theirs = await other.open_task("ctx", request(), task_id="chosen")
    assert (mine.created, theirs.created) == (True, True)
    await storage.commit(mine.head, Commit())
    assert await Storage(storage).get_version("chosen") == 2
    assert await Storage(other).get_version("chosen") == 1
    for view in (storage, other):
        line = await conversation_queue(view, "ctx")
        assert [place.task_id for place in line.positions] == ["chosen"]


async def test_the_id_of_a_key_is_the_scopes_own(storage: DurableStorage) -> None:
    """The same context and key make a task in each scope, and no two of them have one id."""
    other = storage.for_scope(new_scope())
    mine = await storage.open_task("ctx", request(), idempotency_key="key")
    theirs = await other.open_task("ctx", request(), idempotency_key="key")
    assert (mine.created, theirs.created) == (True, True)
    assert mine.head.task_id != theirs.head.task_id
    assert await other.head(mine.head.task_id) is None
    same = storage.for_scope(storage.scope)
    again = await same.open_task("ctx", request(), idempotency_key="key")
    assert (again.created, again.head) == (False, mine.head)


async def test_due_work_is_of_all_scopes(storage: DurableStorage) -> None:
    """The sweeper sees the due turns of every scope, and whose they are."""
    views = (storage, storage.for_scope(new_scope()))
    made = {(view.scope, (await view.open_task("ctx", request())).head.task_id) for view in views}
    due = await due_tasks(storage, storage.clock.now_ms() + 60_000)
    assert {(one.scope, one.task_id) for one in due} >= made


async def test_an_impossible_id_or_key_is_refused(storage: DurableStorage, tasks: Storage) -> None:
    """It is an error where it would be written, nothing is stored, and no task is found by it."""
    for context_id in ("", "x" * 10_240, "\ud800"):
        for refused in (
            tasks.create_task(context_id, message()),
            tasks.update_context(context_id, 1),
            tasks.load_context(context_id),
            delete_context(storage, context_id),
        ):
            with pytest.raises(InvalidArgumentError):
                await refused
    for key in ("", "x" * 10_240):
        with pytest.raises(InvalidArgumentError):
            await tasks.create_task("ctx", message(), idempotency_key=key)
    for task_id in ("", "x" * 10_240, "a b", "a#b", "no/id", "ä", "\ud800"):
        with pytest.raises(InvalidArgumentError):
            await storage.open_task("ctx", request(), task_id=task_id)
        assert await storage.head(task_id) is None
        if task_id != "\ud800":  # which no configuration can hold
            await finds_nothing(storage, task_id)
    assert (await list_tasks(storage, ListTasksQuery())).total_size == 0


async def test_other_ids_are_the_clients(storage: DurableStorage, tasks: Storage) -> None:
    """A context id is 1 to 512 bytes of anything; a task id that is chosen again is that task."""
    for context_id in ("ctx", "€" * 170, "a#b/c d\n\x00", "x" * 512):
        task = await tasks.create_task(context_id, message())
        await tasks.update_context(context_id, 1)
        assert task.context_id == context_id
        result = await list_tasks(storage, ListTasksQuery(context_id=context_id))
        assert [listed.id for listed in result.tasks] == [task.id]
        assert await delete_context(storage, context_id) == 1
    for task_id in ("a", "A-z_0.9:x", "x" * 100):
        first = await storage.open_task("ctx", request("one"), task_id=task_id)
        again = await storage.open_task("ctx", request("two"), task_id=task_id)
        assert (first.created, again.created) == (True, False)
        assert first.head.task_id == task_id
        assert again.head == first.head

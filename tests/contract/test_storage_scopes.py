"""Scoped views: outside of its scope a task does not exist."""

from __future__ import annotations

import pytest
from a2a.types import TaskState

from a2a_serverless.errors import InvalidArgumentError, TaskNotFoundError
from a2a_serverless.storage.deletion import delete_context, delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import Storage
from tests.support.databases import new_scope
from tests.support.messages import message, request


async def test_another_scopes_task_does_not_exist(storage: DurableStorage) -> None:
    """Another scope cannot load, list, update or delete the task, and finds no version of it."""
    task = await Storage(storage).create_task("ctx", message())
    other = storage.for_scope(new_scope())
    assert await other.load_task(task.id) is None
    assert await other.head(task.id) is None
    assert await other.read(task.id) is None
    assert await Storage(other).get_version(task.id) is None
    assert await delete_task(other, task.id) is False
    assert await delete_context(other, "ctx") == 0
    with pytest.raises(TaskNotFoundError):
        await Storage(other).update_task(task.id, TaskState.TASK_STATE_WORKING)
    for query in (ListTasksQuery(), ListTasksQuery(context_id="ctx")):
        result = await list_tasks(other, query)
        assert (len(result.tasks), result.total_size) == (0, 0)
    assert await storage.load_task(task.id) == task


async def test_scopes_share_chosen_ids(storage: DurableStorage) -> None:
    """The same id makes a task in each scope, independent of one another."""
    other = storage.for_scope(new_scope())
    mine = await storage.open_task("ctx", request(), task_id="chosen")
    theirs = await other.open_task("ctx", request(), task_id="chosen")
    assert (mine.created, theirs.created) == (True, True)
    await storage.commit(mine.head, Commit())
    assert await Storage(storage).get_version("chosen") == 2
    assert await Storage(other).get_version("chosen") == 1


async def test_the_id_of_a_key_is_the_scopes_own(storage: DurableStorage) -> None:
    """The same context and key make a task in each scope, and no two of them have one id."""
    other = storage.for_scope(new_scope())
    mine = await storage.open_task("ctx", request(), idempotency_key="key")
    theirs = await other.open_task("ctx", request(), idempotency_key="key")
    assert (mine.created, theirs.created) == (True, True)
    assert mine.head.task_id != theirs.head.task_id
    assert await other.head(mine.head.task_id) is None
    again = await storage.for_scope(storage.scope).open_task(
        "ctx", request(), idempotency_key="key"
    )
    assert (again.created, again.head) == (False, mine.head)


async def test_due_work_is_of_all_scopes(storage: DurableStorage) -> None:
    """The sweeper sees the due turns of every scope, and whose they are."""
    other = storage.for_scope(new_scope())
    made = [await view.open_task("ctx", request()) for view in (storage, other)]
    due = await due_tasks(storage, storage.clock.now_ms() + 60_000)
    owners = {(one.scope, one.task_id) for one in due}
    assert owners >= {
        (storage.scope, made[0].head.task_id),
        (other.scope, made[1].head.task_id),
    }


async def test_an_impossible_context_id_or_key_is_refused(storage: DurableStorage) -> None:
    """An empty, oversized or undecodable one is an error; nothing is written."""
    for context_id in ("", "x" * 10_240, "\ud800"):
        for refused in (
            Storage(storage).create_task(context_id, message()),
            Storage(storage).update_context(context_id, 1),
            Storage(storage).load_context(context_id),
            delete_context(storage, context_id),
        ):
            with pytest.raises(InvalidArgumentError):
                await refused
    for key in ("", "x" * 10_240):
        with pytest.raises(InvalidArgumentError):
            await Storage(storage).create_task("ctx", message(), idempotency_key=key)
    assert (await list_tasks(storage, ListTasksQuery())).total_size == 0


async def test_any_other_context_id_works(storage: DurableStorage) -> None:
    """Context ids are the client's: 1 to 512 bytes of anything."""
    for context_id in ("ctx", "€" * 170, "a#b/c d\n\x00", "x" * 512):
        task = await Storage(storage).create_task(context_id, message())
        await Storage(storage).update_context(context_id, 1)
        assert task.context_id == context_id
        result = await list_tasks(storage, ListTasksQuery(context_id=context_id))
        assert [listed.id for listed in result.tasks] == [task.id]
        assert await delete_context(storage, context_id) == 1


async def test_an_impossible_task_id(storage: DurableStorage) -> None:
    """An id that no task can have is an error where it would be written, and found nowhere."""
    for task_id in ("", "x" * 10_240, "a b", "a#b", "ä", "\ud800"):
        with pytest.raises(InvalidArgumentError):
            await storage.open_task("ctx", request(), task_id=task_id)
        assert await storage.load_task(task_id) is None
        assert await storage.head(task_id) is None
        assert await storage.read(task_id) is None
        assert await Storage(storage).get_version(task_id) is None
        assert await delete_task(storage, task_id) is False
        with pytest.raises(TaskNotFoundError):
            await Storage(storage).update_task(task_id, TaskState.TASK_STATE_WORKING)


async def test_a_chosen_task_id(storage: DurableStorage) -> None:
    """A client may choose the id; choosing it again returns the first task."""
    for task_id in ("a", "A-z_0.9:x", "x" * 100):
        first = await storage.open_task("ctx", request("one"), task_id=task_id)
        again = await storage.open_task("ctx", request("two"), task_id=task_id)
        assert (first.created, again.created) == (True, False)
        assert first.head.task_id == task_id
        assert again.head == first.head

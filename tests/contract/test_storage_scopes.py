"""Outside of its scope, and after its time, a task does not exist; then its id is free."""

from __future__ import annotations

from unittest.mock import AsyncMock

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState

from a2a_serverless.errors import InvalidArgumentError, TaskNotFoundError
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.conversation import conversation_queue
from a2a_serverless.storage.deletion import delete_context, delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.table import Write
from a2a_serverless.tasks.entries import MessageAppended
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import CancelRegistry, Storage
from tests.support.clocks import ManualClock
from tests.support.databases import new_scope
from tests.support.messages import agent_message, chunk, message, request, said
from tests.support.present import present

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
    """An id makes a task in each scope, with a line of its own; the sweeper sees whose it is."""
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
    due = await due_tasks(storage, storage.clock.now_ms() + 60_000, limit=1000)
    found = {(one.scope, one.task_id) for one in due}
    assert found >= {(view.scope, "chosen") for view in (storage, other)}


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


HOUR = 3600
MONTH = 30 * 24 * HOUR


async def is_found(storage: DurableStorage, task_id: str) -> set[bool]:
    """What every way to find a task says; a set of one if they agree."""
    listed = await list_tasks(storage, ListTasksQuery())
    in_context = await list_tasks(storage, ListTasksQuery(context_id="ctx"))
    return {
        await storage.load_task(task_id) is not None,
        await storage.load_task(task_id, 0, include_artifacts=False) is not None,
        await storage.head(task_id) is not None,
        await storage.read(task_id) is not None,
        await Storage(storage).get_version(task_id) is not None,
        task_id in {task.id for task in listed.tasks},
        task_id in {task.id for task in in_context.tasks},
        listed.total_size == 1,
        in_context.total_size == 1,
    }


@pytest.mark.parametrize(("ttl_s", "lives_s"), [(None, MONTH), (HOUR, HOUR), (0.5, 1), (1.5, 2)])
async def test_a_task_expires(
    storage: DurableStorage, clock: ManualClock, ttl_s: float | None, lives_s: float
) -> None:
    """Found to its last millisecond, in 30 days unless said; no update prolongs it; then gone."""
    opened = await storage.open_task("ctx", request(), ttl_s=ttl_s)
    assert opened.head.expires_at == clock.now_ms() + lives_s * 1000
    task_id = opened.head.task_id
    clock.advance(lives_s - 0.001)
    await Storage(storage).update_task(task_id, artifacts=[chunk("a", "x")])
    assert await is_found(storage, task_id) == {True}
    clock.advance(0.001)
    assert await is_found(storage, task_id) == {False}


async def test_an_expired_task_is_not_written(
    storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No write finds it, or is even tried, nor is its turn due, though it is stored for days."""
    gone = (await storage.open_task("ctx", request(), ttl_s=HOUR)).head
    alive = (await storage.open_task("other", request())).head
    clock.advance(HOUR)
    await finds_nothing(storage, gone.task_id)
    with monkeypatch.context() as patched:
        patched.setattr(storage.table, "write", AsyncMock(side_effect=AssertionError))
        with pytest.raises(TaskNotFoundError):
            await storage.commit(gone, Commit())
    assert await storage.postpone(gone, due_at=clock.now_ms() + 1, sends=1) is None
    assert await delete_context(storage, "ctx") == 0
    due = {entry.task_id for entry in await due_tasks(storage, clock.now_ms(), limit=1000)}
    assert alive.task_id in due
    assert gone.task_id not in due


async def test_an_expired_id_can_be_used_again(storage: DurableStorage, clock: ManualClock) -> None:
    """The same key makes a new task, which has nothing of the expired one, its cancel neither."""
    old = await storage.open_task("ctx", request("old"), idempotency_key="key", ttl_s=HOUR)
    task_id = old.head.task_id
    for _ in range(3):
        await Storage(storage).update_task(task_id, artifacts=[chunk("a", "old")])
    await storage.request_cancel(task_id)
    clock.advance(HOUR)
    new = await storage.open_task("ctx", request("new"), idempotency_key="key", ttl_s=HOUR)
    assert (new.created, new.head.task_id, new.head.cancel) == (True, task_id, None)
    assert new.head.incarnation != old.head.incarnation
    task = present(await storage.load_task(task_id))
    assert (said(task), list(task.artifacts)) == (["new"], [])
    assert await Storage(storage).get_version(task_id) == 1
    listed = await list_tasks(storage, ListTasksQuery())
    assert [one.id for one in listed.tasks] == [task_id]


async def test_an_id_that_becomes_free_meanwhile_is_taken(
    storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that expires while a creation meets it is no reason to refuse the creation."""
    first = (await storage.open_task("ctx", request(), ttl_s=HOUR)).head
    write = storage.table.write

    async def late(*writes: Write, **options: bool) -> None:
        monkeypatch.setattr(storage.table, "write", write)
        try:
            await write(*writes, **options)
        finally:
            clock.advance(HOUR)

    monkeypatch.setattr(storage.table, "write", late)
    second = await storage.open_task("ctx", request(), task_id=first.task_id)
    assert second.created


async def test_a_late_writer_of_an_expired_task_is_refused(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """It writes nothing into a new task of the same id, whose events no earlier subscriber gets."""
    late = Commit(entries=(MessageAppended(agent_message("late")),))
    old = await storage.open_task("ctx", request(), task_id="t", ttl_s=HOUR)
    clock.advance(HOUR)
    new = await storage.open_task("ctx", request(), task_id="t", ttl_s=2 * HOUR)
    with pytest.raises(TaskNotFoundError):
        await storage.commit(old.head, late)
    clock.advance(-HOUR)  # a writer whose clock is behind: for it the old task is alive
    with pytest.raises(TaskNotFoundError):
        await storage.commit(old.head, late)
    assert await storage.postpone(old.head, due_at=1, sends=1) is None
    assert await storage.read("t") == new.log
    head = await storage.commit(new.head, Commit())
    assert await storage.read("t", after=1, incarnation=old.head.incarnation) is None
    log = present(await storage.read("t", after=1, incarnation=new.head.incarnation))
    assert (log.head, [record.version for record in log.records]) == (head, [2])


async def test_a_state_expires(storage: DurableStorage, tasks: Storage, clock: ManualClock) -> None:
    """It lives a task's time to live from its last write; then its version counts from 0."""
    for state in ("first", "second"):
        await tasks.update_context("ctx", state)
        clock.advance(MONTH - 1)
        assert await tasks.load_context("ctx") == state
    clock.advance(1)
    assert await storage.contexts.load("ctx") == (None, 0)
    head = (await storage.open_task("ctx", request())).head
    await storage.commit(head, Commit(context_write=context_write("fresh", 0)))
    assert await storage.contexts.load("ctx") == ("fresh", 1)


async def test_a_listing_counts_the_living(storage: DurableStorage, clock: ManualClock) -> None:
    """Expired tasks are neither on a page nor in its `total_size`, and pages stay full."""
    for number in range(6):
        clock.advance(1)
        ttl_s = HOUR if number % 2 else MONTH
        await storage.open_task("ctx", request(str(number)), ttl_s=ttl_s)
    clock.advance(2 * HOUR)
    query = ListTasksQuery(page_size=2)
    first = await list_tasks(storage, query)
    assert ([said(task) for task in first.tasks], first.total_size) == ([["4"], ["2"]], 3)
    later = query.model_copy(update={"page_token": first.next_page_token})
    second = await list_tasks(storage, later)
    assert ([said(task) for task in second.tasks], second.next_page_token) == ([["0"]], "")

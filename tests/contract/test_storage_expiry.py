"""Expiry and incarnations: what has expired is not found, and its id is free."""

from __future__ import annotations

import pytest

from a2a_serverless.errors import TaskNotFoundError
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.deletion import delete_context
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.table import Write
from a2a_serverless.tasks.entries import MessageAppended
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import Storage
from tests.contract.test_storage_scopes import finds_nothing
from tests.support.clocks import ManualClock
from tests.support.messages import agent_message, chunk, request, said
from tests.support.present import present

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
    """A task is found up to its last millisecond and nowhere after it; 30 days unless said.

    An update does not prolong it, and the second in which its time ends is whole.
    """
    opened = await storage.open_task("ctx", request(), ttl_s=ttl_s)
    assert opened.head.expires_at == clock.now_ms() + lives_s * 1000
    task_id = opened.head.task_id
    clock.advance(lives_s - 0.001)
    await Storage(storage).update_task(task_id, artifacts=[chunk("a", "x")])
    assert await is_found(storage, task_id) == {True}
    clock.advance(0.001)
    assert await is_found(storage, task_id) == {False}


async def test_an_expired_task_is_not_written(storage: DurableStorage, clock: ManualClock) -> None:
    """No write finds it, nor is its turn due, though it is stored for days; a live one is."""
    gone = (await storage.open_task("ctx", request(), ttl_s=HOUR)).head
    alive = (await storage.open_task("other", request())).head
    clock.advance(HOUR)
    await finds_nothing(storage, gone.task_id)
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
    """A writer that holds an old HEAD writes nothing into the new task of the same id.

    Nor does a subscriber that follows the expired task get the new one's events.
    """
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


async def test_a_contexts_state_expires(
    storage: DurableStorage, tasks: Storage, clock: ManualClock
) -> None:
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

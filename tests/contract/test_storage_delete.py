"""Deleting tasks and contexts, and the state of contexts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from random import Random
from typing import Any

import pytest

from a2a_serverless.errors import (
    ConcurrencyError,
    FencedError,
    InvalidArgumentError,
    TaskNotFoundError,
)
from a2a_serverless.storage import layout
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.listing import ListTasksQuery
from a2a_serverless.storage.table import Item, Key, Range, Write
from a2a_serverless.tasks.entries import MessageAppended
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import Storage
from tests.contract.test_storage_scopes import finds_nothing
from tests.support.messages import agent_message, chunk, message, request, said
from tests.support.present import present

LATE = Commit(entries=(MessageAppended(agent_message("late")),))


async def test_a_deleted_task_is_gone(storage: DurableStorage, tasks: Storage) -> None:
    """Delete returns True once; the task is neither loaded, listed, updated nor due (45)."""
    task = await tasks.create_task("ctx", message())
    await tasks.update_task(task.id, artifacts=[chunk("a", "x")])
    kept = await tasks.create_task("ctx", message())
    assert await tasks.delete_task(task.id) is True
    await finds_nothing(storage, task.id)
    for query in (ListTasksQuery(), ListTasksQuery(context_id="ctx")):
        result = await tasks.list_tasks(query)
        assert ([listed.id for listed in result.tasks], result.total_size) == ([kept.id], 1)
    due = await due_tasks(storage, storage.clock.now_ms() + 10**9)
    assert task.id not in {one.task_id for one in due}


async def test_a_context_is_deleted_with_its_tasks(tasks: Storage) -> None:
    """`delete_context` deletes tasks and state, and counts the tasks; again it is 0 (46)."""
    mine = [await tasks.create_task("ctx", message()) for _ in range(3)]
    other = await tasks.create_task("other", message())
    await tasks.update_context("ctx", {"k": 1})
    await tasks.update_context("other", {"k": 2})
    assert await tasks.delete_context("ctx") == 3
    assert await tasks.delete_context("ctx") == 0
    assert [await tasks.load_task(task.id) for task in mine] == [None] * 3
    assert await tasks.load_context("ctx") is None
    assert await tasks.load_task(other.id) is not None
    assert await tasks.load_context("other") == {"k": 2}


async def test_a_late_writer_of_a_deleted_task(storage: DurableStorage) -> None:
    """A writer that read the task before its deletion writes nothing, nor into a new task."""
    opened = await storage.open_task("ctx", request("old"), idempotency_key="key")
    task_id = opened.head.task_id
    await delete_task(storage, task_id)
    with pytest.raises(TaskNotFoundError):
        await storage.commit(opened.head, LATE)
    again = await storage.open_task("ctx", request("new"), idempotency_key="key")
    assert again.head.task_id == task_id
    with pytest.raises(TaskNotFoundError):
        await storage.commit(opened.head, LATE)
    assert await storage.read(task_id, incarnation=opened.head.incarnation) is None
    assert await storage.read(task_id, incarnation=again.head.incarnation) == again.log
    assert await storage.postpone(opened.head, due_at=1, sends=1) is None


async def test_a_deletion_leaves_a_creation_that_it_sees_in_part(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Query may see events of a transaction before a read sees its HEAD: they are left alone."""
    table, head = storage.table, (await storage.open_task("ctx", request())).head
    key = layout.head_key(head.scope, head.task_id)
    query, load, write, seen = table.query, table.load, table.write, dict[Key, Item | None]()

    async def queried(wanted: Range) -> AsyncIterator[list[Item]]:
        monkeypatch.setattr(table, "query", query)
        fenced = await load([key])
        await storage.open_task("ctx", request("again"), task_id=head.task_id)
        seen.update(fenced)
        async for page in query(wanted):
            yield page

    async def loaded(keys: Iterable[Key], **options: Any) -> dict[Key, Item | None]:
        found = await load(keys, **options)
        return {at: seen.get(at, item) for at, item in found.items()}

    async def written(*writes: Write, **options: Any) -> None:
        if any(one.key == key for one in writes):
            seen.clear()  # it is refused, and repeated, until the transaction has ended
        await write(*writes, **options)

    monkeypatch.setattr(table, "query", queried)
    monkeypatch.setattr(table, "load", loaded)
    monkeypatch.setattr(table, "write", written)
    assert await delete_task(storage, head.task_id)
    seen.clear()
    assert said(present(await storage.load_task(head.task_id))) == ["again"]


NOISE = Random(1).randbytes(350_000).hex()  # noqa: S311


async def test_a_contexts_state_is_any_json(storage: DurableStorage, tasks: Storage) -> None:
    """The last writer wins; what is no JSON, or longer than an item, is an error (49)."""
    assert await storage.contexts.load("ctx") == (None, 0)
    noted = {"ä": "€", "n": "\u0000", "a": [1, {"b": None}]}
    states: tuple[object, ...] = (noted, [], "", 0, False, 1.5, "x" * 10**5)
    for state in states:
        await tasks.update_context("ctx", state)
        assert await tasks.load_context("ctx") == state
    for wrong in (object(), {1, 2}, float("nan"), NOISE):
        with pytest.raises(InvalidArgumentError):
            await tasks.update_context("ctx", wrong)
    assert await tasks.load_context("ctx") == states[-1]


async def test_a_contexts_state_joins_a_commit(storage: DurableStorage, tasks: Storage) -> None:
    """Task and state of its context are written together, or not at all."""
    head = (await storage.open_task("ctx", request())).head
    head = await storage.commit(head, Commit(context_write=context_write({"n": 1}, 0)))
    assert await storage.contexts.load("ctx") == ({"n": 1}, 1)
    stale = Commit(entries=LATE.entries, context_write=context_write({"n": 2}, 0))
    with pytest.raises(ConcurrencyError, match="context") as caught:
        await storage.commit(head, stale)
    assert not isinstance(caught.value, FencedError)
    assert await tasks.get_version(head.task_id) == 2
    head = await storage.commit(head, Commit(context_write=context_write({"n": 2}, 1)))
    assert await storage.contexts.load("ctx") == ({"n": 2}, 2)
    old = (await storage.open_task("other", request())).head
    await tasks.update_task(old.task_id)
    with pytest.raises(ConcurrencyError):
        await storage.commit(old, Commit(context_write=context_write("lost")))
    assert await tasks.load_context("other") is None

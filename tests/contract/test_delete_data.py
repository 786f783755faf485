"""Deleting all that an owner has, or a context, in bounded steps that anyone can continue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState

from a2a_serverless import errors
from a2a_serverless.storage import deletion, layout
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.deletion import (
    Amounts,
    count_data,
    delete_data,
    delete_remains,
    delete_task,
    has_remains,
)
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.layout import context_item, head_key, task_partition
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.storage.table import Delete, Item, Key, Range, Table, Update, Write
from a2a_serverless.tasks.entries import MessageAppended
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.identity import new_token
from a2a_serverless.tasks.rules import Commit, releasing, renewing
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.operate.finding import find_tasks
from tests.contract.test_storage_scopes import finds_nothing
from tests.support.clocks import ManualClock
from tests.support.databases import Dictionaries, new_scope
from tests.support.messages import agent_message, chunk, message, request, said
from tests.support.present import present

ONE_MORE = Commit(entries=(MessageAppended(agent_message("late")),))


async def fill(storage: DurableStorage) -> list[Head]:
    """Two tasks in one context and one in another, with webhooks, states of contexts and a flag."""
    heads = []
    for context, webhooks in (("a", 2), ("a", 0), ("b", 1)):
        head = (await storage.open_task(context, request())).head
        for number in range(webhooks):
            await storage.webhooks.put(hook(head, f"hook-{number}"))
        await Storage(storage).update_task(head.task_id, artifacts=[chunk("x", "y")])
        heads.append(head)
    for context in ("a", "b", "alone"):
        await Storage(storage).update_context(context, {"of": context})
    await storage.request_cancel(heads[0].task_id)
    return heads


def hook(head: Head, config_id: str) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(
        task_id=head.task_id, id=config_id, url="https://hooks.example/", token="secret"
    )


async def delete_all(
    storage: DurableStorage, context_id: str | None = None, *, limit: int = 1000
) -> tuple[Amounts, int]:
    """What all steps have deleted, and their number; each is made by a process of its own."""
    total, steps = Amounts(after=""), 0
    while not total.is_done:
        steps += 1
        assert steps < 200
        total += await Storage(storage.for_scope(storage.scope)).delete_data(
            context_id, limit=limit
        )
    return total, steps


async def count_all(
    storage: DurableStorage, context_id: str | None = None, *, limit: int = 100
) -> tuple[int, int, int]:
    """Tasks, contexts and webhooks, summed over all steps."""
    tasks = contexts = webhooks = 0
    after: str | None = ""
    while after is not None:
        step: Amounts = await Storage(storage).count_data(context_id, limit=limit, after=after)
        tasks, contexts = tasks + step.tasks, contexts + step.contexts
        webhooks, after = webhooks + step.webhooks, step.after or None
    return tasks, contexts, webhooks


async def is_gone(storage: DurableStorage, head: Head) -> bool:
    """Whether no look-up finds anything of a task."""
    task_id, far = head.task_id, storage.clock.now_ms() + 10**9
    due = await due_tasks(storage, far, limit=1000)
    return (
        await storage.head(task_id) is None
        and await storage.read(task_id) is None
        and await storage.webhooks.all(task_id) == []
        and await find_tasks(storage, task_id) == []
        and task_id not in {one.task_id for one in due}
    )


@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_all_of_a_scope(storage: DurableStorage, limit: int) -> None:
    """All that a scope, or a context, has is gone, and nothing else; twice or none is harmless."""
    other = storage.for_scope(new_scope())
    theirs, heads = await fill(other), await fill(storage)
    assert await count_all(storage, limit=2) == (3, 3, 3)
    assert await count_all(storage, "a", limit=1) == (2, 1, 2)
    deleted, _ = await delete_all(storage, "a", limit=limit)
    assert (deleted.tasks, deleted.contexts, deleted.webhooks) == (2, 1, 2)
    assert [await is_gone(storage, head) for head in heads] == [True, True, False]
    assert await count_all(storage) == (1, 2, 1)
    assert len(await storage.webhooks.all(heads[2].task_id)) == 1
    again = await fill(storage)
    deleted, steps = await delete_all(storage, limit=limit)
    assert (deleted.tasks, deleted.contexts, deleted.webhooks) == (4, 3, 4)
    assert (steps > 2) == (limit < 1000)
    assert [await is_gone(storage, head) for head in (heads[2], *again)] == [True] * 4
    assert (await list_tasks(storage, ListTasksQuery())).total_size == 0
    for context in ("a", "b", "alone"):
        assert await storage.contexts.load(context) == (None, 0)
    assert await count_all(storage) == (0, 0, 0)
    for unknown in (None, "a", "unknown"):
        assert await delete_data(storage, unknown) == Amounts()
    assert await count_all(other) == (3, 3, 3)
    assert len(await other.webhooks.all(theirs[0].task_id)) == 2
    assert present(await other.head(theirs[0].task_id)).is_being_canceled
    assert (await other.contexts.load("a"))[0] == {"of": "a"}


async def test_bad_arguments_delete_nothing(storage: DurableStorage) -> None:
    """An empty id is no context and not all of them, and a step of nothing is none."""
    await fill(storage)
    for context, limit in (("", 10), ("x" * 513, 10), (None, 0), ("a", -1)):
        with pytest.raises(errors.InvalidArgumentError):
            await delete_data(storage, context, limit=limit)
        with pytest.raises(errors.InvalidArgumentError):
            await count_data(storage, context, limit=limit)
    assert await count_all(storage) == (3, 3, 3)


async def late_writes(storage: DurableStorage, head: Head) -> list[object]:
    """Everything that a process may still do that has read the task; None where it was refused."""
    token = new_token()
    end = AttemptEnd(token=token, reason="r", correlation_id="c")
    renewed = partial(renewing, token=head.turn.token or token, due_at=1)
    assert await storage.webhooks.all(head.task_id) == []
    said: list[object] = []
    for call in (
        storage.commit(head, ONE_MORE),
        storage.commit(head, Commit(context_write=context_write("back"))),
        storage.postpone(head, due_at=1, sends=1),
        storage.change(head, renewed),
        storage.change(head, partial(releasing, end=end)),
        storage.request_cancel(head.task_id),
        storage.webhooks.put(hook(head, "hook-0")),
        storage.webhooks.put(hook(head, "new")),
    ):
        try:
            said.append(await call)
        except errors.TaskNotFoundError:
            said.append(None)
    return said


@pytest.mark.parametrize("limit", [1, 1000])
async def test_a_late_worker_brings_nothing_back(storage: DurableStorage, limit: int) -> None:
    """After the first step of its deletion no write finds a running task, nor makes it anew."""
    head = (await storage.open_task("ctx", request())).head
    head = await storage.commit(head, Commit(token=new_token(), claims=True))
    push = await storage.webhooks.put(hook(head, "hook-0"))
    await Storage(storage).update_context("ctx", "mine")
    while (await delete_data(storage, limit=limit)).tasks == 0:
        assert not await is_gone(storage, head)
    assert await is_gone(storage, head)
    refused = [None] * 8
    assert await late_writes(storage, head) == refused
    await delete_all(storage)
    assert await late_writes(storage, head) == refused
    assert await storage.webhooks.move(push, replace(push, failures=1)) is None
    assert await storage.contexts.load("ctx") == (None, 0)
    assert await delete_data(storage) == Amounts()


async def test_an_id_is_free_while_its_task_is_deleted(storage: DurableStorage) -> None:
    """A creation with the same key makes a new task, whole, beside what is left of the old one."""
    old = (await storage.open_task("ctx", request("old"), idempotency_key="key")).head
    await storage.webhooks.put(hook(old, "hook-0"))
    await delete_data(storage, limit=1)
    new = await storage.open_task("ctx", request("new"), idempotency_key="key")
    assert new.created
    assert new.head.task_id == old.task_id
    assert await storage.read(old.task_id) == new.log
    assert await storage.webhooks.all(old.task_id) == []
    assert await delete_task(storage, old.task_id) is True
    assert (await delete_all(storage))[0].tasks == 0


async def test_without_a_head(storage: DurableStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader meanwhile finds none, although the deletion has put a fence in the place of HEAD."""
    head = (await storage.open_task("ctx", request("old"))).head
    await storage.table.write(Delete(key=head_key(head.scope, head.task_id)))
    seen, erase = list[object](), deletion._erase

    async def beside_a_reader(*given: Any, **options: Any) -> Any:
        seen.extend([await storage.head(head.task_id), await storage.read(head.task_id)])
        return await erase(*given, **options)

    monkeypatch.setattr(deletion, "_erase", beside_a_reader)
    assert await delete_remains(storage, head.task_id)
    assert seen == [None, None]
    assert not await has_remains(storage, head.task_id)


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


@pytest.mark.parametrize("fences", [1, deletion._FENCES])
async def test_a_fence_whose_answer_is_lost(
    storage: DurableStorage, monkeypatch: pytest.MonkeyPatch, fences: int
) -> None:
    """One that was stored counts; a task that is replaced each time stays, with a sentence."""
    head, write, refused = (await storage.open_task("a", request())).head, storage.table.write, 0

    async def answers(*writes: Write, **options: Any) -> None:
        nonlocal refused
        if refused == fences:
            return await write(*writes, **options)
        refused += 1
        if fences == 1:
            await write(*writes, **options)
        raise errors.ConditionFailedError({})

    monkeypatch.setattr(storage.table, "write", answers)
    if fences == 1:
        assert await delete_task(storage, head.task_id)
    else:
        with pytest.raises(errors.UnavailableError, match="replaced 5 times while"):
            await delete_task(storage, head.task_id)
    assert (await storage.head(head.task_id) is None) is (fences == 1)


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
    with pytest.raises(errors.TaskNotFoundError):
        await storage.commit(opened.head, ONE_MORE)
    again = await storage.open_task("ctx", request("new"), idempotency_key="key")
    assert again.head.task_id == task_id
    with pytest.raises(errors.TaskNotFoundError):
        await storage.commit(opened.head, ONE_MORE)
    assert await storage.read(task_id, incarnation=opened.head.incarnation) is None
    assert await storage.read(task_id, incarnation=again.head.incarnation) == again.log
    assert await storage.postpone(opened.head, due_at=1, sends=1) is None


async def test_a_part_is_left(storage: DurableStorage, monkeypatch: pytest.MonkeyPatch) -> None:
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
        with pytest.raises(errors.InvalidArgumentError):
            await tasks.update_context("ctx", wrong)
    assert await tasks.load_context("ctx") == states[-1]


async def test_a_contexts_state_joins_a_commit(storage: DurableStorage, tasks: Storage) -> None:
    """Task and state of its context are written together, or not at all."""
    head = (await storage.open_task("ctx", request())).head
    head = await storage.commit(head, Commit(context_write=context_write({"n": 1}, 0)))
    assert await storage.contexts.load("ctx") == ({"n": 1}, 1)
    stale = Commit(entries=ONE_MORE.entries, context_write=context_write({"n": 2}, 0))
    with pytest.raises(errors.ConcurrencyError, match="context") as caught:
        await storage.commit(head, stale)
    assert not isinstance(caught.value, errors.FencedError)
    assert await tasks.get_version(head.task_id) == 2
    head = await storage.commit(head, Commit(context_write=context_write({"n": 2}, 1)))
    assert await storage.contexts.load("ctx") == ({"n": 2}, 2)
    old = (await storage.open_task("other", request())).head
    await tasks.update_task(old.task_id)
    with pytest.raises(errors.ConcurrencyError):
        await storage.commit(old, Commit(context_write=context_write("lost")))
    assert await tasks.load_context("other") is None


@pytest.fixture
def items(clock: ManualClock) -> Dictionaries:
    """A table whose items a test looks at."""
    return Dictionaries(clock)


def items_of(items: Dictionaries, storage: DurableStorage) -> list[Any]:
    """All items of a scope, whatever index has them: states of the contexts of `fill`."""
    digest = storage.scope.digest
    contexts = {context_item(digest, context).PK for context in ("a", "b", "alone")}
    return [
        item
        for item in items.items()
        if item["PK"]["S"] in contexts or item["PK"]["S"].startswith(task_partition(digest, ""))
    ]


class KilledError(Exception):
    """The process is gone."""


def dies_at(patch: pytest.MonkeyPatch, table: Table, number: int) -> None:
    """Let the process die before its request `number`."""
    left = iter(range(number - 1))

    def mortal(method: Callable[..., Any]) -> Callable[..., Any]:
        def request(*args: Any, **options: Any) -> Any:
            if next(left, None) is None:
                raise KilledError
            return method(*args, **options)

        return request

    for name in ("load", "query", "count", "write", "delete"):
        patch.setattr(table, name, mortal(getattr(table, name)))


@pytest.mark.parametrize("limit", [2, 1000])
async def test_a_deletion_that_dies_anywhere_is_finished(
    items: Dictionaries, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """If a process dies before any request of a deletion, the next one deletes all that is left."""
    number, is_whole = 0, False
    while not is_whole:
        number += 1
        storage = items.storage()
        head = (await storage.open_task("a", request())).head
        await storage.webhooks.put(hook(head, "hook-0"))
        await Storage(storage).update_context("a", 1)
        with monkeypatch.context() as patch, suppress(KilledError):
            dies_at(patch, storage.table, number)
            await delete_all(storage, limit=limit)
            is_whole = True
        await delete_all(storage, limit=limit)
        assert (number, items_of(items, storage)) == (number, [])
    assert number > 15


async def test_the_damaged_and_the_expired_go_too(items: Dictionaries, clock: ManualClock) -> None:
    """HEAD's keys are enough, tasks lead to unindexed states; expired items count as no task."""
    for lost in (["incarnation"], ["turn"], ["expires_at"], [], ["scope_key", "status_key"]):
        storage = items.storage(clock=clock)
        head, *_ = await fill(storage)
        key = head_key(head.scope, head.task_id)
        if lost[:1] == ["scope_key"]:
            key = context_item(head.scope, "a")
        if lost:
            await storage.table.write(Update(key=key, values={}, remove=lost))
        else:
            clock.advance(storage.timing.ttl_s + 60)
            assert (await count_all(storage))[:2] == (0, 0)
        deleted, _ = await delete_all(storage, limit=5)
        assert items_of(items, storage) == []
        if not lost:
            assert (deleted.tasks, deleted.webhooks) == (0, 3)


async def test_a_step_is_bounded(items: Dictionaries) -> None:
    """A step deletes no more items than its limit, and those of a long task in several steps."""
    storage = items.storage()
    head = (await storage.open_task("a", request())).head
    for _ in range(20):
        await Storage(storage).update_task(head.task_id, TaskState.TASK_STATE_WORKING)
    sizes = [len(items_of(items, storage))]
    while sizes[-1]:
        await delete_data(storage, limit=6)
        sizes.append(len(items_of(items, storage)))
    assert all(before - after <= 7 for before, after in pairwise(sizes))
    assert len(sizes) >= 5

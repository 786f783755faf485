"""The CancelRegistry contract over every table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
from a2a.types import TaskState, TaskStatus

from a2a_serverless.errors import TaskTerminalStateError, UnavailableError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.table import Item, Key, Write
from a2a_serverless.tasks.entries import StatusChanged, TurnOpened
from a2a_serverless.tasks.head import AttemptEnd, CancelMark, Head
from a2a_serverless.tasks.rules import Commit, Timing, releasing, renewing
from a2a_serverless.wiring import memory_backends
from a2a_serverless_tools.contract import CancelRegistry, Storage
from tests.support.clocks import ManualClock
from tests.support.databases import new_scope
from tests.support.messages import message, request
from tests.support.present import present

PATIENCE_S = 10
TIMEOUT_S = 10


@dataclass(frozen=True)
class Cancels:
    """A registry over the storage of its tasks."""

    registry: CancelRegistry
    storage: DurableStorage
    clock: ManualClock

    async def task(self) -> str:
        """A new task."""
        task = await Storage(self.storage).create_task("context", message())
        return str(task.id)

    async def overdue(self) -> list[str]:
        """Tasks of this scope that the sweeper would look at now."""
        found = await due_tasks(self.storage, self.clock.now_ms())
        return [item.task_id for item in found if item.scope == self.storage.scope]


@pytest.fixture
def cancels(storage: DurableStorage, clock: ManualClock) -> Cancels:
    """The registry under test."""
    storage = replace(storage, timing=Timing(cancel_s=TIMEOUT_S))
    return Cancels(CancelRegistry(storage), storage, clock)


async def test_every_read_says_that_a_cancel_was_requested(cancels: Cancels) -> None:
    """HEAD says who asked first and when, in every read; nothing else changes, nor by another."""
    task_id, other = await cancels.task(), await cancels.task()
    storage, now_ms = cancels.storage, cancels.clock.now_ms()
    before = present(await storage.read(task_id))
    marked = await storage.request_cancel(task_id, by="ann")
    cancels.clock.advance(1)
    await storage.request_cancel(task_id, by="bob")
    for _ in range(2):
        await cancels.registry.cleanup(task_id)
    after = present(await storage.read(task_id))
    behind = present(await storage.read(task_id, after=1, incarnation=marked.incarnation))
    key = (storage.scope.digest, task_id)
    assert marked.cancel == CancelMark(at=now_ms, by="ann")
    assert replace(marked, cancel=None, due_at=before.head.due_at) == before.head
    assert (after.head, behind.head) == (marked, marked)
    assert await storage.look([key]) == {key: marked}
    assert after.records == before.records
    assert await cancels.registry.is_cancelled(task_id)
    assert not await cancels.registry.is_cancelled(other)
    await Storage(storage).update_task(task_id, TaskState.TASK_STATE_CANCELED)
    assert not await cancels.registry.is_cancelled(task_id)


async def test_an_ended_task_takes_no_request(cancels: Cancels) -> None:
    """Neither a first one nor, if it was to be canceled, another; nothing is left to be overdue."""
    first, other = await cancels.task(), await cancels.task()
    await cancels.registry.request_cancel(other)
    for task_id in (first, other):
        await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_COMPLETED)
        with pytest.raises(TaskTerminalStateError):
            await cancels.registry.request_cancel(task_id)
        assert not await cancels.registry.is_cancelled(task_id)
    cancels.clock.advance(TIMEOUT_S)
    assert await cancels.overdue() == []


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_cancel_is_due_at_its_deadline(cancels: Cancels, *, is_paused: bool) -> None:
    """A task, with a turn or without, is due at its cancel's deadline, not a millisecond before."""
    task_id = await cancels.task()
    if is_paused:
        await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
        assert (await head_of(cancels, task_id)).due_at is None
    await cancels.registry.request_cancel(task_id)
    cancels.clock.advance(TIMEOUT_S - 0.001)
    assert await cancels.overdue() == []
    cancels.clock.advance(0.001)
    assert await cancels.overdue() == [task_id]
    await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_CANCELED)
    assert (await head_of(cancels, task_id)).due_at is None
    assert await cancels.overdue() == []


async def test_the_deadline_is_that_of_the_settings(clock: ManualClock) -> None:
    """A process that serves cancels for 3 seconds leaves them to the sweeper after 3 seconds."""
    settings = Settings().model_copy(update={"cancel_timeout_s": 3})
    storage = memory_backends(settings, clock).storage
    head = (await storage.open_task("context", request())).head
    marked = await storage.request_cancel(head.task_id)
    assert marked.due_at == clock.now_ms() + 3_000


async def test_nothing_but_the_end_moves_the_deadline(cancels: Cancels) -> None:
    """A renewal, a release, a postponement, a claim, a pause and a follow-up leave it in place."""
    storage, task_id = cancels.storage, await cancels.task()
    head = await storage.commit(await head_of(cancels, task_id), Commit(token="A", claims=True))
    later = cancels.clock.now_ms() + 3_600_000
    end, other = AttemptEnd(token="A", reason="raised"), AttemptEnd(token="B")
    marked = await storage.request_cancel(task_id)
    for seen in (head, marked):
        assert not await storage.postpone(seen, due_at=later, sends=1)
    assert await storage.change(head, partial(renewing, token="A", due_at=later))
    assert await storage.change(head, partial(releasing, end=end, due_at=later, attempts=0))
    seen = await head_of(cancels, task_id)
    assert (seen.due_at, seen.turn.released, seen.turn.attempts) == (marked.due_at, end, 0)
    assert not await storage.change(head, partial(renewing, token="B", due_at=later))
    assert not await storage.change(head, partial(releasing, end=other, due_at=later))
    asks = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED))
    done = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_COMPLETED))
    for commit in (
        Commit(token="B", claims=True),
        Commit(entries=(asks,), token="B"),
        Commit(entries=(TurnOpened(request()),)),
        Commit(token="C", claims=True),
    ):
        seen = await storage.commit(seen, commit)
        assert (seen.due_at, seen.cancel) == (marked.due_at, marked.cancel)
        assert await storage.head(task_id) == seen
    seen = await storage.commit(seen, Commit(entries=(done,), token="C"))
    assert (seen.due_at, seen.cancel) == (None, marked.cancel)


@pytest.mark.parametrize("ends", [False, True])
async def test_twice(cancels: Cancels, monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> None:
    """A write whose answer was lost meets its own mark, also where the task has ended since."""
    task_id, table = await cancels.task(), cancels.storage.table
    write = table.write

    async def unanswered(*writes: Write, **options: bool) -> None:
        await write(*writes, **options)
        monkeypatch.setattr(table, "write", write)
        if ends:
            await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_CANCELED)
        await write(*writes, **options)

    monkeypatch.setattr(table, "write", unanswered)
    marked = await cancels.storage.request_cancel(task_id, by="ann")
    assert marked.cancel == CancelMark(at=cancels.clock.now_ms(), by="ann")


async def test_scopes_are_told_apart(cancels: Cancels) -> None:
    """All scopes of the cancelled task are set, in any number, and those of no other one."""
    task_id, other = await cancels.task(), await cancels.task()
    mine = [cancels.registry.on_cancel(task_id) for _ in range(2)]
    others = cancels.registry.on_cancel(other)
    assert not any(scope.is_set() for scope in mine)
    await cancels.registry.request_cancel(task_id)
    async with asyncio.timeout(PATIENCE_S):
        for scope in mine:
            await scope.wait()
            assert scope.is_set()
    assert not others.is_set()
    for scope in (*mine, others):
        await scope.release()


@pytest.mark.parametrize("by", ["release", "cleanup"])
async def test_nothing_runs_after_the_last_scope(cancels: Cancels, by: str) -> None:
    """Lambda freezes what is left in the background: nothing is. A later scope works again."""
    task_ids = [await cancels.task(), await cancels.task()]
    before = asyncio.all_tasks()
    for _ in range(2):
        scopes = [cancels.registry.on_cancel(task_id) for task_id in task_ids]
        await asyncio.sleep(0)
        for task_id, scope in zip(task_ids, scopes, strict=True):
            await (scope.release() if by == "release" else cancels.registry.cleanup(task_id))
        assert asyncio.all_tasks() == before
    async with cancels.registry.on_cancel(task_ids[0]) as scope, asyncio.timeout(PATIENCE_S):
        await cancels.registry.request_cancel(task_ids[0])
        await scope.wait()


async def test_one_poll_serves_many_scopes(clock: ManualClock) -> None:
    """150 watched tasks cost two requests a look, whatever their scopes are."""
    storage = memory_backends(Settings(), clock).storage
    registry, sizes, load = CancelRegistry(storage), list[int](), storage.table.load

    async def counted(keys: Iterable[Key], **options: Any) -> dict[Key, Item | None]:
        sizes.append(len(asked := [*keys]))
        return await load(asked, **options)

    storage.table.load = counted  # type: ignore[method-assign]
    views = [registry, registry.for_scope(new_scope())]
    scopes = [views[n % 2].on_cancel(f"task-{n}") for n in range(150)]
    while len(sizes) < 6:
        await clock.sleep(0)
    await asyncio.gather(*(scope.release() for scope in scopes))
    assert sorted(sizes[:6]) == [50, 50, 50, 100, 100, 100]


async def test_a_backend_failure_sets_no_scope(
    cancels: Cancels, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed look is logged, and polling goes on until the request is seen."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    with monkeypatch.context() as away:
        unavailable = AsyncMock(side_effect=UnavailableError("no answer"))
        away.setattr(cancels.storage.table, "load", unavailable)
        scope = cancels.registry.on_cancel(task_id)
        while not caplog.records:
            await cancels.clock.sleep(0)
        assert not scope.is_set()
    async with scope, asyncio.timeout(PATIENCE_S):
        await scope.wait()
    assert {getattr(record, "action", "") for record in caplog.records} == {"watch_failed"}


async def test_a_cancel_and_an_end_at_once(cancels: Cancels) -> None:
    """A cancel beside the task's end succeeds or raises TaskTerminalStateError; none is left."""
    for _ in range(10):
        task_id = await cancels.task()

        async def finish(task_id: str = task_id) -> None:
            await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_COMPLETED)
            await cancels.registry.cleanup(task_id)

        requesting = cancels.registry.request_cancel(task_id)
        requested, _ = await asyncio.gather(requesting, finish(), return_exceptions=True)
        assert requested is None or isinstance(requested, TaskTerminalStateError)
        assert not await cancels.registry.is_cancelled(task_id)
    cancels.clock.advance(TIMEOUT_S)
    assert await cancels.overdue() == []


async def head_of(cancels: Cancels, task_id: str) -> Head:
    """HEAD of a task that exists."""
    return present(await cancels.storage.head(task_id))

"""The CancelRegistry contract over every table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from a2a.types import TaskState, TaskStatus
from botocore.exceptions import EndpointConnectionError

from a2a_serverless.errors import TaskNotFoundError, TaskTerminalStateError, UnavailableError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Write
from a2a_serverless.tasks.entries import StatusChanged, TurnOpened
from a2a_serverless.tasks.head import TERMINAL, AttemptEnd, CancelMark, Head, state_name
from a2a_serverless.tasks.rules import Commit, Timing, releasing, renewing
from a2a_serverless.wiring import memory_backends
from a2a_serverless_tools.contract import CancelRegistry, Storage
from tests.support.clocks import ManualClock
from tests.support.databases import Database, moto_database, new_scope
from tests.support.memory import memory_storage
from tests.support.messages import message, request

PATIENCE_S = 10
TIMEOUT_S = 10
TIMING = Timing(cancel_s=TIMEOUT_S)


@dataclass(frozen=True, kw_only=True)
class Cancels:
    """A registry and the storage of its tasks, in a scope that no other test has."""

    registry: CancelRegistry
    storage: DurableStorage
    clock: ManualClock
    client: Any = None

    async def task(self) -> str:
        """A new task."""
        task = await Storage(self.storage).create_task("context", message())
        return str(task.id)

    async def overdue(self) -> list[str]:
        """Tasks of this scope that the sweeper would look at now."""
        found = await due_tasks(self.storage, self.clock.now_ms())
        return [item.task_id for item in found if item.scope == self.storage.scope]


@pytest.fixture
def cancels(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path
) -> Iterator[Cancels]:
    """The registry under test."""
    match request.param:
        case "memory":
            storage = memory_storage(scope=new_scope(), clock=clock, timing=TIMING)
            yield Cancels(registry=CancelRegistry(storage), storage=storage, clock=clock)
        case "file":
            with closing(SqliteTable(tmp_path / "table", INDEXES)) as table:
                storage = DurableStorage(table, scope=new_scope(), clock=clock, timing=TIMING)
                yield Cancels(registry=CancelRegistry(storage), storage=storage, clock=clock)
        case "moto":
            with moto_database() as moto:
                yield _on_table(moto, clock)
        case "dynamodb":
            yield _on_table(request.getfixturevalue("database"), clock)
        case other:
            pytest.fail(f"The fixture cancels knows no backend {other}.")


def _on_table(database: Database, clock: ManualClock) -> Cancels:
    storage = database.storage(clock=clock, timing=TIMING)
    registry = CancelRegistry(storage)
    return Cancels(registry=registry, storage=storage, clock=clock, client=database.client)


DYNAMODB = pytest.param("dynamodb", marks=pytest.mark.emulators)
everywhere = pytest.mark.parametrize("cancels", ["memory", "file", DYNAMODB], indirect=True)
on_dynamodb = pytest.mark.parametrize("cancels", ["moto", DYNAMODB], indirect=True)


# -- the request -----------------------------------------------------------------------------


@everywhere
async def test_a_request_is_seen(cancels: Cancels) -> None:
    """`is_cancelled` is False before a request and True after it."""
    task_id = await cancels.task()
    assert not await cancels.registry.is_cancelled(task_id)
    await cancels.registry.request_cancel(task_id)
    assert await cancels.registry.is_cancelled(task_id)


@everywhere
async def test_every_read_says_that_a_cancel_was_requested(cancels: Cancels) -> None:
    """HEAD says who asked and when, in a read from the beginning, in a later one, and in a look."""
    task_id = await cancels.task()
    storage, now_ms = cancels.storage, cancels.clock.now_ms()
    before = await storage.read(task_id)
    marked = await storage.request_cancel(task_id, by="ann")
    after = await storage.read(task_id)
    behind = await storage.read(task_id, after=1, incarnation=marked.incarnation)
    key = (storage.scope.digest, task_id)
    assert before is not None
    assert after is not None
    assert behind is not None
    assert before.head.cancel is None
    assert marked.cancel == CancelMark(at=now_ms, by="ann")
    assert (after.head, behind.head) == (marked, marked)
    assert await storage.look([key]) == {key: marked}
    assert after.records == before.records


@everywhere
async def test_a_task_is_not_canceled_by_the_request_of_an_earlier_one(cancels: Cancels) -> None:
    """The request of a task that has expired, and whose id was used again, cancels nothing."""
    await cancels.storage.open_task("context", request(), task_id="reused")
    await cancels.registry.request_cancel("reused")
    cancels.clock.advance(cancels.storage.timing.ttl_s + 1)
    opened = await cancels.storage.open_task("context", request(), task_id="reused")
    assert opened.created
    assert opened.head.cancel is None
    assert not await cancels.registry.is_cancelled("reused")


@everywhere
async def test_a_request_is_about_one_task_of_one_scope(cancels: Cancels) -> None:
    """A cancel affects neither another task nor a task with the same id in another scope."""
    task_id, other = await cancels.task(), await cancels.task()
    await cancels.registry.request_cancel(task_id)
    assert not await cancels.registry.is_cancelled(other)
    assert not await cancels.registry.for_scope(new_scope()).is_cancelled(task_id)


@everywhere
async def test_another_scopes_task_does_not_exist(cancels: Cancels) -> None:
    """A cancel from another scope is answered as one of an unknown task."""
    task_id = await cancels.task()
    with pytest.raises(TaskNotFoundError):
        await cancels.registry.for_scope(new_scope()).request_cancel(task_id)
    assert not await cancels.registry.is_cancelled(task_id)


@everywhere
@pytest.mark.parametrize("task_id", ["unknown", "", "no/id", "x" * 4000])
async def test_an_unknown_task_is_not_found(cancels: Cancels, task_id: str) -> None:
    """A cancel of an unknown or impossible id raises TaskNotFoundError."""
    with pytest.raises(TaskNotFoundError):
        await cancels.registry.request_cancel(task_id)
    assert not await cancels.registry.is_cancelled(task_id)


@everywhere
async def test_an_expired_task_is_not_found(cancels: Cancels) -> None:
    """A task is gone when its time is over, whatever is still stored."""
    task_id = await cancels.task()
    cancels.clock.advance(cancels.storage.timing.ttl_s + 1)
    with pytest.raises(TaskNotFoundError):
        await cancels.registry.request_cancel(task_id)


@everywhere
@pytest.mark.parametrize("state", sorted(TERMINAL), ids=state_name)
async def test_an_ended_task_takes_no_request(cancels: Cancels, state: TaskState) -> None:
    """Cancelling it raises TaskTerminalStateError; nothing is left to be overdue."""
    task_id = await cancels.task()
    await Storage(cancels.storage).update_task(task_id, state)
    with pytest.raises(TaskTerminalStateError):
        await cancels.registry.request_cancel(task_id)
    assert not await cancels.registry.is_cancelled(task_id)
    cancels.clock.advance(TIMEOUT_S)
    assert await cancels.overdue() == []


@everywhere
async def test_a_task_that_ended_under_a_request_refuses_a_repetition(cancels: Cancels) -> None:
    """A cancel of a task that was to be canceled, and has ended otherwise, does not succeed."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_COMPLETED)
    with pytest.raises(TaskTerminalStateError):
        await cancels.registry.request_cancel(task_id)


@everywhere
async def test_a_cleanup_leaves_the_request_in_place(cancels: Cancels) -> None:
    """An open task's mark and deadline stay until it ends, however often it is cleaned up."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    before = await cancels.storage.head(task_id)
    for _ in range(3):
        await cancels.registry.cleanup(task_id)
    assert await cancels.storage.head(task_id) == before
    assert await cancels.registry.is_cancelled(task_id)
    await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_CANCELED)
    assert not await cancels.registry.is_cancelled(task_id)


@everywhere
async def test_a_cleanup_without_a_request_does_nothing(cancels: Cancels) -> None:
    """A cleanup of a task that nobody asked to cancel, or of an unknown one, does nothing."""
    await cancels.registry.cleanup(await cancels.task())
    await cancels.registry.cleanup("unknown")


@everywhere
async def test_a_deleted_task_is_not_cancelled(cancels: Cancels) -> None:
    """Deleting a task ends its cancel."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    await delete_task(cancels.storage, task_id)
    await cancels.registry.cleanup(task_id)
    assert not await cancels.registry.is_cancelled(task_id)


# -- the deadline ----------------------------------------------------------------------------


@everywhere
async def test_a_cancel_is_overdue_from_its_deadline_on(cancels: Cancels) -> None:
    """A task is due at its cancel's deadline, not a millisecond before, until it ends."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    cancels.clock.advance(TIMEOUT_S - 0.001)
    assert await cancels.overdue() == []
    cancels.clock.advance(0.001)
    assert await cancels.overdue() == [task_id]
    await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_CANCELED)
    assert await cancels.overdue() == []


async def test_the_deadline_is_that_of_the_settings(clock: ManualClock) -> None:
    """A process that serves cancels for 3 seconds leaves them to the sweeper after 3 seconds."""
    settings = Settings().model_copy(update={"cancel_timeout_s": 3})
    storage = memory_backends(settings, clock).storage
    head = (await storage.open_task("context", request())).head
    marked = await storage.request_cancel(head.task_id)
    assert marked.due_at == clock.now_ms() + 3_000


@everywhere
async def test_a_repeated_request_keeps_the_first_one(cancels: Cancels) -> None:
    """A repeated cancel succeeds; who asked first stays on record, and so does the deadline."""
    task_id = await cancels.task()
    first = await cancels.storage.request_cancel(task_id, by="ann")
    cancels.clock.advance(TIMEOUT_S - 1)
    assert await cancels.storage.request_cancel(task_id, by="bob") == first
    cancels.clock.advance(1)
    assert await cancels.overdue() == [task_id]


@everywhere
async def test_a_paused_task_is_due_at_its_deadline(cancels: Cancels) -> None:
    """The cancel of a task without an open turn has its deadline, too, and loses it at its end."""
    task_id = await cancels.task()
    await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
    assert (await head_of(cancels, task_id)).due_at is None
    await cancels.registry.request_cancel(task_id)
    cancels.clock.advance(TIMEOUT_S)
    assert await cancels.overdue() == [task_id]
    await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_CANCELED)
    assert (await head_of(cancels, task_id)).due_at is None
    assert await cancels.overdue() == []


@everywhere
async def test_nothing_but_the_end_moves_the_deadline(cancels: Cancels) -> None:
    """A renewal, a release, a postponement, a claim, a pause and a follow-up leave it in place."""
    storage, task_id = cancels.storage, await cancels.task()
    head = await head_of(cancels, task_id)
    head = await storage.commit(head, Commit(token="A", claims=True))
    later = cancels.clock.now_ms() + 3_600_000
    end = AttemptEnd(token="A", reason="raised")
    marked = await storage.request_cancel(task_id)
    assert not await storage.postpone(head, due_at=later, sends=1)
    assert not await storage.postpone(marked, due_at=later, sends=1)
    assert await storage.change(head, partial(renewing, token="A", due_at=later))
    assert await storage.change(head, partial(releasing, end=end, due_at=later, attempts=0))
    seen = await head_of(cancels, task_id)
    assert (seen.due_at, seen.turn.released, seen.turn.attempts) == (marked.due_at, end, 0)
    assert not await storage.change(head, partial(renewing, token="B", due_at=later))
    assert not await storage.change(
        head, partial(releasing, end=AttemptEnd(token="B"), due_at=later)
    )
    for commit in (
        Commit(token="B", claims=True),
        Commit(entries=(status_entry(TaskState.TASK_STATE_INPUT_REQUIRED),), token="B"),
        Commit(entries=(TurnOpened(request()),)),
        Commit(token="C", claims=True),
    ):
        seen = await storage.commit(seen, commit)
        assert (seen.due_at, seen.cancel) == (marked.due_at, marked.cancel)
        assert await storage.head(task_id) == seen
    seen = await storage.commit(
        seen, Commit(entries=(status_entry(TaskState.TASK_STATE_COMPLETED),), token="C")
    )
    assert (seen.due_at, seen.cancel) == (None, marked.cancel)


@everywhere
@pytest.mark.parametrize("ends", [False, True])
async def test_a_request_whose_answer_was_lost_has_succeeded(
    cancels: Cancels, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """A repeated write meets its own mark, also where a worker has ended the task since."""
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


# -- scopes ----------------------------------------------------------------------------------


@everywhere
async def test_a_scope_sees_the_request(cancels: Cancels) -> None:
    """A scope is not set before the request; after it `wait` returns and `is_set` is True."""
    task_id = await cancels.task()
    async with cancels.registry.on_cancel(task_id) as scope:
        assert not scope.is_set()
        await cancels.registry.request_cancel(task_id)
        async with asyncio.timeout(PATIENCE_S):
            await scope.wait()
        assert scope.is_set()


@everywhere
async def test_a_scope_sees_an_earlier_request(cancels: Cancels) -> None:
    """A request that was made before the scope counts as well."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    async with cancels.registry.on_cancel(task_id) as scope, asyncio.timeout(PATIENCE_S):
        await scope.wait()


@everywhere
async def test_scopes_are_told_apart(cancels: Cancels) -> None:
    """All scopes of the cancelled task are set, in any number, and those of no other one."""
    task_id, other = await cancels.task(), await cancels.task()
    mine = [cancels.registry.on_cancel(task_id) for _ in range(2)]
    others = cancels.registry.on_cancel(other)
    await cancels.registry.request_cancel(task_id)
    async with asyncio.timeout(PATIENCE_S):
        for scope in mine:
            await scope.wait()
    assert not others.is_set()
    for scope in (*mine, others):
        await scope.release()


@everywhere
async def test_a_released_scope_leaves_the_request(cancels: Cancels) -> None:
    """Releasing ends the watch, not the cancel; it may be repeated."""
    task_id = await cancels.task()
    scope = cancels.registry.on_cancel(task_id)
    await cancels.registry.request_cancel(task_id)
    await scope.release()
    await scope.release()
    assert await cancels.registry.is_cancelled(task_id)


@everywhere
async def test_cleanup_with_a_live_scope(cancels: Cancels) -> None:
    """Cleanup does not raise when a scope is still held, and the scope can be released after it."""
    task_id = await cancels.task()
    scope = cancels.registry.on_cancel(task_id)
    await cancels.registry.cleanup(task_id)
    await scope.release()
    assert not scope.is_set()


@everywhere
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


@on_dynamodb
async def test_one_poll_serves_many_scopes(cancels: Cancels) -> None:
    """150 watched tasks cost two requests a look, whatever their scopes are."""
    calls = recorded(cancels.client, "BatchGetItem")
    views = [cancels.registry, cancels.registry.for_scope(new_scope())]
    scopes = [views[n % 2].on_cancel(f"task-{n}") for n in range(150)]
    while len(calls) < 6:
        await cancels.clock.sleep(0)
    await asyncio.gather(*(scope.release() for scope in scopes))
    sizes = [len(each["Keys"]) for call in calls for each in call["RequestItems"].values()]
    assert sorted(sizes[:6]) == [50, 50, 50, 100, 100, 100]


@on_dynamodb
async def test_a_backend_failure_sets_no_scope(
    cancels: Cancels, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed look is logged, and polling goes on until the request is seen."""
    task_id = await cancels.task()
    broken = {"BatchGetItem"}

    def refuse(model: Any, **_: Any) -> None:
        if model.name in broken:
            raise EndpointConnectionError(endpoint_url="x")

    cancels.client.meta.events.register("before-call.dynamodb.*", refuse)
    async with cancels.registry.on_cancel(task_id) as scope, asyncio.timeout(PATIENCE_S):
        await cancels.registry.request_cancel(task_id)
        while not caplog.records:
            await cancels.clock.sleep(0)
        assert not scope.is_set()
        broken.add("GetItem")
        with pytest.raises(UnavailableError):
            await cancels.registry.is_cancelled(task_id)
        broken.clear()
        await scope.wait()
    assert {getattr(record, "action", "") for record in caplog.records} == {"watch_failed"}


# -- races -----------------------------------------------------------------------------------


@everywhere
async def test_a_cancel_and_an_end_at_once(cancels: Cancels) -> None:
    """A cancel beside the task's end succeeds or raises TaskTerminalStateError; none is left."""
    for _ in range(10):
        task_id = await cancels.task()

        async def finish(task_id: str = task_id) -> None:
            await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_COMPLETED)
            await cancels.registry.cleanup(task_id)

        requested, _ = await asyncio.gather(
            cancels.registry.request_cancel(task_id), finish(), return_exceptions=True
        )
        assert requested is None or isinstance(requested, TaskTerminalStateError)
        assert not await cancels.registry.is_cancelled(task_id)
    cancels.clock.advance(TIMEOUT_S)
    assert await cancels.overdue() == []


@everywhere
async def test_many_requests_at_once_are_one(cancels: Cancels) -> None:
    """Every client that asks is answered alike, also while the agent commits."""
    task_id = await cancels.task()

    async def work() -> None:
        for _ in range(5):
            await Storage(cancels.storage).update_task(task_id, messages=[message()])

    requests = [cancels.registry.request_cancel(task_id) for _ in range(8)]
    assert (await asyncio.gather(*requests, work()))[:8] == [None] * 8
    assert await cancels.registry.is_cancelled(task_id)


async def head_of(cancels: Cancels, task_id: str) -> Head:
    """HEAD of a task that exists."""
    head = await cancels.storage.head(task_id)
    assert head is not None
    return head


def status_entry(state: TaskState) -> StatusChanged:
    """The entry that moves a task to a state."""
    return StatusChanged(TaskStatus(state=state))


def recorded(client: Any, operation: str) -> list[dict[str, Any]]:
    """The parameters of the calls of an operation, from now on."""
    calls: list[dict[str, Any]] = []
    client.meta.events.register(
        f"provide-client-params.dynamodb.{operation}", lambda params, **_: calls.append(params)
    )
    return calls

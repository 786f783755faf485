"""The CancelRegistry contract over every table."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from a2a.types import TaskState
from botocore.exceptions import EndpointConnectionError

from a2a_serverless.errors import TaskNotFoundError, TaskTerminalStateError, UnavailableError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.log import OverdueCancel
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.tasks.head import TERMINAL, state_name
from a2a_serverless.tasks.rules import Timing
from a2a_serverless.wiring import memory_backends
from a2a_serverless_tools.contract.cancels import CancelRegistry
from a2a_serverless_tools.contract.storage import Storage
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
        """Tasks of this scope whose cancel is overdue."""
        found = await self.registry.overdue(self.clock.now_ms())
        return [item.task_id for item in found if item.scope == self.storage.scope]

    async def flag(self, task_id: str) -> dict[str, Any] | None:
        """The stored flag (DynamoDB)."""
        key = {"PK": {"S": f"TASK#{self.storage.scope.digest}#{task_id}"}, "SK": {"S": "CANCEL"}}
        item: dict[str, Any] | None = self.client.get_item(TableName="tasks", Key=key).get("Item")
        return item


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


# -- the flag --------------------------------------------------------------------------------


@everywhere
async def test_a_request_raises_the_flag(cancels: Cancels) -> None:
    """`is_cancelled` is False before a request and True after it."""
    task_id = await cancels.task()
    assert not await cancels.registry.is_cancelled(task_id)
    await cancels.registry.request_cancel(task_id)
    assert await cancels.registry.is_cancelled(task_id)


@everywhere
async def test_a_log_from_its_beginning_says_that_a_cancel_was_requested(cancels: Cancels) -> None:
    """A worker reads log, HEAD and flag at once; a follower's read knows it from HEAD alone."""
    task_id = await cancels.task()
    storage = cancels.storage
    before = await storage.read(task_id)
    await cancels.registry.request_cancel(task_id)
    after, behind = await storage.read(task_id), await storage.read(task_id, after=1)
    assert before is not None
    assert after is not None
    assert behind is not None
    assert (before.flagged, before.is_cancelled) == (None, False)
    assert (after.flagged, after.is_cancelled) == (after.head.incarnation, True)
    assert (behind.flagged, behind.is_cancelled) == (None, True)
    assert after.records == before.records


@everywhere
async def test_a_log_does_not_take_an_earlier_tasks_flag_for_its_own(cancels: Cancels) -> None:
    """The flag of a task that has expired, and whose id was used again, cancels nothing."""
    await cancels.storage.open_task("context", request(), task_id="reused")
    await cancels.registry.request_cancel("reused")
    cancels.clock.advance(cancels.storage.timing.ttl_s + 1)
    opened = await cancels.storage.open_task("context", request(), task_id="reused")
    log = await cancels.storage.read("reused")
    assert log is not None
    assert opened.created
    assert log.flagged != opened.head.incarnation
    assert not log.is_cancelled


@everywhere
async def test_a_flag_is_about_one_task_of_one_scope(cancels: Cancels) -> None:
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
    """A cancel of an unknown or impossible id raises TaskNotFoundError and leaves no flag."""
    with pytest.raises(TaskNotFoundError):
        await cancels.registry.request_cancel(task_id)
    assert not await cancels.registry.is_cancelled(task_id)


@everywhere
async def test_a_cleanup_spares_the_flag_of_a_later_task(cancels: Cancels) -> None:
    """A cleanup for an earlier incarnation leaves the flag of a later task with the same id."""
    opened = await cancels.storage.open_task("context", request(), task_id="reused")
    await cancels.storage.delete_task("reused")
    await cancels.storage.open_task("context", request(), task_id="reused")
    await cancels.registry.request_cancel("reused")
    await cancels.registry.cleanup("reused", incarnation=opened.head.incarnation)
    assert await cancels.registry.is_cancelled("reused")
    await cancels.registry.cleanup("reused")
    assert not await cancels.registry.is_cancelled("reused")


@everywhere
async def test_an_overdue_cancel_names_its_incarnation(cancels: Cancels) -> None:
    """An overdue cancel names its incarnation, so that no successor with the id is canceled."""
    opened = await cancels.storage.open_task("context", request())
    await cancels.registry.request_cancel(opened.head.task_id)
    cancels.clock.advance(TIMEOUT_S)
    found = await cancels.registry.overdue(cancels.clock.now_ms())
    assert {f.incarnation for f in found if f.scope == cancels.storage.scope} == {
        opened.head.incarnation
    }


@everywhere
async def test_an_expired_task_is_not_found(cancels: Cancels) -> None:
    """A task is gone when its time is over, whatever is still stored."""
    task_id = await cancels.task()
    cancels.clock.advance(cancels.storage.timing.ttl_s + 1)
    with pytest.raises(TaskNotFoundError):
        await cancels.registry.request_cancel(task_id)


@everywhere
@pytest.mark.parametrize("state", sorted(TERMINAL), ids=state_name)
async def test_an_ended_task_takes_no_flag(cancels: Cancels, state: TaskState) -> None:
    """Cancelling it raises TaskTerminalStateError; nothing is left to be overdue."""
    task_id = await cancels.task()
    await Storage(cancels.storage).update_task(task_id, state)
    with pytest.raises(TaskTerminalStateError):
        await cancels.registry.request_cancel(task_id)
    assert not await cancels.registry.is_cancelled(task_id)
    cancels.clock.advance(TIMEOUT_S)
    assert await cancels.overdue() == []


@everywhere
async def test_a_task_that_ended_under_its_flag_refuses_a_repetition(cancels: Cancels) -> None:
    """The flag of a worker that died before its cleanup does not make the cancel succeed."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    await Storage(cancels.storage).update_task(task_id, TaskState.TASK_STATE_COMPLETED)
    with pytest.raises(TaskTerminalStateError):
        await cancels.registry.request_cancel(task_id)


@everywhere
async def test_cleanup_removes_the_flag(cancels: Cancels) -> None:
    """A cleanup removes the flag of its own task alone, and may be repeated."""
    task_id, other = await cancels.task(), await cancels.task()
    await cancels.registry.request_cancel(task_id)
    await cancels.registry.request_cancel(other)
    for _ in range(3):
        await cancels.registry.cleanup(task_id)
    assert not await cancels.registry.is_cancelled(task_id)
    assert await cancels.registry.is_cancelled(other)
    cancels.clock.advance(TIMEOUT_S)
    assert await cancels.overdue() == [other]


@everywhere
async def test_cleanup_without_a_flag_does_nothing(cancels: Cancels) -> None:
    """A cleanup of a task without a flag, or of an unknown one, does nothing."""
    await cancels.registry.cleanup(await cancels.task())
    await cancels.registry.cleanup("unknown")


@everywhere
async def test_a_deleted_task_is_not_cancelled(cancels: Cancels) -> None:
    """Deleting a task ends its cancel."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    await cancels.storage.delete_task(task_id)
    await cancels.registry.cleanup(task_id)
    assert not await cancels.registry.is_cancelled(task_id)


# -- the deadline ----------------------------------------------------------------------------


@everywhere
async def test_a_flag_is_overdue_from_its_deadline_on(cancels: Cancels) -> None:
    """A cancel is overdue from its deadline on, not a millisecond before, until its cleanup."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    cancels.clock.advance(TIMEOUT_S - 0.001)
    assert await cancels.overdue() == []
    cancels.clock.advance(0.001)
    assert await cancels.overdue() == [task_id]
    await cancels.registry.cleanup(task_id)
    assert await cancels.overdue() == []


async def test_the_deadline_is_that_of_the_settings(clock: ManualClock) -> None:
    """A process that serves cancels for 3 seconds leaves them to the sweeper after 3 seconds."""
    settings = Settings().model_copy(update={"cancel_timeout_s": 3})
    storage = memory_backends(settings, clock).storage
    head = (await storage.open_task("context", request())).head
    await storage.request_cancel(head.task_id)
    clock.advance(2.999)
    assert await storage.overdue_cancels(clock.now_ms()) == []
    clock.advance(0.001)
    assert [flag.task_id for flag in await storage.overdue_cancels(clock.now_ms())] == [
        head.task_id
    ]


@everywhere
async def test_a_repeated_request_keeps_the_first_deadline(cancels: Cancels) -> None:
    """A repeated cancel keeps the deadline of the first one."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    cancels.clock.advance(TIMEOUT_S - 1)
    await cancels.registry.request_cancel(task_id)
    cancels.clock.advance(1)
    assert await cancels.overdue() == [task_id]


@everywhere
async def test_overdue_cancels_of_all_scopes_are_found(cancels: Cancels) -> None:
    """The sweeper sees every scope; the longest overdue comes first, and the limit holds."""
    scopes = [new_scope() for _ in range(3)]
    owners = []
    for scope in scopes:
        head = (await cancels.storage.for_scope(scope).open_task("context", request())).head
        await cancels.registry.for_scope(scope).request_cancel(head.task_id)
        owners.append(
            OverdueCancel(
                scope=scope,
                task_id=head.task_id,
                due_at=cancels.clock.now_ms() + int(TIMEOUT_S * 1000),
                incarnation=head.incarnation,
            )
        )
        cancels.clock.advance(1)
    cancels.clock.advance(TIMEOUT_S)
    assert await cancels.registry.overdue(cancels.clock.now_ms()) == owners
    assert await cancels.registry.overdue(cancels.clock.now_ms(), limit=2) == owners[:2]
    behind = await cancels.storage.overdue_cancels(cancels.clock.now_ms(), limit=1, after=owners[0])
    assert behind == owners[1:2]
    for owner in owners:
        await cancels.registry.for_scope(owner.scope).cleanup(owner.task_id)


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
    """A flag that was raised before the scope was made counts as well."""
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
async def test_a_released_scope_leaves_the_flag(cancels: Cancels) -> None:
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
    """150 watched tasks cost three requests a look, whatever their scopes are."""
    calls = recorded(cancels.client, "BatchGetItem")
    views = [cancels.registry, cancels.registry.for_scope(new_scope())]
    scopes = [views[n % 2].on_cancel(f"task-{n}") for n in range(150)]
    while len(calls) < 6:
        await cancels.clock.sleep(0)
    for scope in scopes:
        await scope.release()
    sizes = [len(call["RequestItems"]["tasks"]["Keys"]) for call in calls]
    assert sizes[:6] == [100] * 6  # HEAD and flag of 50 tasks


@on_dynamodb
async def test_a_backend_failure_sets_no_scope(
    cancels: Cancels, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed look at the flags is logged, and polling goes on until the flag is seen."""
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


# -- incarnations ----------------------------------------------------------------------------


@on_dynamodb
async def test_a_flag_of_an_earlier_incarnation_does_not_count(cancels: Cancels) -> None:
    """A task whose id was used before is not cancelled by what was left of the other one."""
    task_id = await stale_flag(cancels)
    assert not await cancels.registry.is_cancelled(task_id)
    async with cancels.registry.on_cancel(task_id) as scope:
        looks = recorded(cancels.client, "BatchGetItem")
        while len(looks) < 4:
            await cancels.clock.sleep(0)
        assert not scope.is_set()


@on_dynamodb
async def test_a_request_replaces_the_flag_of_an_earlier_incarnation(cancels: Cancels) -> None:
    """A cancel that replaces the flag of an earlier incarnation has a deadline of its own."""
    task_id = await stale_flag(cancels)
    cancels.clock.advance(TIMEOUT_S / 2)
    await cancels.registry.request_cancel(task_id)
    assert await cancels.registry.is_cancelled(task_id)
    cancels.clock.advance(TIMEOUT_S / 2)
    assert await cancels.overdue() == []
    cancels.clock.advance(TIMEOUT_S / 2)
    assert await cancels.overdue() == [task_id]


async def stale_flag(cancels: Cancels) -> str:
    """A task with the flag of an earlier one of the same id, as a crashed deletion leaves it."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    flag = await cancels.flag(task_id)
    await cancels.storage.delete_task(task_id)
    cancels.client.put_item(TableName="tasks", Item=flag)
    opened = await cancels.storage.open_task("context", request(), task_id=task_id)
    assert opened.created
    return task_id


@on_dynamodb
async def test_a_flag_expires_with_its_task(cancels: Cancels) -> None:
    """A flag expires at the same time as its task and names its incarnation."""
    task_id = await cancels.task()
    await cancels.registry.request_cancel(task_id)
    flag, head = await cancels.flag(task_id), await cancels.storage.head(task_id)
    assert flag is not None
    assert head is not None
    assert int(flag["expires_at"]["N"]) * 1000 == head.expires_at
    assert flag["incarnation"]["S"] == head.incarnation


# -- races -----------------------------------------------------------------------------------


@everywhere
async def test_a_cancel_and_an_end_at_once(cancels: Cancels) -> None:
    """A cancel beside the task's end succeeds or raises TaskTerminalStateError; no flag is left."""
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
async def test_many_requests_at_once_raise_one_flag(cancels: Cancels) -> None:
    """Every client that asks is answered alike, also while the agent commits."""
    task_id = await cancels.task()

    async def work() -> None:
        for _ in range(5):
            await Storage(cancels.storage).update_task(task_id, messages=[message()])

    requests = [cancels.registry.request_cancel(task_id) for _ in range(8)]
    assert (await asyncio.gather(*requests, work()))[:8] == [None] * 8
    assert await cancels.registry.is_cancelled(task_id)


def recorded(client: Any, operation: str) -> list[dict[str, Any]]:
    """The parameters of the calls of an operation, from now on."""
    calls: list[dict[str, Any]] = []
    client.meta.events.register(
        f"provide-client-params.dynamodb.{operation}", lambda params, **_: calls.append(params)
    )
    return calls

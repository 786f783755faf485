"""How many turns of a caller sleep, on every table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from a2a.types import TaskState, TaskStatus

from a2a_serverless.storage.allowance import Sleepers
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DeletionBarriers, DurableStorage
from a2a_serverless.storage.endings import cancel_task
from a2a_serverless.tasks.entries import Recorded, StatusChanged, StepId
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import Commit
from tests.support.clocks import ManualClock
from tests.support.messages import request


async def asleep(storage: DurableStorage) -> Head:
    head = (await storage.open_task("context", request())).head
    head = await storage.commit(head, Commit(token="one", claims=True))
    until = storage.clock.now_ms() + 3_600_000
    end = AttemptEnd(token="one", reason="asleep", at=storage.clock.now_ms(), until=until)
    record = Recorded(StepId("sleep", "", 1), "json", b"1")
    return await storage.commit(head, Commit(entries=(record,), token="one", parks=end))


async def woken(storage: DurableStorage, head: Head) -> None:
    assert await storage.requeue(head)


async def claimed(storage: DurableStorage, head: Head) -> None:
    await storage.commit(head, Commit(token="two", claims=True))


async def ended(storage: DurableStorage, head: Head) -> None:
    failed = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_FAILED))
    await storage.commit(head, Commit(entries=(failed,)))


async def canceled(storage: DurableStorage, head: Head) -> None:
    await storage.request_cancel(head.task_id)
    assert await cancel_task(storage, head)


async def deleted(storage: DurableStorage, head: Head) -> None:
    await delete_task(storage, head.task_id)


async def expired(storage: DurableStorage, head: Head) -> None:
    assert isinstance(storage.clock, ManualClock)
    storage.clock.advance((head.expires_at - storage.clock.now_ms()) / 1000)


@pytest.mark.parametrize("leaves", [woken, claimed, ended, canceled, deleted, expired])
async def test_a_turn_counts_while_it_sleeps(
    storage: DurableStorage, clock: ManualClock, leaves: object
) -> None:
    """In all tenants of its caller, and no longer than that, whatever ends it."""
    storage = storage.for_scope(Scope.of("", leaves.__name__))  # type: ignore[attr-defined]
    sleepers = Sleepers(storage, 10)
    caller = storage.scope.principal
    head = await asleep(storage)
    assert await sleepers.count(caller) == 1
    await leaves(storage, head)  # type: ignore[operator]
    assert await sleepers.count(caller) == 0
    elsewhere = storage.for_scope(Scope.of("acme", leaves.__name__))  # type: ignore[attr-defined]
    await asleep(elsewhere)
    assert await sleepers.count(caller) == 1
    assert await sleepers.count(Scope.of("", "nobody").principal) == 0


async def test_from_half_of_them_on_a_caller_is_counted(
    storage: DurableStorage, clock: ManualClock
) -> None:
    """Workers say so, once a minute at most; it is seen until the last of them has expired."""
    storage = storage.for_scope(Scope.of("", "many"))
    caller, sleepers = storage.scope.principal, Sleepers(storage, 4)
    barriers = DeletionBarriers(storage.table, clock)
    seen = []
    for _ in range(3):
        await asleep(storage)
        await sleepers.note(caller)
        clock.advance(3)
        assert await barriers.until(storage.scope.digest, "context") == 0
        seen.append(caller in barriers.sleepers)
    assert seen == [False, True, True]
    head = await asleep(storage)  # the last of which this is noted; the others expire before
    clock.advance(60)
    await sleepers.note(caller)
    clock.advance((head.expires_at - clock.now_ms()) / 1000)
    await barriers.until(storage.scope.digest, "context")
    assert caller in barriers.sleepers
    clock.advance(61)
    await barriers.until(storage.scope.digest, "context")
    assert caller not in barriers.sleepers
    unbounded = replace(storage, scope=Scope.of("", "any"))
    await asleep(unbounded)
    await Sleepers(storage, 0).note(unbounded.scope.principal)
    clock.advance(3)
    await barriers.until(storage.scope.digest, "context")
    assert unbounded.scope.principal not in barriers.sleepers

"""Turns that stand in the table alone until they are woken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest

from a2a_serverless.storage import layout, shares
from a2a_serverless.storage.allowance import Sleepers
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DeletionBarriers, DurableStorage
from a2a_serverless.storage.endings import cancel_task
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.table import Item, Range
from a2a_serverless.tasks.attempts import may_park
from a2a_serverless.tasks.entries import Recorded, StepId
from a2a_serverless.tasks.head import AttemptEnd, Head, OperationParams, Reason, Uncounted
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.rules import PARKED_MS, Backoff, Commit, releasing
from tests.support.clocks import ManualClock
from tests.support.commits import COMPLETED, FAILED, claim, newest, opened, to
from tests.support.present import present

DONE = to(COMPLETED, token="one", claims=True)


async def left(storage: DurableStorage, reason: Reason = "share", at: int | None = None) -> Head:
    head = await opened(storage)
    assert await storage.park(head, reason, at=at)
    return await newest(storage, head)


async def in_line(storage: DurableStorage, key: str) -> list[Item]:
    found = await storage.table.all(Range(partition=key, index=layout.BY_LINE))
    return [item for item in found if layout.principal_in(item) == storage.scope.principal]


async def waiting(storage: DurableStorage) -> list[Item]:
    return await in_line(storage, layout.waiting_key(storage.scope.principal))


async def out(storage: DurableStorage) -> list[Item]:
    keys = (layout.WOKEN, layout.share_key(storage.scope.principal))
    return [item for key in keys for item in await in_line(storage, key)]


async def test_a_left_turn_waits_in_the_table(storage: DurableStorage, clock: ManualClock) -> None:
    """In its caller's line, or for its conversation in none; the sweeper looks at it in an hour."""
    second, first = await left(storage, at=20), await left(storage, at=10)
    in_order = [item["PK"].rpartition("#")[2] for item in await waiting(storage)]
    assert in_order == [first.task_id, second.task_id]
    assert (first.turn.parked, first.turn.waits_since, first.turn.has_share) == ("share", 10, False)
    assert first.due_at == clock.now_ms() + PARKED_MS["share"]
    due = {one.task_id for one in await due_tasks(storage, clock.now_ms() + 61_000)}
    assert first.task_id not in due
    requeued = present(await storage.requeue(await left(storage, "conversation")))
    assert (requeued.turn.has_share, requeued.turn.sends) == (False, 1)
    assert (len(await waiting(storage)), await out(storage)) == (2, [])


async def test_a_woken_turn_has_a_share_until_it_ends(storage: DurableStorage) -> None:
    """It leaves the line, counts as out while it is on the queue and runs, and not afterwards."""
    requeued = present(await storage.requeue(await left(storage)))
    assert requeued == await newest(storage, requeued)
    assert (requeued.turn.parked, requeued.turn.has_share, requeued.turn.sends) == ("", True, 1)
    assert (len(await waiting(storage)), len(await out(storage))) == (0, 1)
    claimed = await storage.commit(requeued, claim())
    assert claimed.turn.has_share
    assert len(await out(storage)) == 1
    ended = await storage.commit(claimed, DONE)
    assert not ended.turn.has_share
    assert await out(storage) == []


async def test_a_woken_turn_may_be_left_again(storage: DurableStorage) -> None:
    """It stands where it stood, or waits for its conversation; its next copy is another one."""
    first = await left(storage)
    requeued = present(await storage.requeue(first))
    again = present(await storage.park(requeued, "share", at=first.turn.waits_since))
    assert again == await newest(storage, again)
    was, turn = first.turn.waits_since, again.turn
    assert (turn.parked, turn.waits_since, turn.has_share) == ("share", was, False)
    assert (len(await waiting(storage)), await out(storage)) == (1, [])
    copy = present(await storage.requeue(again))
    assert (copy.turn.sends, copy.turn.resends) == (2, 0)
    await storage.commit(copy, claim())
    assert await storage.park(copy, "share") is None
    other = present(await storage.requeue(await left(storage)))
    assert (await newest(storage, present(await storage.park(other, "conversation")))).turn.parked
    assert (await waiting(storage), len(await out(storage))) == ([], 1)


@pytest.mark.parametrize("by", ["its attempt", "another process"])
async def test_a_turn_that_was_left_is_not_given_back(storage: DurableStorage, by: str) -> None:
    """An attempt that has not heard of it, as an answer was lost, changes nothing."""
    head = await storage.commit(await opened(storage), claim())
    if by == "its attempt":
        asleep = AttemptEnd(token="one", reason="asleep", at=1, until=60_000)
        await storage.commit(head, Commit(token="one", parks=asleep))
    else:
        assert await storage.park(head, "share", at=1)
    before = await newest(storage, head)
    end = AttemptEnd(token="one", reason="UnavailableError", at=2, until=3)
    assert not await storage.change(head, partial(releasing, end=end, due_at=4))
    assert await newest(storage, head) == before
    assert before.turn.parked


@pytest.mark.parametrize("change", ["claimed", "canceled", "left", "deleted", "ended"])
@pytest.mark.parametrize("wakes", [False, True])
async def test_another_turn_is_left(storage: DurableStorage, change: str, *, wakes: bool) -> None:
    """What moved on stays as it is; what has ended is in no line; a cancel keeps its deadline."""
    seen = await (left(storage) if wakes else opened(storage))
    match change:
        case "claimed":
            await storage.commit(seen, claim())
        case "ended":
            await storage.commit(seen, DONE)
        case "canceled":
            await storage.request_cancel(seen.task_id)
        case "left":
            assert await (storage.requeue(seen) if wakes else storage.park(seen, "conversation"))
        case _:
            await delete_task(storage, seen.task_id)
    before = await storage.head(seen.task_id)
    assert not await (storage.requeue(seen) if wakes else storage.park(seen, "share"))
    assert await storage.head(seen.task_id) == before
    if change != "canceled":
        assert await waiting(storage) == []
    elif before:  # nor by one who knows of the cancel
        assert not await (storage.requeue(before) if wakes else storage.park(before, "share"))


@pytest.mark.parametrize("way", ["commit", "note"])
async def test_a_turn_that_was_given_back_has_no_share(storage: DurableStorage, way: str) -> None:
    """Nothing works on it. When it comes back it may be left, and be woken once more."""
    requeued = present(await storage.requeue(await left(storage)))
    claimed = await storage.commit(requeued, claim())
    end = AttemptEnd(token="one", reason="RetryLater", until=storage.clock.now_ms() + 600_000)
    if way == "commit":
        waits = Backoff(end=end, uncounted=Uncounted(faults=1))
        await storage.commit(claimed, Commit(token="one", backoff=waits))
    else:
        assert await storage.change(claimed, partial(releasing, end=end))
    given_back = await newest(storage, claimed)
    assert (given_back.turn.has_share, await out(storage)) == (False, [])
    assert may_park(given_back, OperationParams.of(given_back, given_back.turn.number, 1))
    assert await storage.park(given_back, "share")
    again = present(await storage.requeue(await newest(storage, claimed)))
    assert [item["line_key"] for item in await out(storage)] == [layout.WOKEN]
    of_scope = [head for head in await shares.requeued(storage) if head.scope == again.scope]
    assert [head.task_id for head in of_scope] == [again.task_id]


async def asleep(storage: DurableStorage) -> Head:
    head = await storage.commit(await opened(storage), claim())
    until = storage.clock.now_ms() + 3_600_000
    end = AttemptEnd(token="one", reason="asleep", at=storage.clock.now_ms(), until=until)
    record = Recorded(StepId("sleep", "", 1), "json", b"1")
    return await storage.commit(head, Commit(entries=(record,), token="one", parks=end))


async def canceled(storage: DurableStorage, head: Head) -> None:
    await storage.request_cancel(head.task_id)
    assert await cancel_task(storage, head)


async def expired(storage: DurableStorage, head: Head) -> None:
    assert isinstance(storage.clock, ManualClock)
    storage.clock.advance((head.expires_at - storage.clock.now_ms()) / 1000)


LEAVES: dict[str, Callable[[DurableStorage, Head], Awaitable[object]]] = {
    "woken": DurableStorage.requeue,
    "claimed": lambda storage, head: storage.commit(head, claim("two")),
    "ended": lambda storage, head: storage.commit(head, to(FAILED)),
    "canceled": canceled,
    "deleted": lambda storage, head: delete_task(storage, head.task_id),
    "expired": expired,
}


@pytest.mark.parametrize("leaves", LEAVES)
async def test_a_turn_counts_while_it_sleeps(storage: DurableStorage, leaves: str) -> None:
    """In all tenants of its caller, and no longer than that, whatever ends it."""
    storage = storage.for_scope(Scope.of("", leaves))
    sleepers, caller = Sleepers(storage, 10), storage.scope.principal
    head = await asleep(storage)
    assert await sleepers.count(caller) == 1
    await LEAVES[leaves](storage, head)
    assert await sleepers.count(caller) == 0
    await asleep(storage.for_scope(Scope.of("acme", leaves)))
    assert await sleepers.count(caller) == 1
    assert await sleepers.count(Scope.of("", "nobody").principal) == 0


async def test_from_half_on_one_is_counted(storage: DurableStorage, clock: ManualClock) -> None:
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

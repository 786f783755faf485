"""The index of what needs attention, beside a look at every task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest
from a2a.types import TaskPushNotificationConfig

from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import gave_up, never_started
from a2a_serverless.storage.layout import WAIT_KINDS
from a2a_serverless.tasks.entries import Recorded, StepId
from a2a_serverless.tasks.head import AttemptEnd, Failure, Head
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless_tools.operate.finding import Named, tasks_in_trouble, waiting_tasks
from tests.support.clocks import ManualClock
from tests.support.commits import FAILED, claim, newest, opened, to
from tests.support.present import present

Seen = tuple[str, str, str]
"""A task, why it is in the index, and the reason of that."""


def ended(storage: DurableStorage, head: Head, reason: str, wait_ms: int = 0) -> AttemptEnd:
    """The end of an attempt, which may wait."""
    now, token = storage.clock.now_ms(), head.turn.token or ""
    return AttemptEnd(token=token, reason=reason, at=now, until=now + wait_ms if wait_ms else 0)


async def sleeps(storage: DurableStorage, head: Head) -> None:
    record = Recorded(StepId("plan", head.turn.token or "", 1), "json", b"1")
    parks = ended(storage, head, "asleep", 60_000)
    await storage.commit(head, Commit(entries=(record,), token=head.turn.token, parks=parks))


async def given_back(storage: DurableStorage, head: Head, wait_ms: int) -> None:
    end = ended(storage, head, "Busy", wait_ms)
    due_at = storage.clock.now_ms() + 1
    assert await storage.change(head, partial(releasing, end=end, due_at=due_at))


async def failed(storage: DurableStorage, head: Head) -> None:
    end = replace(ended(storage, head, "Value#Error"), correlation_id="0123")
    await storage.commit(head, to(FAILED, token=head.turn.token, failed=end))


async def given_up(storage: DurableStorage, head: Head) -> None:
    await storage.commit(head, gave_up(head, "4567"))


async def sent_again(storage: DurableStorage, head: Head) -> None:
    due_at = storage.clock.now_ms() + 1
    assert await storage.postpone(head, due_at=due_at, sends=head.turn.sends + 1)


Act = Callable[[DurableStorage, Head], Awaitable[object]]
LIFE: list[Act] = [
    *(sent_again, lambda s, head: s.park(head, "share"), DurableStorage.requeue),
    *(lambda s, head: s.park(head, "conversation"), DurableStorage.requeue, sent_again),
    *(lambda s, head: s.commit(head, claim()), sleeps, DurableStorage.requeue),
    *(lambda s, head: s.commit(head, claim("two")), partial(given_back, wait_ms=60_000)),
    lambda s, head: s.commit(head, claim("three")),
]
"""What becomes of a task, one write after the other, until it fails."""


async def by_heads(storage: DurableStorage, tasks: list[Head]) -> list[Seen]:
    """What HEAD of each task says that it is in the index for."""
    heads = [await newest(storage, one) for one in tasks]
    return sorted((h.task_id, h.attention.kind, h.attention.reason) for h in heads if h.attention)


async def by_index(storage: DurableStorage, limit: int) -> list[Seen]:
    """What the index says, page by page."""
    found: list[Named] = []
    for kind in (None, *WAIT_KINDS):
        after, is_first = "", True
        while after or is_first:
            if kind is None:
                page = await tasks_in_trouble(storage, after=after, limit=limit)
            else:
                page = await waiting_tasks(storage, kind, after=after, limit=limit)
            assert len(page.found) <= limit
            found += page.found
            after, is_first = page.after, False
        if kind is None:
            times = [one.at for one in found]
            assert times == sorted(times, reverse=True)
    own = [one for one in found if one.scope == storage.scope.digest]
    return sorted((o.task_id, o.why.kind, o.why.reason) for o in own if o.why is not None)


@pytest.mark.parametrize("ends", [failed, given_up])
async def test_the_index_is_right(storage: DurableStorage, clock: ManualClock, ends: Act) -> None:
    """After each write lists are those of a look at all tasks; untold webhooks are among them."""
    heads, seen, life = list[Head](), set[str](), [*LIFE, ends]
    for number in range(len(life) + 2):
        if number < 3:
            heads.append(await opened(storage))
        for begun, head in enumerate(heads):
            if 0 <= number - begun < len(life):
                await life[number - begun](storage, await newest(storage, head))
                clock.advance(1)
                found = await by_index(storage, limit=1 + number % 4)
                assert found == await by_heads(storage, heads)
                seen |= {kind for _, kind, _ in found}
    assert len(seen) >= 4
    task_id = heads[0].task_id
    hook = TaskPushNotificationConfig(task_id=task_id, id="hook", url="https://e.example/")
    push = await storage.webhooks.put(hook)
    lost = push.settled((push.version, 0), "status 503", clock.now_ms(), is_told=False)
    stored = present(await storage.webhooks.move(push, lost))
    assert (task_id, "untold", "status 503") in await by_index(storage, 4)
    again = stored.redelivered([]).woken(clock.now_ms())
    assert await storage.webhooks.move(stored, again)
    await delete_task(storage, heads[1].task_id)
    assert {one for one, *_ in await by_index(storage, 4)} == {task_id, heads[2].task_id}


async def test_a_failure_keeps_its_reason(storage: DurableStorage) -> None:
    """HEAD has the error and the correlation id that the client was given, and so has the index."""
    told, lost = "0123456789abcdef", AttemptEnd(token="one", reason="ValueError")
    head = await storage.commit(await opened(storage), claim())
    await storage.commit(head, replace(gave_up(head, told), failed=lost))
    late = await opened(storage)
    await storage.commit(late, never_started(late, 3600))
    stored = [(await newest(storage, one)).failure for one in (head, late)]
    failures = [Failure(reason="ValueError", correlation_id=told), Failure(reason="not started")]
    assert stored == failures
    found = (await tasks_in_trouble(storage, limit=10_000)).found
    known = {(o.task_id, o.why.reason, o.why.correlation_id) for o in found if o.why}
    assert known >= {(head.task_id, "ValueError", told), (late.task_id, "not started", "")}

"""The index of what needs attention, beside a look at every task."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState, TaskStatus

from a2a_serverless.errors import A2AServerlessError
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import gave_up, never_started
from a2a_serverless.storage.layout import WAIT_KINDS
from a2a_serverless.tasks.entries import Recorded, StatusChanged, StepId
from a2a_serverless.tasks.head import TERMINAL, AttemptEnd, Failure, Head
from a2a_serverless.tasks.identity import new_token
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless_tools.operate.finding import Named, tasks_in_trouble, waiting_tasks
from tests.support.clocks import ManualClock
from tests.support.databases import LONG
from tests.support.messages import request

STEPS = 400 if LONG else 60


def to(state: TaskState, **options: object) -> Commit:
    return replace(Commit(entries=(StatusChanged(TaskStatus(state=state)),)), **options)  # type: ignore[arg-type]


def hook(task_id: str) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(task_id=task_id, id="hook", url="https://e.example/")


class World:
    """Some tasks, HEADs that writers have read at any time, and what writers do with them."""

    def __init__(self, storage: DurableStorage, clock: ManualClock, seed: int) -> None:
        self.storage = storage
        self.clock = clock
        self.random = random.Random(seed)  # noqa: S311 - tests
        self.seen: list[Head] = []
        self.tasks: set[str] = set()
        self.untold: set[str] = set()
        self.moves: list[Callable[[Head], Awaitable[object]]] = [
            *(self.opened, self.committed, self.committed, self.committed, self.released),
            *(self.left, self.sent, self.sent, self.failed, self.forgotten, self.told),
            *(self.storage.requeue, self.redelivered),
        ]

    async def step(self) -> None:
        """Let one writer act on a HEAD that it has read now or earlier."""
        self.clock.advance(self.random.choice([0, 0.001, 30]))
        if not self.seen or len(self.tasks) < 3:
            await self.opened(None)
        head = self.random.choice(self.seen[-8:])
        if self.random.random() < 0.7:
            head = await self.storage.head(head.task_id) or head
        self.seen.append(head)
        with suppress(A2AServerlessError):
            await self.random.choice(self.moves)(head)

    async def opened(self, _: Head | None) -> None:
        made = (await self.storage.open_task("c", request())).head
        self.tasks.add(made.task_id)
        self.seen.append(made)

    def end(self, head: Head, reason: str) -> AttemptEnd:
        """The end of an attempt, which may wait."""
        now, wait_ms = self.clock.now_ms(), self.random.choice([0, 60_000])
        until = now + wait_ms if wait_ms else 0
        return AttemptEnd(token=head.turn.token or "", reason=reason, at=now, until=until)

    async def committed(self, head: Head) -> None:
        """A worker claims the turn, goes to sleep, or ends it."""
        record = Recorded(StepId("plan", new_token(), 1), "json", b"1")
        token, done = head.turn.token, sorted(TERMINAL - {TaskState.TASK_STATE_FAILED})
        working = to(TaskState.TASK_STATE_WORKING, token=new_token(), claims=True, worker="w")
        asleep = Commit(entries=(record,), token=token, parks=self.end(head, "asleep"))
        ends = to(self.random.choice(done), token=token)
        made = self.random.choice([working, working, asleep, ends])
        self.seen.append(await self.storage.commit(head, made))

    async def released(self, head: Head) -> None:
        due_at = self.clock.now_ms() + 1
        await self.storage.change(
            head, partial(releasing, end=self.end(head, "Busy"), due_at=due_at)
        )

    async def left(self, head: Head) -> None:
        await self.storage.park(head, self.random.choice(["share", "conversation"]))

    async def sent(self, head: Head) -> None:
        await self.storage.postpone(head, due_at=self.clock.now_ms() + 1, sends=head.turn.sends + 1)

    async def failed(self, head: Head) -> None:
        end = AttemptEnd(token=head.turn.token or "", reason="Value#Error", correlation_id="0123")
        failed = to(TaskState.TASK_STATE_FAILED, token=head.turn.token, failed=end)
        await self.storage.commit(head, self.random.choice([failed, gave_up(head, "4567")]))

    async def forgotten(self, head: Head) -> None:
        if self.random.random() < 0.3:
            await delete_task(self.storage, head.task_id)
            self.tasks.discard(head.task_id)
            self.untold.discard(head.task_id)

    async def told(self, head: Head) -> None:
        if head.task_id not in self.tasks:
            return
        push = await self.storage.webhooks.put(hook(head.task_id))
        lost = push.settled((push.version, 0), "status 503", self.clock.now_ms(), is_told=False)
        assert await self.storage.webhooks.move(push, lost)
        self.untold.add(head.task_id)

    async def redelivered(self, head: Head) -> None:
        for push in await self.storage.webhooks.all(head.task_id):
            if push.may_redeliver:
                again = push.redelivered([]).woken(self.clock.now_ms())
                assert await self.storage.webhooks.move(push, again)
                self.untold.discard(head.task_id)

    async def by_scan(self) -> list[tuple[str, str, str]]:
        """What HEAD of each task says that it is in the index for."""
        heads = [await self.storage.head(one) for one in self.tasks]
        noted = [(one.task_id, one.attention) for one in heads if one is not None]
        found = [(task_id, why.kind, why.reason) for task_id, why in noted if why is not None]
        return sorted(found + [(one, "untold", "status 503") for one in self.untold])

    async def by_index(self, limit: int) -> list[tuple[str, str, str]]:
        """What the index says, page by page."""
        found: list[Named] = []
        for kind in (None, *WAIT_KINDS):
            after, is_first = "", True
            while after or is_first:
                if kind is None:
                    page = await tasks_in_trouble(self.storage, after=after, limit=limit)
                else:
                    page = await waiting_tasks(self.storage, kind, after=after, limit=limit)
                assert len(page.found) <= limit
                found += page.found
                after, is_first = page.after, False
            if kind is None:
                times = [one.at for one in found]
                assert times == sorted(times, reverse=True)
        own = [one for one in found if one.scope == self.storage.scope.digest]
        return sorted((o.task_id, o.why.kind, o.why.reason) for o in own if o.why is not None)


@pytest.mark.parametrize("seed", range(8 if LONG else 2))
async def test_the_index_says_what_every_head_says(
    storage: DurableStorage, clock: ManualClock, seed: int
) -> None:
    """After each write, also with an old HEAD, lists are those of a scan of all tasks."""
    world = World(storage, clock, seed)
    for number in range(STEPS):
        await world.step()
        if number % 3 == 0:
            assert await world.by_index(limit=1 + number % 4) == await world.by_scan()


async def test_a_failure_keeps_its_reason(storage: DurableStorage) -> None:
    """HEAD has the error and the correlation id that the client was given, and so has the index."""
    told, lost = "0123456789abcdef", AttemptEnd(token="one", reason="ValueError")
    head = (await storage.open_task("c", request())).head
    working = to(TaskState.TASK_STATE_WORKING, token="one", claims=True)
    head = await storage.commit(head, working)
    await storage.commit(head, replace(gave_up(head, told), failed=lost))
    late = (await storage.open_task("c", request())).head
    await storage.commit(late, never_started(late, 3600))
    stored = [await storage.head(one.task_id) for one in (head, late)]
    assert [one.failure for one in stored if one is not None] == [
        Failure(reason="ValueError", correlation_id=told),
        Failure(reason="not started"),
    ]
    found = (await tasks_in_trouble(storage, limit=10_000)).found
    known = {(o.task_id, o.why.reason, o.why.correlation_id) for o in found if o.why}
    assert known >= {
        (head.task_id, "ValueError", told),
        (late.task_id, "not started", ""),
    }

"""The index of what needs attention, beside a look at every task."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState, TaskStatus

from a2a_serverless.errors import A2AServerlessError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import gave_up, never_started
from a2a_serverless.storage.layout import TROUBLES, WAIT_KINDS
from a2a_serverless.tasks.entries import Recorded, StatusChanged, StepId
from a2a_serverless.tasks.head import TERMINAL, AttemptEnd, Attention, Failure, Head, plain_state
from a2a_serverless.tasks.identity import new_token
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless_tools.operate.filters import TaskFilter
from a2a_serverless_tools.operate.finding import Named, tasks_in_trouble, waiting_tasks
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.wording import NO_REASON
from tests.support.clocks import ManualClock
from tests.support.databases import LONG, new_scope
from tests.support.messages import request

STEPS = 400 if LONG else 60
ENDS = sorted(map(plain_state, TERMINAL))


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
            *(self.opened, self.claimed, self.claimed, self.released, self.slept, self.left),
            *(self.woken, self.sent, self.sent, self.ended, self.failed, self.forgotten, self.told),
            self.redelivered,
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

    async def claimed(self, head: Head) -> None:
        working = to(TaskState.TASK_STATE_WORKING, token=new_token(), claims=True, worker="w")
        self.seen.append(await self.storage.commit(head, working))

    async def released(self, head: Head) -> None:
        now, waits = self.clock.now_ms(), self.random.choice([0, 60_000])
        end = AttemptEnd(
            token=head.turn.token or "", reason="Busy", at=now, until=now + waits if waits else 0
        )
        await self.storage.change(head, partial(releasing, end=end, due_at=now + 1))

    async def slept(self, head: Head) -> None:
        until = self.random.choice([0, self.clock.now_ms() + 60_000])
        end = AttemptEnd(
            token=head.turn.token or "", reason="asleep", at=self.clock.now_ms(), until=until
        )
        record = Recorded(StepId("plan", new_token(), 1), "json", b"1")
        asleep = Commit(entries=(record,), token=head.turn.token, parks=end)
        self.seen.append(await self.storage.commit(head, asleep))

    async def left(self, head: Head) -> None:
        await self.storage.park(head, self.random.choice(["share", "conversation"]))

    async def woken(self, head: Head) -> None:
        await self.storage.requeue(head)

    async def sent(self, head: Head) -> None:
        await self.storage.postpone(head, due_at=self.clock.now_ms() + 1, sends=head.turn.sends + 1)

    async def ended(self, head: Head) -> None:
        done = self.random.choice(sorted(TERMINAL - {TaskState.TASK_STATE_FAILED}))
        await self.storage.commit(head, to(done, token=head.turn.token))

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

    async def life(self) -> None:
        """Open a task, and let one writer act on it, or on the attempt that has claimed it."""
        await self.opened(None)
        if self.random.random() < 0.7:
            await self.claimed(self.seen[-1])
            on_attempt = [self.ended, self.ended, self.failed, self.released, self.slept, self.told]
            await self.random.choice(on_attempt)(self.seen[-1])
        else:
            await self.random.choice([self.left, self.sent])(self.seen[-1])

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


# -- lists -----------------------------------------------------------------------------------


class Lists:
    """What the first page links to, and what a look at every task says about it.

    Args:
        worlds: the tasks of some callers, which are changed.
    """

    def __init__(self, worlds: Sequence[World]) -> None:
        self._worlds = worlds
        self._storage, self._clock = worlds[0].storage, worlds[0].clock
        self._inspector = Inspector(self._storage, Settings(), place="the table")
        self._scopes = [world.storage.scope.digest for world in worlds]

    async def check(self, since: str) -> None:
        """Assert that each list of what is no older has what a scan finds."""
        known = [one for world in self._worlds for one in await self._known(world)]
        for which in self._links(known, since):
            assert await self._listed(which) == self._scanned(which, known), which

    async def _known(self, world: World) -> list[tuple[Head, list[Attention]]]:
        """HEAD of each task, and why it needs attention, also for its webhooks."""
        known = []
        for task_id in world.tasks:
            head = await world.storage.head(task_id)
            assert head is not None
            pushes = await world.storage.webhooks.all(task_id)
            why = [push.given_up.attention for push in pushes if push.given_up is not None]
            known.append((head, why + ([head.attention] if head.attention else [])))
        return known

    def _links(
        self, known: Iterable[tuple[Head, list[Attention]]], since: str
    ) -> Iterator[TaskFilter]:
        """Each kind of list of the first page, for each value that it can have here."""
        reasons = {one.reason or NO_REASON for _, why in known for one in why} - {"status 503"}
        if since == "hour":  # each looks at 25 hours of creation
            yield from (TaskFilter(state=state, since=since) for state in ENDS)
        yield from (TaskFilter(attention=kind, since=since) for kind in TROUBLES)
        yield from (TaskFilter(attention=kind) for kind in WAIT_KINDS)
        for reason in reasons:
            yield TaskFilter(attention="failed", since=since, reason=reason)
            yield TaskFilter(attention="retry", reason=reason)
        for scope in self._scopes:
            yield TaskFilter(attention="failed", since=since, scope=scope)

    async def _listed(self, which: TaskFilter) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        token = ""
        while True:
            limit = 50 if which.state else 5  # a list by creation looks at each hour of a day
            page = await self._inspector.lists.page(which, after=token, limit=limit)
            found += [row.key for row in page.rows if row.key[0] in self._scopes]
            token = page.after
            if not token:
                return sorted(found)

    def _scanned(
        self, which: TaskFilter, known: Iterable[tuple[Head, list[Attention]]]
    ) -> list[tuple[str, str]]:
        ago = {"hour": 3_600_000, "day": 86_400_000, "": self._clock.now_ms()}[which.since]
        since = self._clock.now_ms() - ago
        reason = "" if which.reason == NO_REASON else which.reason or None

        def is_one(head: Head, why: Iterable[Attention]) -> bool:
            if which.scope not in ("", head.scope):
                return False
            if which.state:
                return plain_state(head.state) == which.state and head.status_at >= since
            return any(
                (one.kind == which.attention and one.at >= since) and reason in (None, one.reason)
                for one in why
            )

        return sorted((head.scope, head.task_id) for head, why in known if is_one(head, why))


@pytest.mark.long(but=1)
@pytest.mark.parametrize("seed", range(4 if LONG else 1))
async def test_each_list_of_the_first_page_is_what_a_scan_finds(
    storage: DurableStorage, clock: ManualClock, seed: int
) -> None:
    """Of two callers, by state, kind, reason, caller and time, page by page, as tasks change."""
    other = storage.for_scope(new_scope())
    worlds = [World(one, clock, 10 * seed + n) for n, one in enumerate((storage, other))]
    lists = Lists(worlds)
    for number in range(STEPS // 4):
        for world in worlds:
            await world.life()
            await world.step()
        clock.advance(900)
        if number % 15 == 14:
            await lists.check("hour")
    await lists.check("day")

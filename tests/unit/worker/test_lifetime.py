"""How long a turn may hold its delivery: heartbeat, deadline, shutdown, pull mode."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import ConcurrencyError, ConfigurationError, UnavailableError
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import LOOK_AT_ONCE
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.lease import LOST_AFTER, RENEW_AFTER, RETRY_AFTER, HeadPoller, Lease
from tests.support.observed import counted
from tests.support.queues import is_empty
from tests.support.workers import (
    Agent,
    PacedClock,
    S,
    _InlineHeartbeat,
    chunk,
    complete,
    lease_of,
    params_of,
)
from tests.unit.tasks.heads import asked, opened
from tests.unit.worker.stand import Log, Patch, Polls, Stand, actions, ask, sent

BEAT_S = 0.6
WAIT_S = 30


class Delivery(Handle[Operation]):
    """A delivery that counts its extensions and fails as it is told."""

    def __init__(self, *failures: Exception | None, hangs: bool = False) -> None:
        self.message = Operation.to_run(params_of(opened()))
        self.attempt = 1
        self.hidden_until = 0
        self._failures = list(failures)
        self._hangs = hangs
        self.extended: list[float] = []
        self.threads: set[str] = set()
        self.thrice = threading.Event()
        self.told: list[str] = []

    async def ack(self) -> None:
        self.told.append("ack")

    async def nack(self, *, delay_s: float = 0) -> None:
        self.told.append("nack")

    async def extend(self, lease_s: float) -> None:
        self.extended.append(lease_s)
        self.threads.add(threading.current_thread().name)
        if len(self.extended) >= 3:
            self.thrice.set()
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
        if self._hangs and len(self.extended) > 1:
            await asyncio.Event().wait()


@asynccontextmanager
async def kept(
    handle: Delivery, *, visibility_s: float = BEAT_S, **options: Any
) -> AsyncIterator[Lease]:
    """Keep a delivery during the block."""
    storage = memory_backends(Settings()).storage
    lease = lease_of(storage, opened(), handle=handle, visibility_s=visibility_s, **options)
    async with lease.keeping_delivery():
        yield lease


def heartbeats_alive() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "heartbeat"]


async def test_a_blocked_event_loop_keeps_its_delivery() -> None:
    """The delivery is renewed while the agent blocks the loop; nothing of it is left behind."""
    handle = Delivery()
    async with kept(handle) as lease:
        assert handle.thrice.wait(WAIT_S)  # blocks this event loop
    assert not lease.is_lost
    assert handle.extended[:3] == [BEAT_S] * 3
    assert "heartbeat" in handle.threads
    assert heartbeats_alive() == []


@pytest.mark.parametrize(
    ("share", "at_once"), [(0, 1), (0.5, 1), (1, 0), (2, 1)], ids=["unknown", "half", "all", "more"]
)
async def test_a_delivery_that_its_receive_keeps_is_not_kept_again(
    share: float, at_once: int
) -> None:
    """A receive that has just hidden it for the visibility counts as a renewal."""
    handle = Delivery()
    handle.hidden_until = SystemClock().now_ms() + int(share * 60_000)
    async with kept(handle, visibility_s=60) as lease:
        assert len(handle.extended) == at_once
        assert lease._counts_until <= time.monotonic() + LOST_AFTER * 60


async def test_an_expired_delivery_is_lost_at_once() -> None:
    """Its turn is stopped without another wait, because another worker may have it by now."""
    slept = []

    class Noting(SystemClock):
        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            await super().sleep(seconds)

    handle = Delivery(None, ConcurrencyError())
    async with kept(handle, clock=Noting()) as lease, asyncio.timeout(WAIT_S):
        await lease.stopped.wait()
    assert BEAT_S * RETRY_AFTER not in slept


@pytest.mark.parametrize(
    "handle",
    [Delivery(None, *[UnavailableError()] * 100), Delivery(hangs=True)],
    ids=["fails", "hangs"],
)
async def test_a_delivery_without_renewals_is_lost_before_it_expires(handle: Delivery) -> None:
    """Three quarters of the visibility without a renewal is where an attempt has to stop."""
    began = time.monotonic()
    async with kept(handle) as lease, asyncio.timeout(WAIT_S):
        await lease.stopped.wait()
        assert lease.is_lost
        assert time.monotonic() - began >= 0.75 * BEAT_S


async def test_a_delivery_is_not_renewed_beyond_its_limit() -> None:
    """A delivery is lost at its limit and not renewed after it, even if the loop is blocked."""
    handle, clock = Delivery(), SystemClock()
    until = clock.monotonic() + 1.5 * BEAT_S
    async with kept(handle, until=until) as lease:
        while not lease.is_lost:
            time.sleep(0.01)  # noqa: ASYNC251 - the loop is blocked
        assert clock.monotonic() >= until
        renewals = len(handle.extended)
    assert renewals == len(handle.extended) <= 4


async def test_the_last_renewal_ends_at_the_limit() -> None:
    """A delivery that is lost by then is visible by then, not a whole visibility later."""
    handle, clock = Delivery(), SystemClock()
    until = clock.monotonic() + 20
    async with kept(handle, visibility_s=60, until=until):
        pass
    assert 19 < handle.extended[0] <= 20


async def beating(agent: Agent, *, visibility_s: float = BEAT_S) -> Stand:
    """A stand whose deliveries are renewed by a thread, on the machine's clock."""
    clock = SystemClock()
    return await sent(agent, clock=clock, has_heartbeat=True, visibility_s=visibility_s)


@pytest.mark.parametrize("is_cancel", [False, True])
async def test_a_delivery_that_has_expired_starts_no_agent(*, is_cancel: bool) -> None:
    """Another worker has got it, too: its first extension is refused, and nothing is changed."""
    stand = await beating(Agent(ask), visibility_s=60)
    if is_cancel:
        await stand.work()
        await stand.cancel()
    handle, before = await stand.bench.deliver(), await stand.head()
    await handle.nack()
    await stand.bench.deliver()
    assert await stand.bench.adapter.process(handle) is False
    assert (len(stand.agent.started), stand.agent.cancelled) == (int(is_cancel), [])
    assert await stand.head() == before


async def test_an_agent_that_lost_its_delivery_writes_nothing(monkeypatch: Patch) -> None:
    """The attempt stops, and what it emits afterwards is not stored."""
    emitted = list[bool]()

    async def unaware(context: RequestContext, queue: EventQueue) -> None:
        monkeypatch.setattr(handle, "extend", AsyncMock(side_effect=ConcurrencyError))
        try:
            await asyncio.Event().wait()
        finally:
            await complete(context, queue)
            emitted.append(True)

    stand = await beating(Agent(unaware))
    handle = await stand.bench.deliver()
    assert await stand.bench.adapter.process(handle) is False
    assert (emitted, (await stand.head()).version, heartbeats_alive()) == ([True], 1, [])


async def test_a_cancel_keeps_its_delivery(monkeypatch: Patch) -> None:
    """A cancel() that takes longer than the visibility is not called again beside itself."""
    renewed, extended = threading.Event(), list[float]()

    async def thorough(*_: object) -> None:
        # Blocks this event loop, as agents do.
        assert renewed.wait(WAIT_S)

    stand = await beating(Agent(ask, thorough))
    await stand.work()
    await stand.cancel()
    handle = await stand.bench.deliver()
    extend = handle.extend

    async def counted(lease_s: float) -> None:
        await extend(lease_s)
        extended.append(lease_s)
        if len(extended) > 1 / RENEW_AFTER + 1:  # by now it would have expired
            renewed.set()

    monkeypatch.setattr(handle, "extend", counted)
    assert await stand.bench.adapter.process(handle)
    assert is_empty(stand.queue)
    assert (len(stand.agent.cancelled), await stand.state()) == (1, S.TASK_STATE_CANCELED)
    assert heartbeats_alive() == []


async def test_a_turn_is_given_back_before_the_deadline(caplog: Log) -> None:
    """Ten seconds before its time is up the agent is stopped; the turn comes again at once."""
    stand = Slow(1000)
    working = await stand.begin(89, deadline=100)
    assert not working.done()
    await stand.clock.pass_time(2)
    assert await working is False
    assert (actions(caplog), stand.agent.cancelled) == (["deadline"], [])
    assert (await stand.bench.deliver()).attempt == 2
    assert (await stand.head()).turn.attempts == 1


async def test_no_turn_starts_after_the_deadline() -> None:
    """A record of a batch whose time is up goes back untouched, and uncounted."""
    stand = Stand(Agent(complete))
    working = await stand.begin(deadline=0)
    assert await working is False
    assert (stand.agent.started, (await stand.head()).version) == ([], 1)


# -- the looks at the tasks of running turns -----------------------------------------------------

SHOWN = opened()


class Looks:
    """A log whose looks show one HEAD; the first of them may raise, or all may wait."""

    def __init__(self, clock: PacedClock, shown: Head | None = SHOWN, *, fails: int = 0) -> None:
        self.counts: list[int] = []
        self.at: list[float] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.poller = HeadPoller(cast("Any", self), clock)
        self._clock, self._shown, self._fails = clock, shown, fails

    async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Head | None]:
        self.counts.append(len(tasks))
        self.at.append(self._clock.monotonic())
        if len(self.counts) <= self._fails:
            raise RuntimeError("ExpiredToken")
        await self.go_on.wait()
        return dict.fromkeys(tasks, self._shown)


async def _ignore(_head: Head | None) -> None:
    pass


@dataclass(eq=False)
class Task:
    """A task that is looked at."""

    task_id: str
    on_head: Callable[[Head | None], Awaitable[None]] = _ignore

    @property
    def key(self) -> TaskKey:
        return "s", self.task_id


async def test_a_failed_look_does_not_end_the_looks() -> None:
    """A look that raises does not end them: the next look sees the cancel."""
    clock, heard = PacedClock(), asyncio.Event()

    async def on_head(head: Head | None) -> None:
        assert head is SHOWN
        heard.set()

    looks = Looks(clock, fails=1)
    async with _InlineHeartbeat().over(partial(looks.poller.over, Task("t", on_head))):
        await clock.pass_time(1)
        assert not heard.is_set()
        await clock.pass_time(1)
        await heard.wait()


async def test_one_look_serves_a_hundred_turns() -> None:
    """220 turns, and one of them twice, cost three requests a second, whenever they began."""
    clock = PacedClock()
    looks = Looks(clock)
    turns = [partial(looks.poller.over, Task(f"t{n % 220}")) for n in range(221)]
    async with _InlineHeartbeat().over(*turns[:100]):
        await clock.pass_time(0.4)
        async with _InlineHeartbeat().over(*turns[100:]):
            await clock.pass_time(0.6)
            assert sorted(looks.counts, reverse=True) == [LOOK_AT_ONCE, LOOK_AT_ONCE, 20]
    await clock.pass_time(5)
    assert len(looks.counts) == 3


async def test_no_look_begins_while_another_is_under_way() -> None:
    """A table that is slow, or away, gets one look at a time, however many turns run."""
    clock = PacedClock()
    looks = Looks(clock)
    looks.go_on.clear()
    turns = [partial(looks.poller.over, Task(f"t{n}")) for n in range(3)]
    async with _InlineHeartbeat().over(*turns):
        await clock.pass_time(5.5)
        assert looks.at == [1]
        looks.go_on.set()
        await clock.pass_time(1)
        assert looks.at == [1, 6.5]


@pytest.mark.parametrize("shown", [None, asked(opened("earlier"))], ids=["none", "an earlier task"])
async def test_a_late_look_stops_no_turn(shown: Head | None) -> None:
    """A late look, at no HEAD or at an earlier task's, stops no turn."""
    release = asyncio.Event()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await release.wait()
        await complete(context, queue)

    stand = Stand(Agent(execute))
    looks = Looks(stand.clock, shown)
    stand.bench.adapter.poller = looks.poller
    working = await stand.begin(3)
    assert len(looks.counts) == 3
    release.set()
    assert await working
    assert await stand.state() == S.TASK_STATE_COMPLETED


async def test_a_look_from_before_a_cancel_takes_nothing_back() -> None:
    """A look that is older than what is known, though of the same version, changes nothing."""
    stand = Stand(Agent(complete))
    task = await stand.send()
    lease = lease_of(stand.storage, task)
    await stand.storage.request_cancel(task.task_id)
    canceled = await stand.head()
    for look in (canceled, task):
        await lease.on_head(look)
        assert lease.head == canceled


# -- workers that pull: one poll for all places ----------------------------------------------------


HOUR_S = 3600


class Slow(Stand):
    """A stand whose agent takes its time."""

    def __init__(self, seconds: float, **settings: int) -> None:
        async def execute(context: RequestContext, queue: EventQueue) -> None:
            await queue.enqueue_event(chunk(context, "half"))
            await self.clock.sleep(seconds)
            await complete(context, queue)

        super().__init__(Agent(execute), **settings)

    def serve(self, concurrency: int) -> asyncio.Task[None]:
        return asyncio.create_task(self.bench.adapter.serve(concurrency=concurrency))


async def test_one_poll_asks_for_all_free_places() -> None:
    """A worker with many places has one request under way, for ten messages at most."""
    stand = Slow(5)
    polls = Polls(stand.queue)
    heads = [await stand.send() for _ in range(12)]
    serving = stand.serve(14)
    await stand.clock.pass_time(1)
    assert (len(stand.agent.started), polls.limits, polls.most) == (12, [10, 4, 2], 1)
    await stand.clock.pass_time(10)
    assert {await stand.state(head) for head in heads} == {S.TASK_STATE_COMPLETED}
    await stand.queue.shutdown()
    await serving


async def test_a_turn_of_five_hours_is_sent_started_and_counted_once() -> None:
    """Delivery and lease are renewed all the time: the sweeper finds nothing to do."""
    stand = Slow(5 * HOUR_S, visibility_s=600)
    stand.bench.adapter.has_heartbeat = True
    stand.bench.adapter.poller._interval_s = HOUR_S
    await stand.send()
    serving = stand.serve(1)
    with counted() as seen:
        for _ in range(5 * 4 - 1):
            await stand.clock.pass_time(HOUR_S / 4)
            report = await stand.sweeper.sweep()
            assert (report.sent, report.given_up) == (0, 0)
        turn = (await stand.head()).turn
        assert (turn.attempts, turn.sends, len(stand.agent.started)) == (1, 0, 1)
        await stand.clock.pass_time(HOUR_S)
        assert await stand.state() == S.TASK_STATE_COMPLETED
    assert len(stand.agent.started) == 1
    assert (seen.total("Attempts"), seen.total("TasksEnded", state="completed")) == (1, 1)
    assert seen.total("LeasesRenewed") == 5 * HOUR_S / 180 - 1
    assert seen.values("Resends") == seen.values("AgeOfLostTurns") == []
    assert is_empty(stand.queue)
    await stand.queue.shutdown()
    await serving


async def test_a_queue_that_vanishes_cuts_off_no_turn() -> None:
    """The turns that run come to their end; then the worker ends with the sentence of the queue."""
    stand = Slow(5)
    heads = [await stand.send() for _ in range(3)]
    vanished = ConfigurationError("The queue q does not exist.")
    polls = AsyncMock(side_effect=[await stand.queue.pull(5, 0), vanished])
    stand.queue.pull = polls  # type: ignore[method-assign]
    serving = stand.serve(5)
    await stand.clock.pass_time(10)
    with pytest.raises(ConfigurationError, match=r"^The queue q does not exist\.$"):
        await serving
    assert {await stand.state(head) for head in heads} == {S.TASK_STATE_COMPLETED}

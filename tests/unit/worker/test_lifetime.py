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

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskState

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import ConcurrencyError, UnavailableError
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import LOOK_AT_ONCE
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.lease import LOST_AFTER, RENEW_AFTER, RETRY_AFTER, HeadPoller, Lease
from tests.support.queues import is_empty
from tests.support.workers import (
    Agent,
    Bench,
    PacedClock,
    S,
    _InlineHeartbeat,
    chunk,
    complete,
    lease_of,
    params_of,
    status,
)
from tests.unit.tasks.heads import asked, opened

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


def beating() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "heartbeat"]


async def test_a_blocked_event_loop_keeps_its_delivery() -> None:
    """The delivery is renewed while the agent blocks the loop; nothing of it is left behind."""
    handle = Delivery()
    async with kept(handle) as lease:
        assert handle.thrice.wait(WAIT_S)  # blocks this event loop
    assert not lease.is_lost
    assert handle.extended[:3] == [BEAT_S] * 3
    assert "heartbeat" in handle.threads
    assert beating() == []


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


async def test_a_delivery_that_has_expired_starts_no_agent() -> None:
    """An expired delivery, whose first extension is refused, starts no agent."""
    agent = Agent(complete)
    bench = Bench(agent, has_heartbeat=True, visibility_s=60)
    task = await bench.send()
    handle = await bench.deliver()
    await handle.nack()
    await bench.deliver()
    assert await bench.adapter.process(handle) is False
    assert agent.started == []
    assert (await bench.head(task)).version == 1


async def test_an_agent_that_lost_its_delivery_writes_nothing() -> None:
    """The attempt stops, and what it emits afterwards is not stored."""
    emitted = []

    async def unaware(context: RequestContext, queue: EventQueue) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await complete(context, queue)
            emitted.append(True)

    bench = Bench(Agent(unaware), has_heartbeat=True, visibility_s=BEAT_S)
    task = await bench.send()
    handle = await bench.deliver()
    real_extend = type(handle).extend
    calls = []

    async def refuse_second(self: Handle[Operation], lease_s: float) -> None:
        calls.append(lease_s)
        if len(calls) > 1:
            raise ConcurrencyError
        await real_extend(self, lease_s)

    type(handle).extend = refuse_second  # type: ignore[method-assign]
    try:
        async with asyncio.timeout(WAIT_S):
            assert await bench.adapter.process(handle) is False
    finally:
        type(handle).extend = real_extend  # type: ignore[method-assign]
    assert emitted == [True]
    assert (await bench.head(task)).version == 1
    assert beating() == []


async def paused(bench: Bench) -> Head:
    """A task that waits for its user, and whose cancel is under way."""
    task = await bench.send()
    await bench.work()
    await bench.cancel(task)
    return task


async def ask(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "which?"))


async def test_a_cancel_keeps_its_delivery() -> None:
    """A cancel() that takes longer than the visibility is not called again beside itself."""
    renewed = threading.Event()

    async def thorough(_context: RequestContext, _queue: EventQueue) -> None:
        # Blocks this event loop, as agents do.
        assert renewed.wait(WAIT_S)

    agent = Agent(ask, thorough)
    bench = Bench(agent, has_heartbeat=True, visibility_s=BEAT_S)
    task = await paused(bench)
    handle = await bench.deliver()
    extended, extend = [], handle.extend

    async def counted(lease_s: float) -> None:
        await extend(lease_s)
        extended.append(lease_s)
        if len(extended) > 1 / RENEW_AFTER + 1:  # by now it would have expired
            renewed.set()

    handle.extend = counted  # type: ignore[method-assign]
    assert await bench.adapter.process(handle)
    assert is_empty(bench.operations)
    assert len(agent.cancelled) == 1
    assert (await bench.head(task)).state == S.TASK_STATE_CANCELED
    assert beating() == []


async def test_a_cancel_whose_delivery_has_expired_does_nothing() -> None:
    """An expired cancel delivery does not call cancel(), and changes nothing."""
    agent = Agent(ask)
    bench = Bench(agent, has_heartbeat=True, visibility_s=60)
    task = await paused(bench)
    handle = await bench.deliver()
    await handle.nack()
    await bench.deliver()
    assert await bench.adapter.process(handle) is False
    assert agent.cancelled == []
    assert (await bench.head(task)).state == S.TASK_STATE_INPUT_REQUIRED


async def test_a_turn_is_given_back_before_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """Ten seconds before its time is up the agent is stopped; the turn comes again at once."""
    clock = PacedClock()

    async def slow(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "half"))
        await clock.sleep(1000)

    agent = Agent(slow)
    bench = Bench(agent, clock=clock)
    task = await bench.send()
    working = asyncio.create_task(bench.work(deadline=clock.monotonic() + 100))
    await clock.pass_time(89)
    assert not working.done()
    await clock.pass_time(2)
    assert await working is False
    assert [r.__dict__["action"] for r in caplog.records] == ["deadline"]
    assert agent.cancelled == []
    again = await bench.deliver()
    assert again.attempt == 2
    assert (await bench.head(task)).turn.attempts == 1


async def test_a_deadline_on_the_last_attempt_fails_the_task() -> None:
    """A turn that never ends in its time does not come again for ever."""
    clock = PacedClock()

    async def slow(_context: RequestContext, _queue: EventQueue) -> None:
        await clock.sleep(1000)

    bench = Bench(Agent(slow), clock=clock, max_attempts=1)
    task = await bench.send()
    working = asyncio.create_task(bench.work(deadline=clock.monotonic() + 5))
    await clock.pass_time(5)
    assert await working is True
    assert (await bench.head(task)).state == S.TASK_STATE_FAILED


async def test_no_turn_starts_after_the_deadline() -> None:
    """A record of a batch whose time is up goes back untouched, and uncounted."""
    clock = PacedClock()
    agent = Agent(complete)
    bench = Bench(agent, clock=clock)
    task = await bench.send()
    assert await bench.work(deadline=clock.monotonic()) is False
    assert agent.started == []
    assert (await bench.head(task)).version == 1


# -- the looks at the tasks of running turns -----------------------------------------------------

SHOWN = opened()


class Moody:
    """A log whose first look is an error that no repetition mends."""

    def __init__(self) -> None:
        self.looks: list[int] = []

    async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Head | None]:
        self.looks.append(len(tasks))
        if len(self.looks) == 1:
            raise RuntimeError("ExpiredToken")
        return dict.fromkeys(tasks, SHOWN)


@dataclass(eq=False)
class Task:
    """A task that is looked at."""

    task_id: str
    on_head: Callable[[Head | None], Awaitable[None]]

    @property
    def key(self) -> TaskKey:
        return "s", self.task_id


async def test_a_failed_look_does_not_end_the_looks() -> None:
    """A look that raises does not end them: the next look sees the cancel."""
    clock, moody, heard = PacedClock(), Moody(), asyncio.Event()

    async def on_head(head: Head | None) -> None:
        assert head is SHOWN
        heard.set()

    poller = HeadPoller(cast("Any", moody), clock)
    async with _InlineHeartbeat().over(partial(poller.over, Task("t", on_head))):
        await clock.pass_time(1)
        assert not heard.is_set()
        await clock.pass_time(1)
        await heard.wait()


async def test_one_look_serves_a_hundred_turns() -> None:
    """220 turns, and one of them twice, cost three requests a second, whenever they began."""
    clock, moody = PacedClock(), Moody()
    poller = HeadPoller(cast("Any", moody), clock)
    turns = [partial(poller.over, Task(f"t{n % 220}", _ignore)) for n in range(221)]
    async with _InlineHeartbeat().over(*turns[:100]):
        await clock.pass_time(0.4)
        async with _InlineHeartbeat().over(*turns[100:]):
            await clock.pass_time(0.6)
            assert sorted(moody.looks, reverse=True) == [LOOK_AT_ONCE, LOOK_AT_ONCE, 20]
    await clock.pass_time(5)
    assert len(moody.looks) == 3


async def test_no_look_begins_while_another_is_under_way() -> None:
    """A table that is slow, or away, gets one look at a time, however many turns run."""
    clock, release, looks = PacedClock(), asyncio.Event(), list[float]()

    class Slow:
        async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Head | None]:
            looks.append(clock.monotonic())
            await release.wait()
            return dict.fromkeys(tasks, SHOWN)

    shared = HeadPoller(cast("Any", Slow()), clock)
    turns = [partial(shared.over, Task(f"t{n}", _ignore)) for n in range(3)]
    async with _InlineHeartbeat().over(*turns):
        await clock.pass_time(5.5)
        assert looks == [1]
        release.set()
        await clock.pass_time(1)
        assert looks == [1, 6.5]


class Late:
    """A log whose looks are older than the tasks: they show none, or one that had the id before."""

    def __init__(self, shown: Head | None) -> None:
        self.shown = shown
        self.looks = 0

    async def look(self, tasks: Collection[TaskKey]) -> dict[TaskKey, Head | None]:
        self.looks += 1
        return dict.fromkeys(tasks, self.shown)


@pytest.mark.parametrize("shown", [None, asked(opened("earlier"))], ids=["none", "an earlier task"])
async def test_a_late_look_stops_no_turn(shown: Head | None) -> None:
    """A late look, at no HEAD or at an earlier task's, stops no turn."""
    clock, release, late = PacedClock(), asyncio.Event(), Late(shown)

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await release.wait()
        await complete(context, queue)

    bench = Bench(Agent(execute), clock=clock)
    bench.adapter.poller = HeadPoller(cast("Any", late), clock)
    head = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(3)
    assert late.looks == 3
    release.set()
    assert await working
    assert (await bench.task(head)).status.state == TaskState.TASK_STATE_COMPLETED


async def test_a_look_from_before_a_cancel_takes_nothing_back() -> None:
    """A look that is older than what is known, though of the same version, changes nothing."""
    bench = Bench(Agent(complete))
    task = await bench.send()
    lease = lease_of(bench.storage, task)
    await bench.storage.request_cancel(task.task_id)
    canceled = await bench.head(task)
    for look in (canceled, task):
        await lease.on_head(look)
        assert lease.head == canceled


async def _ignore(_head: Head | None) -> None:
    pass

"""How long a turn may hold its delivery: heartbeat, deadline, pull mode, blocked loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import (
    ConcurrencyError,
    ConfigurationError,
    TurnFinishedError,
    UnavailableError,
)
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.settings import Settings
from a2a_serverless.storage.changes import MOST_TRIES
from a2a_serverless.storage.codec import head_of
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import LOOK_AT_ONCE, DurableStorage
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless.tasks.rules import Commit, Timing
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker import heartbeat as heartbeats
from a2a_serverless.worker.heartbeat import Heartbeat
from a2a_serverless.worker.lease import LOST_AFTER, RENEW_AFTER, RETRY_AFTER, HeadPoller, Lease
from a2a_serverless.worker.turn import ActiveTurn
from a2a_serverless_tools.testing.process import _InlineHeartbeat
from tests.support.clocks import ManualClock
from tests.support.commits import log_of
from tests.support.memory import items_of
from tests.support.observed import counted
from tests.support.queues import is_empty
from tests.support.workers import Agent, PacedClock, S, chunk, complete, lease_of, params_of
from tests.unit.tasks.heads import asked, opened
from tests.unit.worker.stand import Log, Patch, Polls, Stand, actions, ask, lines, sent

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

    async def ack(self) -> None: ...

    async def nack(self, *, delay_s: float = 0) -> None: ...

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
    storage = memory_backends(Settings()).storage
    lease = lease_of(storage, opened(), handle=handle, visibility_s=visibility_s, **options)
    async with lease.keeping_delivery():
        yield lease


async def test_a_blocked_event_loop_keeps_its_delivery() -> None:
    """The delivery is renewed while the agent blocks the loop; nothing of it is left behind."""
    handle = Delivery()
    async with kept(handle) as lease:
        assert handle.thrice.wait(WAIT_S)  # blocks this event loop
    assert not lease.is_lost
    assert handle.extended[:3] == [BEAT_S] * 3
    assert "heartbeat" in handle.threads
    assert heartbeats_alive() == []


@pytest.mark.parametrize(("share", "at_once"), [(0, 1), (0.5, 1), (1, 0), (2, 1)])
async def test_a_delivery_that_its_receive_keeps_is_kept_once(share: float, at_once: int) -> None:
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


BEATING: dict[str, Any] = {"clock": SystemClock(), "has_heartbeat": True}
"""Deliveries are renewed by a thread, on the machine's clock."""


@pytest.mark.parametrize("is_cancel", [False, True])
async def test_a_delivery_that_has_expired_starts_no_agent(*, is_cancel: bool) -> None:
    """Another worker has got it, too: its first extension is refused, and nothing is changed."""
    stand = await sent(Agent(ask), **BEATING, visibility_s=60)
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

    stand = await sent(Agent(unaware), **BEATING, visibility_s=BEAT_S)
    handle = await stand.bench.deliver()
    assert await stand.bench.adapter.process(handle) is False
    assert (emitted, (await stand.head()).version, heartbeats_alive()) == ([True], 1, [])


async def test_a_cancel_keeps_its_delivery(monkeypatch: Patch) -> None:
    """A cancel() that takes longer than the visibility is not called again beside itself."""
    renewed, extended = threading.Event(), list[float]()

    async def thorough(*_: object) -> None:
        # Blocks this event loop, as agents do.
        assert renewed.wait(WAIT_S)

    stand = await sent(Agent(ask, thorough), **BEATING, visibility_s=BEAT_S)
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
    """Ten seconds before its time is up the agent is stopped; none starts behind it, or counts."""
    stand = Slow(1000)
    working = await stand.begin(89, deadline=100)
    assert not working.done()
    await stand.clock.pass_time(2)
    assert await working is False
    assert (actions(caplog), stand.agent.cancelled) == (["deadline"], [])
    assert (await stand.bench.deliver()).attempt == 2
    assert (await stand.head()).turn.attempts == 1
    stand = Slow(1)
    assert await (await stand.begin(deadline=0)) is False
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


@dataclass(eq=False)
class Task:
    task_id: str
    on_head: Any = field(default_factory=AsyncMock)

    @property
    def key(self) -> TaskKey:
        return "s", self.task_id


@pytest.mark.parametrize(
    ("meets", "ends"),
    [
        ("others", UnavailableError),
        ("a deletion", TurnFinishedError),
        ("its own claim", None),  # whose answer was lost
    ],
)
async def test_a_claim_that_loses_its_race(meets: str, ends: Any, monkeypatch: Patch) -> None:
    """It is tried a few times, and goes by what it meets."""
    stand = await sent(Agent(complete), clock=ManualClock())
    lease, log = lease_of(stand.storage, stand.task), await log_of(stand.storage, stand.task)
    commit, tries = DurableStorage.commit, list[Commit]()

    async def lost(storage: DurableStorage, head: Head, wanted: Commit) -> Head:
        tries.append(wanted)
        if meets == "a deletion":
            await delete_task(storage, head.task_id)
        elif meets == "its own claim":
            await commit(storage, head, wanted)
        raise ConcurrencyError

    monkeypatch.setattr(DurableStorage, "commit", lost)
    claims: list[Any] = [partial(lease.take_over, log, RetryPolicy())]
    if meets == "others":
        claims.append(lease.commit)
    for claim in claims:
        tries.clear()
        with pytest.raises(ends) if ends else nullcontext():
            await claim()
        assert len(tries) == (MOST_TRIES if meets == "others" else 1)
    assert ends or lease.head.turn.token == lease.token


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


# -- agents that block their event loop ----------------------------------------------------------


def stored(stand: Stand) -> Head:
    """HEAD of the only task, read without the event loop."""
    (head,) = [item for item in items_of(stand.storage).values() if item["SK"] == "HEAD"]
    return head_of(head)


def block(until: Callable[[], bool]) -> None:
    """Block the event loop until a condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not until():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def others(monkeypatch: Patch) -> None:
    """Keepers of turns that an earlier test has left running are not this test's."""
    monkeypatch.setattr("tests.unit.worker.test_lifetime._before", set(threading.enumerate()))


_before: set[threading.Thread] = set()


def heartbeats_alive() -> list[threading.Thread]:
    """The keepers that this test has started."""
    alive = set(threading.enumerate()) - _before
    return [thread for thread in alive if thread.name == "heartbeat"]


async def test_a_blocking_agent_is_shown_working() -> None:
    """The turn is claimed, counted, and its lease renewed while the agent blocks its loop."""
    seen: list[Head] = []

    async def blocking(context: RequestContext, queue: EventQueue) -> None:
        block(lambda: stored(stand).turn.token is not None)
        seen.append(stored(stand))
        block(lambda: stored(stand).due_at != seen[0].due_at)
        await complete(context, queue)

    stand = Stand(Agent(blocking), **BEATING)
    stand.storage.timing = Timing(lease_s=60, renew_before_s=59.5)
    head = await stand.work()
    assert [(head.state, head.turn.attempts) for head in seen] == [(S.TASK_STATE_WORKING, 1)]
    assert (head.state, head.turn.attempts, head.due_at) == (S.TASK_STATE_COMPLETED, 1, None)


async def test_a_blocking_agent_that_asks_hears_of_a_cancel() -> None:
    """An agent that holds its loop sees `is_cancelled`, and can let go."""

    async def blocking(context: RequestContext, queue: EventQueue) -> None:
        asking = stand.storage.request_cancel(context.task_id or "")
        requesting = threading.Thread(target=lambda: asyncio.run(asking))
        requesting.start()
        block(lambda: cast("ActiveTurn", queue).is_cancelled)
        requesting.join()

    stand = Stand(Agent(blocking), **BEATING)
    assert (await stand.work()).state == S.TASK_STATE_CANCELED


async def test_a_blockage_is_logged_once_with_its_place(caplog: Log) -> None:
    """The warning names seconds, file and line; a second blockage of the turn adds none."""

    async def blocking(context: RequestContext, queue: EventQueue) -> None:
        for _ in range(2):
            time.sleep(heartbeats.BLOCKED_S + 3 * heartbeats.LOOK_S)  # noqa: ASYNC251 - what agents do
            async with asyncio.timeout(WAIT_S):
                while not lines(caplog, "loop_blocked"):  # noqa: ASYNC110 - logged in another thread
                    await asyncio.sleep(0.01)
        await complete(context, queue)

    stand = Stand(Agent(blocking), **BEATING)
    await stand.work()
    (warning,) = lines(caplog, "loop_blocked")
    assert warning["task_id"] == stand.task.task_id
    line = blocking.__code__.co_firstlineno + 2
    assert warning["said"].startswith("The event loop was blocked for ")
    way_out = "call blocking code by `await ctx.run_sync(func, …)`"
    assert f" s at {__file__}:{line}: {way_out}" in warning["said"]


async def test_a_blockage_that_does_not_end_is_reported_meanwhile(monkeypatch: Patch) -> None:
    """A process that is killed in the middle of the blockage has said where it stood."""
    monkeypatch.setattr(heartbeats, "REPORT_AFTER_S", 1.5)
    reported = threading.Event()
    async with Heartbeat().over(on_blocked=lambda _, __: reported.set()):
        assert reported.wait(WAIT_S)  # blocks this event loop


async def test_no_thread_is_left_between_turns() -> None:
    """One heartbeat's thread serves all turns that run, and ends with the last turn."""
    together, threads = asyncio.Barrier(3), list[int]()

    async def met(context: RequestContext, queue: EventQueue) -> None:
        await together.wait()
        threads.append(len(heartbeats_alive()))
        await complete(context, queue)

    stand = Stand(Agent(met), **BEATING)
    for _ in range(3):
        await stand.send()
    assert await asyncio.gather(*(stand.bench.work() for _ in range(3))) == [True] * 3
    assert (threads, heartbeats_alive()) == ([1, 1, 1], [])


async def test_a_heartbeat_without_turns_rests_until_the_next_one(monkeypatch: Patch) -> None:
    """It wakes no core meanwhile: the time-out between its looks is none."""
    heartbeat, pauses, pausing = Heartbeat(), SimpleQueue[float | None](), asyncio.timeout

    async def duty(stop: asyncio.Event) -> None:
        begun.set()
        await stop.wait()

    def timeout(seconds: float | None) -> asyncio.Timeout:
        pauses.put(seconds)
        return pausing(seconds)

    monkeypatch.setattr(asyncio, "timeout", timeout)
    staying = asyncio.create_task(heartbeat.stay())
    for _ in range(2):
        begun = threading.Event()
        while await asyncio.to_thread(pauses.get, timeout=WAIT_S) is not None:
            pass
        async with heartbeat.over(duty, later=True):
            assert await asyncio.to_thread(begun.wait, WAIT_S)
    staying.cancel()


def test_a_heartbeat_ends_with_the_loop_of_its_turns() -> None:
    """When the agents' loop has died, the heartbeat ends, and no heartbeat renews deliveries."""
    stopped = threading.Event()

    async def duty(stop: asyncio.Event) -> None:
        await stop.wait()
        stopped.set()

    async def dies() -> None:
        async with Heartbeat().over(duty):
            asyncio.get_running_loop().call_soon(raising, SystemExit())
            await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    main = loop.create_task(dies())
    with pytest.raises(SystemExit):
        loop.run_until_complete(main)
    assert stopped.wait(WAIT_S)
    for thread in heartbeats_alive():
        thread.join(WAIT_S)
    assert heartbeats_alive() == []
    main.cancel()
    loop.run_until_complete(asyncio.gather(main, return_exceptions=True))
    loop.close()


def raising(error: BaseException) -> None:
    raise error


async def test_without_a_thread_no_turn_starts(monkeypatch: Patch) -> None:
    """A process that cannot start another thread gives the turn back."""
    stand = Stand(Agent(complete), **BEATING)
    await stand.send()
    exhausted = Mock(side_effect=RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", exhausted)
    assert await stand.bench.work() is False
    assert (stand.agent.started, (await stand.head()).turn.attempts) == ([], 0)


# -- by a clock --------------------------------------------------------------------------------


async def test_an_unanswered_renewal_is_tried_again(monkeypatch: Patch) -> None:
    """A renewal that AWS does not answer is repeated long before the lease is over."""
    change, calls = DurableStorage.change, list[object]()

    async def unanswered_twice(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) < 3:
            raise UnavailableError
        return await change(*args, **options)

    async def long(context: RequestContext, queue: EventQueue) -> None:
        await stand.clock.sleep(400)
        await complete(context, queue)

    stand = Stand(Agent(long))
    monkeypatch.setattr(DurableStorage, "change", unanswered_twice)
    working = await stand.begin(200)
    assert len(calls) == 3
    assert (await stand.head()).due_at == stand.clock.now_ms() + (300 - 200 + 191) * 1000
    await stand.clock.pass_time(300)
    assert await working


async def test_a_turn_that_waits_long_for_its_retry_is_left_alone() -> None:
    """A turn's lease lasts beyond a long back-off, so that the sweeper sends no copy."""
    stand = Stand(Agent(AsyncMock(side_effect=ValueError)))
    stand.bench.adapter.retry = RetryPolicy(base_s=250, jitter=lambda: 1.0)
    await stand.send()
    assert await stand.bench.work() is False
    assert (await stand.head()).due_at == stand.clock.now_ms() + (250 + 300) * 1000


async def test_a_heartbeat_whose_thread_has_failed_is_replaced(monkeypatch: Patch) -> None:
    """The delivery counts as lost, and the next turn gets another thread."""
    stand = Stand(Agent(complete), clock=SystemClock())
    task = await stand.send()
    lease = lease_of(stand.storage, task, handle=await stand.bench.deliver(), visibility_s=60)

    with monkeypatch.context() as patched:
        patched.setattr(heartbeats._Lag, "look", Mock(side_effect=ValueError))
        async with lease.keeping_delivery(), asyncio.timeout(WAIT_S):
            await lease.stopped.wait()
    assert lease.is_lost
    ran = threading.Event()

    async def duty(stop: asyncio.Event) -> None:
        ran.set()
        await stop.wait()

    async with lease.heartbeat.over(duty):
        assert ran.wait(WAIT_S)

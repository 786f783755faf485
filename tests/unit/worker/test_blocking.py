"""What holds while an agent blocks its event loop, or keeps every thread of it busy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.codec import head_of
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Timing
from a2a_serverless.worker import heartbeat as heartbeats
from a2a_serverless.worker.heartbeat import Heartbeat
from a2a_serverless.worker.turn import ActiveTurn
from tests.support.memory import items_of
from tests.support.workers import Agent, Execute, S, complete, lease_of
from tests.unit.worker.stand import Log, Patch, Stand, lines

WAIT_S = 60


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
    monkeypatch.setattr("tests.unit.worker.test_blocking._before", set(threading.enumerate()))


_before: set[threading.Thread] = set()


def heartbeats_alive() -> list[threading.Thread]:
    """The keepers that this test has started."""
    alive = set(threading.enumerate()) - _before
    return [thread for thread in alive if thread.name == "heartbeat"]


def beating(execute: Execute) -> Stand:
    """A stand with a thread beside the loop, on the machine's clock."""
    return Stand(Agent(execute), clock=SystemClock(), has_heartbeat=True)


async def test_a_blocking_agent_is_shown_working() -> None:
    """The turn is claimed, counted, and its lease renewed while the agent blocks its loop."""
    seen: list[Head] = []

    async def blocking(context: RequestContext, queue: EventQueue) -> None:
        block(lambda: stored(stand).turn.token is not None)
        seen.append(stored(stand))
        block(lambda: stored(stand).due_at != seen[0].due_at)
        await complete(context, queue)

    stand = beating(blocking)
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

    stand = beating(blocking)
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

    stand = beating(blocking)
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

    stand = beating(met)
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
    stand = beating(complete)
    await stand.send()
    monkeypatch.setattr(
        threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread"))
    )
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

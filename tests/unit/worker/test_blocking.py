"""What holds while an agent blocks its event loop, or keeps every thread of it busy."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.codec import head_of
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit, Timing
from a2a_serverless.worker import heartbeat as heartbeats
from a2a_serverless.worker.heartbeat import Heartbeat
from a2a_serverless.worker.turn import ActiveTurn
from tests.support.memory import items_of
from tests.support.workers import Agent, Bench, PacedClock, S, complete, lease_of

WAIT_S = 60


def stored(bench: Bench) -> Head:
    """HEAD of the only task, read without the event loop."""
    (head,) = [item for item in items_of(bench.storage).values() if item["SK"] == "HEAD"]
    return head_of(head)


def block(until: Callable[[], bool]) -> None:
    """Block the event loop until a condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not until():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers of turns that an earlier test has left running are not this test's."""
    monkeypatch.setattr("tests.unit.worker.test_blocking._before", set(threading.enumerate()))


_before: set[threading.Thread] = set()


def heartbeats_alive() -> list[threading.Thread]:
    """The keepers that this test has started."""
    alive = set(threading.enumerate()) - _before
    return [thread for thread in alive if thread.name == "heartbeat"]


async def test_a_blocking_agent_is_shown_working() -> None:
    """The turn is claimed, and its start counted, though the agent never gives its loop back."""
    seen: list[Head] = []

    async def blocking(context: RequestContext, queue: EventQueue) -> None:
        block(lambda: stored(bench).turn.token is not None)
        seen.append(stored(bench))
        await complete(context, queue)

    bench = Bench(Agent(blocking), has_heartbeat=True)
    await bench.send()
    assert await bench.work()
    assert [(head.state, head.turn.attempts) for head in seen] == [(S.TASK_STATE_WORKING, 1)]
    assert (stored(bench).state, stored(bench).turn.attempts) == (S.TASK_STATE_COMPLETED, 1)


async def test_the_lease_of_a_blocking_agent_is_renewed() -> None:
    """The sweeper finds nothing to send while the agent holds its loop."""
    first: list[int | None] = []

    async def blocking(context: RequestContext, queue: EventQueue) -> None:
        block(lambda: stored(bench).turn.token is not None)
        first.append(stored(bench).due_at)
        block(lambda: stored(bench).due_at != first[0])
        await complete(context, queue)

    bench = Bench(Agent(blocking), has_heartbeat=True)
    bench.storage.timing = Timing(lease_s=60, renew_before_s=59.5)
    await bench.send()
    assert await bench.work()
    assert stored(bench).due_at is None


async def test_a_blocking_agent_that_asks_hears_of_a_cancel() -> None:
    """An agent that holds its loop sees `is_cancelled`, and can let go."""

    async def blocking(_context: RequestContext, queue: EventQueue) -> None:
        requesting = threading.Thread(
            target=lambda: asyncio.run(bench.storage.request_cancel(task.task_id))
        )
        requesting.start()
        block(lambda: cast("ActiveTurn", queue).is_cancelled)
        heard.append(True)
        requesting.join()

    bench = Bench(Agent(blocking), has_heartbeat=True)
    task = await bench.send()
    heard: list[bool] = []
    assert await bench.work()
    assert heard
    assert stored(bench).state == S.TASK_STATE_CANCELED


async def test_a_blockage_is_logged_once_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names seconds, file and line; a second blockage of the turn adds none."""

    def warnings() -> list[logging.LogRecord]:
        return [r for r in caplog.records if r.__dict__.get("action") == "loop_blocked"]

    async def blocking(context: RequestContext, queue: EventQueue) -> None:
        for _ in range(2):
            time.sleep(heartbeats.BLOCKED_S + 3 * heartbeats.LOOK_S)  # noqa: ASYNC251 - what agents do
            async with asyncio.timeout(WAIT_S):
                while not warnings():  # noqa: ASYNC110 - it is logged in another thread
                    await asyncio.sleep(0.01)
        await complete(context, queue)

    bench = Bench(Agent(blocking), has_heartbeat=True)
    task = await bench.send()
    assert await bench.work()
    (warning,) = warnings()
    assert warning.__dict__["task_id"] == task.task_id
    line = blocking.__code__.co_firstlineno + 2
    text = warning.getMessage()
    assert text.startswith("The event loop was blocked for ")
    assert f" s at {__file__}:{line}: call blocking code by `await ctx.run_sync(func, …)`" in text


async def test_a_blockage_that_does_not_end_is_reported_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that is killed in the middle of the blockage has said where it stood."""
    monkeypatch.setattr(heartbeats, "REPORT_AFTER_S", 1.5)
    reported = threading.Event()
    async with Heartbeat().over(on_blocked=lambda _, __: reported.set()):
        assert reported.wait(WAIT_S)  # blocks this event loop


async def test_no_thread_is_left_between_turns() -> None:
    """One heartbeat's thread serves all turns that run, and ends with the last turn."""
    together = asyncio.Barrier(3)
    threads: list[int] = []

    async def met(context: RequestContext, queue: EventQueue) -> None:
        await together.wait()
        threads.append(len(heartbeats_alive()))
        await complete(context, queue)

    bench = Bench(Agent(met), has_heartbeat=True)
    for _ in range(3):
        await bench.send()
    assert await asyncio.gather(*(bench.work() for _ in range(3))) == [True] * 3
    assert threads == [1, 1, 1]
    assert heartbeats_alive() == []


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


async def test_without_a_thread_no_turn_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot start another thread gives the turn back."""

    def exhausted(_: object) -> None:
        raise RuntimeError("can't start new thread")

    agent = Agent(complete)
    bench = Bench(agent, has_heartbeat=True)
    task = await bench.send()
    monkeypatch.setattr(threading.Thread, "start", exhausted)
    assert await bench.work() is False
    assert agent.started == []
    assert (await bench.head(task)).turn.attempts == 0


# -- by a clock --------------------------------------------------------------------------------


async def test_an_unanswered_renewal_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal that AWS does not answer is repeated long before the lease is over."""
    clock = PacedClock()

    async def long(context: RequestContext, queue: EventQueue) -> None:
        await clock.sleep(400)
        await complete(context, queue)

    bench = Bench(Agent(long), clock=clock)
    task = await bench.send()
    calls = counted(monkeypatch, bench, "change", UnavailableError(), UnavailableError())
    working = asyncio.create_task(bench.work())
    await clock.pass_time(200)
    assert len(calls) == 3
    assert (await bench.head(task)).due_at == clock.now_ms() + (300 - 200 + 191) * 1000
    await clock.pass_time(300)
    assert await working


async def test_a_turn_that_waits_long_for_its_retry_is_left_alone() -> None:
    """A turn's lease lasts beyond a long back-off, so that the sweeper sends no copy."""
    clock = PacedClock()

    async def failing(_context: RequestContext, _queue: EventQueue) -> None:
        raise ValueError

    bench = Bench(Agent(failing), clock=clock)
    bench.adapter.retry = RetryPolicy(base_s=250, jitter=lambda: 1.0)
    task = await bench.send()
    assert await bench.work() is False
    assert (await bench.head(task)).due_at == clock.now_ms() + (250 + 300) * 1000


async def test_a_claim_beside_the_writer_takes_no_turn_from_others() -> None:
    """A late claim leaves another attempt's claim in place, and raises that it is fenced."""
    bench = Bench(Agent(complete))
    task = await bench.send()
    other = await bench.storage.commit(task, Commit(token="other", claims=True))
    with pytest.raises(Exception, match="Another attempt owns the turn"):
        await lease_of(bench.storage, task).commit()
    assert await bench.head(task) == other


async def test_a_claim_that_the_writer_has_made_is_not_made_again() -> None:
    """The second claim of one attempt finds the first: no restart, and one attempt."""
    bench = Bench(Agent(complete))
    task = await bench.send()
    first = await bench.storage.commit(task, Commit(token="own", claims=True))
    lease = lease_of(bench.storage, task)
    await lease.commit()
    assert lease.head == first
    assert not lease.must_claim()
    assert first.turn.attempts == 1


def counted(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, method: str, *failures: Exception
) -> list[object]:
    """Note the calls of a method of the storage; the first ones fail as told."""
    real: Callable[..., Coroutine[Any, Any, Any]] = getattr(type(bench.storage), method)
    calls: list[object] = []
    left = list(failures)

    async def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if left:
            raise left.pop(0)
        return await real(*args, **kwargs)

    monkeypatch.setattr(type(bench.storage), method, noted)
    return calls


async def test_a_heartbeat_whose_thread_has_failed_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The delivery counts as lost, and the next turn gets another thread."""
    bench = Bench(Agent(complete))
    task = await bench.send()
    lease = lease_of(bench.storage, task, handle=await bench.deliver(), visibility_s=60)
    heartbeat = lease.heartbeat

    def broken(_: object) -> None:
        raise ValueError

    with monkeypatch.context() as patched:
        patched.setattr(heartbeats._Lag, "look", broken)
        async with lease.keeping_delivery(), asyncio.timeout(WAIT_S):
            await lease.stopped.wait()
    assert lease.is_lost
    ran = threading.Event()

    async def duty(stop: asyncio.Event) -> None:
        ran.set()
        await stop.wait()

    async with heartbeat.over(duty):
        assert ran.wait(WAIT_S)

"""What an attempt leaves behind when it ends its turn's work, and when it hears of a cancel."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.tasks.head import LOST, AttemptEnd
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.telemetry import process_name
from tests.support.workers import Agent, Bench, PacedClock, S, chunk, complete, idle

AT_ONCE = "x" * 70_000
"""A text that is committed when the call that emits it returns."""


async def fail(context: RequestContext, queue: EventQueue) -> None:
    raise ValueError("password is hunter2")


def line(caplog: pytest.LogCaptureFixture, action: str) -> dict[str, Any]:
    """The fields of the one line of the log with an action."""
    (found,) = [r for r in caplog.records if getattr(r, "action", "") == action]
    return vars(found)


async def test_a_failed_attempt_leaves_its_end_on_head(caplog: pytest.LogCaptureFixture) -> None:
    """The error's name, and the correlation id that the log has; nothing of its text."""
    bench = Bench(Agent(fail), max_attempts=2, retry_base_s=0)
    task = await bench.send()
    assert await bench.work() is False
    head = await bench.head(task)
    assert head.token is not None
    correlation_id = line(caplog, "retry")["correlation_id"]
    end = AttemptEnd(token=head.token, reason="ValueError", correlation_id=correlation_id)
    assert head.released == end
    assert head.was_released
    claim = (await bench.records(task))[-1]
    assert claim.worker == process_name()


async def test_the_next_attempt_takes_the_end_into_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And the last one its own, with the commit that fails the task."""
    bench = Bench(Agent(fail), max_attempts=2, retry_base_s=0)
    task = await bench.send()
    await bench.work()
    released = (await bench.head(task)).released
    assert await bench.work() is True
    ends = [record.ended for record in await bench.records(task) if record.ended is not None]
    correlation_id = line(caplog, "gave_up")["correlation_id"]
    assert ends[0] == released
    assert [end.reason for end in ends] == ["ValueError", "ValueError"]
    assert ends[1].correlation_id == correlation_id


async def test_an_only_attempt_leaves_its_end_in_the_log() -> None:
    """Its one commit claims the turn and fails the task."""
    bench = Bench(Agent(fail), max_attempts=1)
    task = await bench.send()
    assert await bench.work() is True
    ended = (await bench.records(task))[-1].ended
    assert ended is not None
    assert ended.reason == "ValueError"


async def test_the_end_of_a_dead_attempt_is_that_it_was_lost() -> None:
    """A turn whose workers all died fails: the commit says so of the last one."""
    bench = Bench(Agent(complete), max_attempts=1)
    task = await bench.send()
    await bench.storage.commit(task, Commit(token="dead", claims=True))
    assert await bench.work() is True
    assert (await bench.records(task))[-1].ended == AttemptEnd(token="dead", reason=LOST)


async def test_a_cancel_is_heard_at_the_next_commit() -> None:
    """The clock stands still, so the watch has not looked."""
    clock, going_on = PacedClock(), asyncio.Event()

    async def work(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, AT_ONCE))
        await going_on.wait()
        await queue.enqueue_event(chunk(context, AT_ONCE))
        await asyncio.Event().wait()

    agent = Agent(work)
    bench = Bench(agent, clock=clock)
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await idle()
    await bench.storage.request_cancel(task.task_id, by="ann")
    await idle()
    assert agent.cancelled == []
    going_on.set()
    assert await working is True
    assert len(agent.cancelled) == 1
    assert clock.monotonic() == 0
    head = await bench.head(task)
    assert head.state == S.TASK_STATE_CANCELED
    assert head.cancel is not None
    assert head.cancel.by == "ann"


async def test_a_cancel_that_comes_before_the_claim_is_heard_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It came after the delivery had looked at the flag; the agent is told without the watch."""
    clock = PacedClock()

    async def wait(context: RequestContext, queue: EventQueue) -> None:
        await asyncio.Event().wait()

    agent = Agent(wait)
    bench = Bench(agent, clock=clock)
    task = await bench.send()
    await bench.storage.commit(task, Commit(token="dead", claims=True))
    asks = type(bench.storage).is_cancelled

    async def asked_too_early(storage: Any, task_id: str) -> bool:
        answer = await asks(storage, task_id)
        await bench.storage.request_cancel(task_id)
        return answer

    monkeypatch.setattr(type(bench.storage), "is_cancelled", asked_too_early)
    assert await bench.work() is True
    assert clock.monotonic() == 0
    assert (await bench.head(task)).state == S.TASK_STATE_CANCELED


async def test_a_cancel_that_the_keeper_has_read_is_told() -> None:
    """Its claim is on a HEAD with the request, so that no commit of the attempt fails on it."""
    clock = PacedClock()

    async def wait(context: RequestContext, queue: EventQueue) -> None:
        await asyncio.Event().wait()

    agent = Agent(wait)
    bench = Bench(agent, clock=clock)
    watch = bench.adapter.beside.watch
    watch._interval_s = 3600
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await idle()
    await bench.storage.request_cancel(task.task_id)
    await clock.pass_time(5)
    assert await working is True
    assert len(agent.cancelled) == 1
    assert (await bench.head(task)).state == S.TASK_STATE_CANCELED

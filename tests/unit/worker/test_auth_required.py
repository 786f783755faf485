"""Agents that need credentials: those that return and those that stay; crashes and follow-ups."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskStatus

from a2a_serverless.errors import UnavailableError
from a2a_serverless.queues.fifo import send_copy
from a2a_serverless.steps import sleep
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.rules import Commit
from tests.support.messages import said
from tests.support.workers import (
    Agent,
    Bench,
    PacedClock,
    S,
    artifact_texts,
    chunk,
    status,
    status_text,
)


class Credentials:
    """What a staying agent waits for, and whether its present attempt ever gets it."""

    def __init__(self) -> None:
        self.here = asyncio.Event()


def staying(credentials: Credentials, *, pauses: bool = False) -> Agent:
    """Asks, waits until the credentials are there, then completes, or asks for more."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.get_user_input() != "go":
            await queue.enqueue_event(chunk(context, context.get_user_input(), artifact_id="b"))
            await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))
            return
        await queue.enqueue_event(status(context, S.TASK_STATE_AUTH_REQUIRED, "log in"))
        await credentials.here.wait()
        await queue.enqueue_event(chunk(context, "secret"))
        end = S.TASK_STATE_INPUT_REQUIRED if pauses else S.TASK_STATE_COMPLETED
        await queue.enqueue_event(status(context, end, "more?" if pauses else "done"))

    return Agent(execute)


async def returning(context: RequestContext, queue: EventQueue) -> None:
    """Asks and returns; takes the next message for the credentials."""
    if context.current_task is None:
        await queue.enqueue_event(chunk(context, "public"))
        await queue.enqueue_event(status(context, S.TASK_STATE_AUTH_REQUIRED, "log in"))
    else:
        await queue.enqueue_event(chunk(context, context.get_user_input(), artifact_id="b"))
        await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))


async def test_a_returning_agent_is_called_again_with_the_credentials() -> None:
    """The message after auth-required is a turn, which sees the question and the artifacts."""
    agent = Agent(returning)
    bench = Bench(agent)
    task = await bench.send("go")
    assert await bench.work()
    assert not (await bench.head(task)).turn.is_open
    await bench.follow_up(task, "password")
    assert await bench.work()
    given = agent.started[1].current_task
    assert given is not None
    assert (given.status.state, status_text(given)) == (S.TASK_STATE_AUTH_REQUIRED, "log in")
    done = await bench.task(task)
    assert said(done) == ["go", "log in", "password"]
    assert artifact_texts(done) == {"a": ["public"], "b": ["password"]}


async def sleeping(context: RequestContext, queue: EventQueue) -> None:
    """Asks, sleeps until the credentials are there, then asks for more; completes the next turn."""
    if context.get_user_input() == "go":
        await queue.enqueue_event(status(context, S.TASK_STATE_AUTH_REQUIRED, "log in"))
        await sleep(3600)
        await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "more?"))
    else:
        await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))


@pytest.mark.parametrize("in_line", [False, True])
async def test_an_answer_to_a_turn_that_is_left_holds_no_worker(*, in_line: bool) -> None:
    """Its delivery ends while the turn sleeps or waits for a share; it runs behind that."""
    clock, agent = PacedClock(), Agent(sleeping)
    bench = Bench(agent, clock=clock, conversations="serial" if in_line else "parallel")
    task = await bench.send("go")
    assert await bench.work()
    if in_line:  # its copy came late
        assert await bench.storage.requeue(await bench.head(task))
        assert await bench.storage.park(await bench.head(task), "share")
    left = await bench.head(task)
    assert (left.turn.parked, left.state) == (
        "share" if in_line else "asleep",
        S.TASK_STATE_AUTH_REQUIRED,
    )
    await bench.follow_up(task, "here")
    assert await bench.work()  # `tests.support.rounds` has counted how often it read the task
    assert len(agent.started) == 1
    await clock.pass_time(3600)
    requeued = await bench.storage.requeue(await bench.head(task))
    assert requeued is not None
    await send_copy(bench.operations, requeued)
    assert await bench.work()
    assert await bench.work()
    assert [c.get_user_input() for c in agent.started] == ["go", "go", "here"]
    done = await bench.task(task)
    assert done.status.state == S.TASK_STATE_COMPLETED
    assert said(done) == ["go", "log in", "here", "more?"]


async def test_a_queue_that_is_away_leaves_the_next_turn_to_the_sweeper(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the turn before it is stored and acknowledged all the same."""
    clock, credentials = PacedClock(), Credentials()
    bench = Bench(staying(credentials, pauses=True), clock=clock)
    task = await bench.send("go")
    working = asyncio.create_task(bench.work())
    await clock.pass_time(0.5)
    await bench.follow_up(task, "here")
    sending = AsyncMock(side_effect=UnavailableError("away"))
    monkeypatch.setattr(bench.operations, "send", sending)
    credentials.here.set()
    await clock.pass_time(0.5)
    assert await working
    assert [getattr(line, "action", "") for line in caplog.records] == ["next_turn_failed"]
    head = await bench.head(task)
    due_s = ((head.due_at or 0) - clock.now_ms()) / 1000
    assert (head.state, head.turn.is_open, due_s > 0) == (S.TASK_STATE_INPUT_REQUIRED, True, True)


@pytest.mark.parametrize("has_follow_up", [False, True])
async def test_a_worker_dies_before_a_returning_agents_turn_has_ended(
    has_follow_up: bool,  # noqa: FBT001 - a case
) -> None:
    """Auth-required was stored, its return was not: the turn starts over, the message waits."""
    agent = Agent(returning)
    bench = Bench(agent)
    task = await bench.send("go")
    asked = StatusChanged(TaskStatus(state=S.TASK_STATE_AUTH_REQUIRED), archive=True)
    await bench.storage.commit(task, Commit(token="dead", claims=True, entries=(asked,)))
    if has_follow_up:
        await bench.follow_up(task, "password")
    assert await bench.work()
    assert (await bench.head(task)).state == S.TASK_STATE_AUTH_REQUIRED
    if not has_follow_up:
        await bench.follow_up(task, "password")
    assert await bench.work()
    done = await bench.task(task)
    assert done.status.state == S.TASK_STATE_COMPLETED
    assert artifact_texts(done) == {"a": ["public"], "b": ["password"]}
    expected = ["go", "password", "log in"] if has_follow_up else ["go", "log in", "password"]
    assert said(done) == expected
    assert [c.get_user_input() for c in agent.started] == ["go", "password"]

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
from tests.support.workers import Agent, S, chunk, status
from tests.unit.worker.stand import Stand, actions, run


async def returning(context: RequestContext, queue: EventQueue) -> None:
    """Asks and returns; takes the next message for the credentials."""
    if context.current_task is None:
        await queue.enqueue_event(chunk(context, "public"))
        await queue.enqueue_event(status(context, S.TASK_STATE_AUTH_REQUIRED, "log in"))
    else:
        await queue.enqueue_event(chunk(context, context.get_user_input(), artifact_id="b"))
        await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))


async def sleeping(context: RequestContext, queue: EventQueue) -> None:
    """Asks, sleeps until the credentials are there, then asks for more; completes the next turn."""
    if context.get_user_input() == "hello":
        await queue.enqueue_event(status(context, S.TASK_STATE_AUTH_REQUIRED, "log in"))
        await sleep(3600)
        await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "more?"))
    else:
        await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))


def inputs(stand: Stand) -> list[str]:
    """The messages of the agent's starts."""
    return [context.get_user_input() for context in stand.agent.started]


@pytest.mark.parametrize("in_line", [False, True])
async def test_an_answer_to_a_turn_that_is_left_holds_no_worker(*, in_line: bool) -> None:
    """Its delivery ends while the turn sleeps or waits for a share; it runs behind that."""
    conversations = "serial" if in_line else "parallel"
    stand, left = await run(Agent(sleeping), conversations=conversations)
    if in_line:  # its copy came late
        assert await stand.storage.requeue(left)
        assert await stand.storage.park(await stand.head(), "share")
        left = await stand.head()
    parked = "share" if in_line else "asleep"
    assert (left.turn.parked, left.state) == (parked, S.TASK_STATE_AUTH_REQUIRED)
    await stand.follow_up("here")
    assert await stand.bench.work()  # `tests.support.rounds` has counted how often it read the task
    assert inputs(stand) == ["hello"]
    await stand.clock.pass_time(3600)
    requeued = await stand.storage.requeue(await stand.head())
    assert requeued is not None
    await send_copy(stand.queue, requeued)
    assert (await stand.work()).state == S.TASK_STATE_COMPLETED
    assert inputs(stand) == ["hello", "hello", "here"]
    assert said(await stand.shown()) == ["hello", "log in", "here", "more?"]


async def test_a_queue_that_is_away_leaves_the_next_turn_to_the_sweeper(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the turn before it is stored and acknowledged all the same."""
    credentials = asyncio.Event()

    async def staying(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(status(context, S.TASK_STATE_AUTH_REQUIRED, "log in"))
        await credentials.wait()
        await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "more?"))

    stand = Stand(Agent(staying))
    working = await stand.begin(0.5)
    await stand.follow_up("here")
    monkeypatch.setattr(stand.queue, "send", AsyncMock(side_effect=UnavailableError("away")))
    credentials.set()
    await stand.clock.pass_time(0.5)
    assert await working
    assert actions(caplog) == ["next_turn_failed"]
    head = await stand.head()
    assert (head.state, head.turn.is_open) == (S.TASK_STATE_INPUT_REQUIRED, True)
    assert (head.due_at or 0) > stand.clock.now_ms()


@pytest.mark.parametrize("has_follow_up", [False, True])
async def test_a_worker_dies_before_a_returning_agents_turn_has_ended(
    *, has_follow_up: bool
) -> None:
    """Auth-required was stored, its return was not: the turn starts over, the message waits."""
    stand = Stand(Agent(returning))
    asked = StatusChanged(TaskStatus(state=S.TASK_STATE_AUTH_REQUIRED), archive=True)
    claim = Commit(token="dead", claims=True, entries=(asked,))
    await stand.storage.commit(await stand.send(), claim)
    if has_follow_up:
        await stand.follow_up("password")
    assert await stand.bench.work()
    assert await stand.state() == S.TASK_STATE_AUTH_REQUIRED
    if not has_follow_up:
        assert not (await stand.head()).turn.is_open
        await stand.follow_up("password")
    assert await stand.bench.work()
    assert await stand.state() == S.TASK_STATE_COMPLETED
    assert await stand.artifacts() == {"a": ["public"], "b": ["password"]}
    answers = ["password", "log in"] if has_follow_up else ["log in", "password"]
    assert said(await stand.shown()) == ["hello", *answers]
    assert inputs(stand) == ["hello", "password"]

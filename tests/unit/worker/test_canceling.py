"""Canceling a task: queued, running, paused, and against its agent's will."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.clock import SystemClock
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import TaskContext
from tests.support.workers import Agent, S, chunk, complete, status
from tests.unit.worker.stand import Patch, Stand, ask, beside, run, sent


async def silent(*_: object) -> None:
    await asyncio.Event().wait()


async def assert_canceled(stand: Stand) -> None:
    head = await stand.head()
    assert (head.state, head.due_at) == (S.TASK_STATE_CANCELED, None)


async def test_the_agent_of_a_queued_task_never_starts() -> None:
    """A cancel before the start ends the task; its operation finds nothing left."""
    stand = await sent(Agent(complete))
    await stand.cancel()
    head = await stand.work()
    await assert_canceled(stand)
    assert (stand.agent.started, stand.agent.cancelled, head.version) == ([], [], 2)


async def test_a_silent_running_agent_is_cancelled() -> None:
    """Within two seconds execute() gets CancelledError, then cancel() is called."""
    cleaned: list[int] = []

    async def tidy(*_: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaned.append(len(stand.agent.cancelled))
            raise

    stand = Stand(Agent(tidy))
    working = await stand.begin(3)
    await stand.cancel()
    await stand.clock.pass_time(2)
    assert await working
    (told,) = stand.agent.cancelled
    assert (cleaned, told.task_id, told.message) == ([0], stand.task.task_id, None)
    assert told.current_task is not None
    await assert_canceled(stand)


async def test_an_agent_that_emits_hears_a_cancel_at_its_next_commit() -> None:
    """The mark on HEAD refuses the commit; its writer reads it before the watch has looked."""
    stopped_at: list[float] = []

    async def emit(context: RequestContext, queue: EventQueue) -> None:
        try:
            while True:
                await queue.enqueue_event(chunk(context, "x"))
                await stand.clock.sleep(0.15)
        except asyncio.CancelledError:
            stopped_at.append(stand.clock.monotonic())
            raise

    stand = Stand(Agent(emit))
    working = await stand.begin(0.4)
    await stand.storage.request_cancel(stand.task.task_id)
    await stand.clock.pass_time(0.1)
    assert stopped_at == [pytest.approx(0.45)]
    assert await working
    await assert_canceled(stand)
    assert await stand.artifacts() == {"a": ["x" * 4]}


@pytest.mark.parametrize("end", ["cancel", "fault", "give up"])
async def test_nothing_comes_behind_the_end_of_the_runtime(end: str, monkeypatch: Patch) -> None:
    """A task of the agent that goes on emitting does not take an ended task back to working."""
    commit = DurableStorage.commit

    async def slow(self: DurableStorage, *args: Any) -> Head:
        for _ in range(20):
            await asyncio.sleep(0)  # the other tasks of the agent emit meanwhile
        return await commit(self, *args)

    monkeypatch.setattr(DurableStorage, "commit", slow)
    emits, emitting = asyncio.Event(), list[asyncio.Task[None]]()

    async def emit(context: RequestContext, queue: EventQueue) -> None:
        while True:
            await queue.enqueue_event(status(context, S.TASK_STATE_WORKING, "tick"))
            emits.set()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        emitting.append(asyncio.create_task(emit(context, queue)))
        await emits.wait()
        if end == "give up":
            raise RuntimeError
        if end == "cancel":
            await silent()

    stand = Stand(Agent(execute), max_attempts=1)
    working = await stand.begin()
    await emits.wait()
    if end == "cancel":
        await stand.storage.request_cancel(stand.task.task_id)
    await stand.clock.pass_time(2)
    assert await working
    entries = [e for record in await stand.bench.records(stand.task) for e in record.entries]
    states = [e.status.state for e in entries if isinstance(e, StatusChanged)]
    wanted = S.TASK_STATE_CANCELED if end == "cancel" else S.TASK_STATE_FAILED
    assert (states[-1], states.count(wanted), await stand.state()) == (wanted, 1, wanted)


async def test_the_cancel_of_a_paused_task_is_acknowledged_with_its_end() -> None:
    """What cancel() emits before it acknowledges nothing: a worker may die until the end."""
    left = list[Any]()

    async def undo(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "undone", append=False))
        while (await stand.head()).version == paused.version:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        left.extend(await stand.queue.waiting())

    stand, paused = await run(Agent(ask, undo), clock=SystemClock(), has_heartbeat=True)
    await stand.cancel()
    await stand.work()
    await assert_canceled(stand)
    assert (len(left), await stand.queue.waiting()) == (1, [])


@pytest.mark.parametrize("fault", ["raises", "hangs"])
async def test_a_task_is_cancelled_whatever_its_agent_does(fault: str) -> None:
    """A cancel() that raises or does not end keeps no task alive."""

    async def cancel(*_: object) -> None:
        if fault == "raises":
            raise ValueError
        await silent()

    stand, _ = await run(Agent(ask, cancel))
    await stand.cancel()
    working = asyncio.create_task(stand.bench.work())
    await stand.clock.pass_time(11)
    assert await working
    await assert_canceled(stand)


async def test_an_agent_that_swallows_the_cancel_is_overruled() -> None:
    """After the time-out the task is canceled; what its agent still writes is dropped."""
    left: list[asyncio.Event] = []

    async def stubborn(context: RequestContext, queue: EventQueue) -> None:
        for _ in range(100):
            try:
                await stand.clock.sleep(1)
            except asyncio.CancelledError:
                continue
            if left:
                break
        await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "too late"))

    stand = Stand(Agent(stubborn), cancel_timeout_s=10)
    working = await stand.begin(2)
    await stand.storage.request_cancel(stand.task.task_id)
    await stand.clock.pass_time(11.5)
    assert await stand.state() == S.TASK_STATE_CANCELED
    await stand.clock.pass_time(10)
    assert await working
    version = (await stand.head()).version
    left.append(asyncio.Event())
    await stand.clock.pass_time(100)
    assert (await stand.head()).version == version


async def test_what_waits_behind_a_cancel_is_cancelled_at_once() -> None:
    """An agent that swallows it asks nobody, and waits for nothing any more."""
    heard: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        callback = await ctx.callback("form")
        waits: dict[str, Callable[[], Any]] = {
            "ask": lambda: ctx.ask("Which?"),
            "poll": lambda: ctx.poll("job", heard.append, "look"),
            "callback": callback.wait,
        }
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            for name, wait in waits.items():
                with pytest.raises(asyncio.CancelledError):
                    await wait()
                heard.append(name)
            raise

    stand = Stand(handle, public_url="https://agent.example")
    working = await stand.begin(3)
    await stand.cancel()
    await stand.clock.pass_time(2)
    assert await working
    assert heard == ["ask", "poll", "callback"]
    await assert_canceled(stand)


async def test_a_cancel_that_comes_before_the_claim_is_heard_by_it(monkeypatch: Patch) -> None:
    """A cancel between a delivery's read and its claim is heard at the claim, not by the watch."""
    stand = Stand(Agent(silent))
    task = await stand.send()
    await stand.storage.commit(task, Commit(token="dead", claims=True))
    beside(monkeypatch, "read", lambda: stand.storage.request_cancel(task.task_id), when="behind")
    assert await stand.bench.work() is True
    assert stand.clock.monotonic() == 0
    await assert_canceled(stand)

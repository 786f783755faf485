"""Canceling a task: queued, running, paused, and against its agent's will."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskState

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.contract import Storage
from tests.support.messages import request
from tests.support.workers import (
    Agent,
    Bench,
    PacedClock,
    S,
    artifact_texts,
    chunk,
    complete,
    params_of,
    status,
    status_text,
)


async def silent(_context: RequestContext, _queue: EventQueue) -> None:
    await asyncio.Event().wait()


async def ask(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "which?"))


async def publish_canceled(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(status(context, S.TASK_STATE_CANCELED, "stopped by the agent"))


async def assert_canceled(bench: Bench, task_id: str) -> None:
    head = await bench.storage.head(task_id)
    assert head is not None
    assert head.state == S.TASK_STATE_CANCELED
    assert head.due_at is None


async def test_the_agent_of_a_queued_task_never_starts() -> None:
    """A cancel before the start ends the task; its operation finds nothing left."""
    agent = Agent(complete)
    bench = Bench(agent)
    task = await bench.send()
    await bench.cancel(task)
    assert await bench.work()
    await assert_canceled(bench, task.task_id)
    assert await bench.work()
    assert (agent.started, agent.cancelled) == ([], [])
    assert (await bench.head(task)).version == 2


async def test_a_silent_running_agent_is_cancelled() -> None:
    """Within two seconds execute() gets CancelledError, then cancel() is called."""
    clock = PacedClock()
    cleaned = []

    async def tidy(_context: RequestContext, _queue: EventQueue) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaned.append(len(agent.cancelled))
            raise

    agent = Agent(tidy)
    bench = Bench(agent, clock=clock)
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(3)
    await bench.cancel(task)
    await clock.pass_time(2)
    assert await working
    assert cleaned == [0]
    assert agent.cancelled[0].task_id == task.task_id
    assert agent.cancelled[0].message is None
    assert agent.cancelled[0].current_task is not None
    await assert_canceled(bench, task.task_id)


async def test_an_agent_may_cancel_in_its_own_words() -> None:
    """A status that cancel() publishes is the task's end."""
    clock = PacedClock()
    bench = Bench(Agent(silent, publish_canceled), clock=clock)
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(1.5)
    await bench.storage.request_cancel(task.task_id)
    await clock.pass_time(1)
    assert await working
    assert status_text(await bench.task(task)) == "stopped by the agent"


async def test_an_agent_that_emits_hears_a_cancel_at_its_next_commit() -> None:
    """The mark on HEAD refuses the commit; its writer reads it before the watch has looked."""
    clock = PacedClock()
    stopped_at: list[float] = []

    async def emit(context: RequestContext, queue: EventQueue) -> None:
        try:
            while True:
                await queue.enqueue_event(chunk(context, "x"))
                await clock.sleep(0.15)
        except asyncio.CancelledError:
            stopped_at.append(clock.monotonic())
            raise

    bench = Bench(Agent(emit), clock=clock)
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(0.4)
    await bench.storage.request_cancel(task.task_id)
    await clock.pass_time(0.1)
    assert stopped_at == [pytest.approx(0.45)]
    assert await working
    await assert_canceled(bench, task.task_id)
    assert artifact_texts(await bench.task(task)) == {"a": ["x" * 4]}


@pytest.mark.parametrize("end", ["cancel", "fault", "give up"])
async def test_nothing_comes_behind_the_end_that_the_runtime_gives(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of the agent that goes on emitting does not take an ended task back to working."""
    commit = DurableStorage.commit

    async def slow(self: DurableStorage, *args: Any) -> Head:
        for _ in range(20):
            await asyncio.sleep(0)  # the other tasks of the agent emit meanwhile
        return await commit(self, *args)

    monkeypatch.setattr(DurableStorage, "commit", slow)
    emits = asyncio.Event()

    async def emit(context: RequestContext, queue: EventQueue) -> None:
        while True:
            await queue.enqueue_event(status(context, S.TASK_STATE_WORKING, "tick"))
            emits.set()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        emitting.append(asyncio.create_task(emit(context, queue)))
        await emits.wait()
        if end == "fault":
            return
        if end == "give up":
            raise RuntimeError
        await asyncio.Event().wait()

    emitting: list[asyncio.Task[None]] = []
    clock = PacedClock()
    bench = Bench(Agent(execute), clock=clock, max_attempts=1)
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await emits.wait()
    if end == "cancel":
        await bench.storage.request_cancel(task.task_id)
    await clock.pass_time(2)
    assert await working
    log = await bench.storage.read(task.task_id)
    assert log is not None
    states = [
        e.status.state for r in log.records for e in r.entries if isinstance(e, StatusChanged)
    ]
    wanted = S.TASK_STATE_CANCELED if end == "cancel" else S.TASK_STATE_FAILED
    assert (states[-1], states.count(wanted), log.head.state) == (wanted, 1, wanted)


async def test_a_paused_task_is_cancelled_by_its_operation() -> None:
    """cancel() is called for a task that waits for input, then the task is canceled."""
    agent = Agent(ask)
    bench = Bench(agent)
    task = await bench.send()
    assert await bench.work()
    await bench.cancel(task)
    assert await bench.work()
    assert len(agent.cancelled) == 1
    assert agent.cancelled[0].current_task is not None
    assert agent.cancelled[0].current_task.status.state == S.TASK_STATE_INPUT_REQUIRED
    await assert_canceled(bench, task.task_id)
    assert [m.parts[0].text for m in (await bench.task(task)).history] == ["hello", "which?"]


async def test_the_cancel_of_a_paused_task_is_acknowledged_with_its_end() -> None:
    """What cancel() emits before it acknowledges nothing: a worker may die until the end."""
    left = list[Any]()

    async def undo(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "undone", append=False))
        while (await bench.head(task)).version == paused.version:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        left.extend(await operations.waiting())

    bench = Bench(Agent(ask, undo), has_heartbeat=True)
    operations: Any = bench.operations
    task = await bench.send()
    assert await bench.work()
    paused = await bench.head(task)
    await bench.cancel(task)
    assert await bench.work()
    await assert_canceled(bench, task.task_id)
    assert (len(left), await operations.waiting()) == (1, [])


async def test_a_turn_of_a_dead_worker_is_cancelled_by_its_operation() -> None:
    """The cancel takes the turn over, so that a worker that still lives is fenced."""
    agent = Agent(complete, publish_canceled)
    bench = Bench(agent)
    task = (await bench.storage.open_task("ctx", request("hello"))).head
    await bench.storage.commit(task, Commit(token="dead", claims=True))
    await bench.cancel(task)
    assert await bench.work()
    await assert_canceled(bench, task.task_id)


@pytest.mark.parametrize("fault", ["raises", "hangs"])
async def test_a_task_is_cancelled_whatever_its_agent_does(fault: str) -> None:
    """A cancel() that raises or does not end keeps no task alive."""
    clock = PacedClock()

    async def cancel(_context: RequestContext, _queue: EventQueue) -> None:
        if fault == "raises":
            raise ValueError
        await asyncio.Event().wait()

    bench = Bench(Agent(ask, cancel), clock=clock)
    task = await bench.send()
    assert await bench.work()
    await bench.cancel(task)
    working = asyncio.create_task(bench.work())
    await clock.pass_time(11)
    assert await working
    await assert_canceled(bench, task.task_id)


async def test_an_agent_that_swallows_the_cancel_is_overruled() -> None:
    """After the time-out the task is canceled; what its agent still writes is dropped."""
    clock = PacedClock()
    left: list[asyncio.Event] = []

    async def stubborn(context: RequestContext, queue: EventQueue) -> None:
        for _ in range(100):
            try:
                await clock.sleep(1)
            except asyncio.CancelledError:
                continue
            if left:
                break
        await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "too late"))

    bench = Bench(Agent(stubborn), clock=clock, cancel_timeout_s=10)
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(2)
    await bench.storage.request_cancel(task.task_id)
    await clock.pass_time(11.5)
    await assert_state(bench, task.task_id, S.TASK_STATE_CANCELED)
    await clock.pass_time(10)
    assert await working
    version = (await bench.head(task)).version
    left.append(asyncio.Event())
    await clock.pass_time(100)
    assert (await bench.head(task)).version == version


async def assert_state(bench: Bench, task_id: str, state: TaskState) -> None:
    head = await bench.storage.head(task_id)
    assert head is not None
    assert head.state == state


async def test_a_task_that_somebody_else_ended_stops_its_agent() -> None:
    """The API's own cancellation is seen within two seconds; nothing is written after it."""
    clock = PacedClock()
    agent = Agent(silent)
    bench = Bench(agent, clock=clock)
    task = await bench.send()
    working = asyncio.create_task(bench.work())
    await clock.pass_time(2)
    await Storage(bench.storage).update_task(task.task_id, S.TASK_STATE_CANCELED)
    version = (await bench.head(task)).version
    await clock.pass_time(2)
    assert await working
    assert (await bench.head(task)).version == version
    assert agent.cancelled == []


async def test_a_cancel_of_an_ended_task_does_nothing() -> None:
    """The operation of a cancel that came too late leaves the task as it is."""
    agent = Agent(complete)
    bench = Bench(agent)
    task = await bench.send()
    assert await bench.work()
    before = await bench.head(task)
    await bench.operations.send(Operation.to_cancel(params_of(task)))
    assert await bench.work()
    assert await bench.head(task) == before
    assert agent.cancelled == []

"""What an agent starts in the background of a turn ends with the turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from tests.support.clocks import ManualClock
from tests.support.workers import Agent, Bench, S, complete, status

WAIT_S = 30

Work = Callable[[], Awaitable[None]]


class Background:
    """A piece of an agent's work, and how it ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def forever(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended.append("forever")
            raise

    def start(self, **options: Any) -> None:
        self.tasks.append(asyncio.create_task(self.forever(), **options))

    async def start_below(self) -> None:
        """A sub-agent that starts it in turn, and goes."""
        await asyncio.gather(self._sub_agent(), self._sub_agent())

    async def _sub_agent(self) -> None:
        self.start()


class Starting(Worker):
    """A Worker that leaves work behind."""

    def __init__(self, leave: Callable[[], Awaitable[None]]) -> None:
        self._leave = leave

    async def handle(self, ctx: TaskContext) -> None:
        await self._leave()
        await asyncio.sleep(0)
        await ctx.respond("done")


def executor(leave: Work) -> AgentExecutor:
    """The same as an executor of the SDK."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await leave()
        await asyncio.sleep(0)
        await complete(context, queue)

    return Agent(execute)


def worker(leave: Work) -> AgentExecutor:
    return WorkerExecutor(Starting(leave))


def lines(caplog: pytest.LogCaptureFixture, action: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if vars(record).get("action") == action]


@pytest.mark.parametrize(("kind", "place"), [(worker, "itself"), (executor, "sub-agents")])
async def test_background_tasks_end_with_the_turn(
    kind: Callable[[Work], AgentExecutor], place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The turn completes, its tasks are cancelled, and one line of the log names them."""
    work = Background()

    async def leave() -> None:
        work.start() if place == "itself" else await work.start_below()

    bench = Bench(kind(leave))
    head = await bench.send()
    async with asyncio.timeout(WAIT_S):
        assert await bench.work()
    assert (await bench.head(head)).state == S.TASK_STATE_COMPLETED
    assert [task.cancelled() for task in work.tasks] == [True] * len(work.tasks)
    (line,) = lines(caplog, "background_tasks_ended")
    assert line.getMessage().endswith(": Background.forever")
    assert (vars(line)["task_id"], vars(line)["turn"]) == (head.task_id, 1)


async def test_the_next_turn_begins_behind_the_end_of_what_was_started() -> None:
    """No code of a turn runs beside that of the task's next turn, which a quick client opens."""
    is_ending, may_end = asyncio.Event(), asyncio.Event()
    tidied = list[bool]()

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_ending.set()
            await may_end.wait()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.current_task is None:
            asyncio.create_task(tidy())  # noqa: RUF006 - the turn ends it
            await asyncio.sleep(0)
            await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED))
        else:
            tidied.append(may_end.is_set())
            await complete(context, queue)

    bench = Bench(Agent(execute), has_heartbeat=True)
    task = await bench.send()
    async with asyncio.timeout(WAIT_S):
        first = asyncio.create_task(bench.work())
        await is_ending.wait()
        await bench.follow_up(await bench.head(task), "next")
        second = asyncio.create_task(bench.work())
        await asyncio.sleep(0.2)
        may_end.set()
        assert await first
        assert await second
    assert tidied == [True]


async def test_a_task_of_the_process_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """A task with a context of its own is not the turn's: so a shared client keeps its tasks."""
    work = Background()

    async def leave() -> None:
        work.start(context=Context())

    bench = Bench(executor(leave))
    await bench.send()
    async with asyncio.timeout(WAIT_S):
        assert await bench.work()
    assert (work.ended, work.tasks[0].done()) == ([], False)
    assert lines(caplog, "background_tasks_ended") == []
    work.tasks[0].cancel()


async def test_a_task_that_does_not_stop_is_left_behind_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After five seconds of refusals the delivery ends all the same, and the log says so."""
    clock, refusing = ManualClock(), asyncio.Event()

    async def refuse() -> None:
        while not refusing.is_set():
            try:
                await refusing.wait()
            except asyncio.CancelledError:
                continue

    tasks: list[asyncio.Task[None]] = []

    async def leave() -> None:
        tasks.append(asyncio.create_task(refuse()))

    bench = Bench(executor(leave), clock=clock)
    head = await bench.send()
    async with asyncio.timeout(WAIT_S):
        assert await bench.work()
    assert (await bench.head(head)).state == S.TASK_STATE_COMPLETED
    assert len(lines(caplog, "agent_left_behind")) == 1
    refusing.set()
    await asyncio.gather(*tasks)

"""What an agent starts in the background of a turn ends with the turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar
from typing import Any

import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from tests.support.clocks import ManualClock
from tests.support.workers import Agent, Bench, S, artifact_texts, chunk, complete, status

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


@pytest.mark.parametrize("kind", [worker, executor])
@pytest.mark.parametrize("place", ["itself", "sub-agents"])
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


async def test_a_failed_attempt_leaves_nothing_to_the_next_one() -> None:
    """The tasks of an attempt have ended when the next one begins."""
    work, alive = Background(), list[int]()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        alive.append(sum(not task.done() for task in work.tasks))
        work.start()
        await asyncio.sleep(0)
        raise ValueError

    bench = Bench(Agent(execute), retry_base_s=0)
    await bench.send()
    async with asyncio.timeout(WAIT_S):
        assert [await bench.work() for _ in range(3)] == [False, False, True]
    assert alive == [0, 0, 0]
    assert len(work.ended) == 3


async def test_what_a_cancel_starts_ends_with_it() -> None:
    """`cancel()` of a paused task may start tasks too; they do not outlast it."""
    work = Background()

    async def pause(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED))

    async def cancel(context: RequestContext, queue: EventQueue) -> None:
        work.start()
        await asyncio.sleep(0)

    bench = Bench(Agent(pause, cancel))
    head = await bench.send()
    async with asyncio.timeout(WAIT_S):
        await bench.work()
        await bench.cancel(head)
        assert await bench.work()
    assert (await bench.head(head)).state == S.TASK_STATE_CANCELED
    assert work.ended == ["forever"]


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


async def test_turns_beside_each_other_end_their_own_tasks() -> None:
    """A turn's end touches no task of another turn that runs in the same process."""
    mine, others = Background(), Background()
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.get_user_input() == "first":
            mine.start()
        else:
            others.start()
            has_begun.set()
            await may_end.wait()
        await asyncio.sleep(0)
        await complete(context, queue)

    bench = Bench(Agent(execute))
    first, second = await bench.send("first"), await bench.send("second")
    deliveries = {h.message.params.task_id: h for h in [await bench.deliver() for _ in range(2)]}
    async with asyncio.timeout(WAIT_S):
        slow = asyncio.create_task(bench.adapter.process(deliveries[second.task_id]))
        await has_begun.wait()
        assert await bench.adapter.process(deliveries[first.task_id])
        assert (mine.ended, others.ended) == (["forever"], [])
        may_end.set()
        assert await slow
    assert others.ended == ["forever"]


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


async def test_a_context_variable_ends_with_its_turn() -> None:
    """A context variable that a turn's task sets is not set in the next turn."""
    tenant = ContextVar[str]("tenant", default="")
    seen: list[str] = []

    async def leave() -> None:
        seen.append(tenant.get())
        tenant.set("alice's")

    bench = Bench(executor(leave))
    async with asyncio.timeout(WAIT_S):
        for _ in range(2):
            await bench.send()
            assert await bench.work()
    assert seen == ["", ""]


async def test_what_the_agent_waits_for_is_not_touched(caplog: pytest.LogCaptureFixture) -> None:
    """Concurrent work that is over with the turn, also in threads that emit, is not named."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        loop = asyncio.get_running_loop()

        def in_a_thread() -> None:
            emitting = queue.enqueue_event(chunk(context, "from a thread"))
            asyncio.run_coroutine_threadsafe(emitting, loop).result(WAIT_S)

        await asyncio.gather(asyncio.to_thread(in_a_thread), asyncio.sleep(0))
        await complete(context, queue)

    bench = Bench(Agent(execute))
    head = await bench.send()
    async with asyncio.timeout(WAIT_S):
        assert await bench.work()
    assert artifact_texts(await bench.task(head)) == {"a": ["from a thread"]}
    assert lines(caplog, "background_tasks_ended") == []


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


async def test_a_task_that_starts_another_at_its_end_is_ended_with_it() -> None:
    """No task is missed because the end of another has started it."""
    work = Background()

    async def passes_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            work.start()

    async def leave() -> None:
        work.tasks.append(asyncio.create_task(passes_on()))

    bench = Bench(executor(leave))
    await bench.send()
    async with asyncio.timeout(WAIT_S):
        assert await bench.work()
    assert [task.done() for task in work.tasks] == [True, True]

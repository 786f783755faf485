"""An agent that wants to end the process ends its attempt, and nothing else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import cycle
from typing import Any, NoReturn

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.head import Operation
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.failures import AgentFailedError
from a2a_serverless.worker.function import WorkerFunction
from a2a_serverless.worker.loops import contained, prepare_loop, run_to_end
from tests.support.messages import request
from tests.support.queues import take
from tests.support.workers import Agent, Bench, PacedClock, S, complete, params_of

WAIT_S = 30
Exits = Callable[[], Awaitable[None]]
Place = Callable[[Any], Awaitable[None]]


async def exits() -> NoReturn:
    await asyncio.sleep(0)
    sys.exit(3)


async def interrupts() -> NoReturn:
    await asyncio.sleep(0)
    raise KeyboardInterrupt


async def in_a_task(call: Exits) -> None:
    await asyncio.ensure_future(call())


async def in_gather(call: Exits) -> None:
    await asyncio.gather(call(), asyncio.sleep(0))


async def in_a_group(call: Callable[[], Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(call())


async def in_a_grandchild(call: Exits) -> None:
    await asyncio.create_task(in_a_task(call))


async def in_itself(call: Exits) -> None:
    await call()


async def in_silence(call: Exits) -> None:
    await asyncio.gather(call(), return_exceptions=True)


PLACES = [in_itself, in_a_task, in_gather, in_a_group, in_a_grandchild, in_silence]


@pytest.mark.parametrize(
    ("place", "call", "caught"),
    [*zip(PLACES, cycle([exits, interrupts]), cycle([Exception, Exception, ()]), strict=False)],
)
async def test_an_exit_anywhere_in_an_agent_is_a_failed_attempt(
    place: Place, call: Exits, caught: Any
) -> None:
    """The turn is tried again, and a turn of another task beside it is not touched."""
    healthy = asyncio.Event()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.get_user_input() == "exit":
            with suppress(caught):
                await place(call)
            await complete(context, queue)
        await healthy.wait()
        await complete(context, queue)

    agent = Agent(execute)
    bench = Bench(agent, retry_base_s=0.001)
    bad, good = await bench.send("exit"), await bench.send("work")
    async with asyncio.timeout(WAIT_S):
        neighbour = asyncio.create_task(bench.adapter.process(await _of(bench, good.task_id)))
        for attempt in (1, 2, 3):
            assert await bench.work() is (attempt == 3)
        healthy.set()
        assert await neighbour
    assert ((await bench.head(bad)).state, (await bench.head(bad)).turn.attempts) == (
        S.TASK_STATE_FAILED,
        3,
    )
    ended = [record.ended.reason for record in await bench.records(bad) if record.ended]
    assert ended == ["SystemExit" if call is exits else "KeyboardInterrupt"] * 3
    now = await bench.head(good)
    assert (now.state, now.turn.attempts) == (S.TASK_STATE_COMPLETED, 1)


async def test_an_exit_does_not_hold_up_a_cancel() -> None:
    """Neither in `execute()`, which is being cancelled, nor in `cancel()`: the task is canceled."""

    async def execute(_: RequestContext, __: EventQueue) -> None:
        try:
            await bench.storage.request_cancel(task.task_id)
            await asyncio.Event().wait()
        finally:
            await in_silence(exits)

    async def cancel(_: RequestContext, __: EventQueue) -> None:
        await in_a_task(interrupts)

    clock = PacedClock()
    bench = Bench(Agent(execute, cancel), clock=clock)
    task = await bench.send("work")
    working = asyncio.create_task(bench.work())
    await clock.pass_time(3)
    async with asyncio.timeout(WAIT_S):
        assert await working
    assert (await bench.head(task)).state == S.TASK_STATE_CANCELED


async def _of(bench: Bench, task_id: str) -> Any:
    """The delivery of a task; others are given back."""
    while (handle := await bench.deliver()).message.params.task_id != task_id:
        await handle.nack(delay_s=0.01)
    return handle


@pytest.mark.parametrize(
    ("ends", "action"), [(sys.exit, "exit_in_callback"), (None, "loop_stopped")]
)
def test_an_end_of_the_loop_does_not_end_the_function(
    ends: Callable[[], None] | None, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An exit in a callback, or a stopped loop, is logged; both turns of the batch complete."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.get_user_input() == "exit":
            loop = asyncio.get_running_loop()
            loop.call_soon(ends or loop.stop)
        for _ in range(3):
            await asyncio.sleep(0)
        await complete(context, queue)

    settings = Settings()
    backends = memory_backends(settings)
    function = WorkerFunction(backends, Agent(execute), settings)

    async def records() -> list[dict[str, Any] | None]:
        made = []
        for text in ("exit", "work"):
            opened = await backends.storage.open_task("ctx", request(text))
            await backends.operations.send(Operation.to_run(params_of(opened.head)))
            assert isinstance(backends.operations, TableQueue)
            made.append(take(backends.operations))
        return made

    try:
        event = {"Records": asyncio.run(records())}
        assert function.handle(event, None) == {"batchItemFailures": []}
    finally:
        function.close()
    assert action in [r.__dict__.get("action") for r in caplog.records]


def test_an_exit_of_the_work_itself_is_passed_on() -> None:
    """An exit of the runtime's own work ends the process."""

    async def work() -> None:
        sys.exit(4)

    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(SystemExit, match="4"):
            run_to_end(loop, work())
    finally:
        loop.close()


def test_an_exit_after_the_work_is_none_of_the_work() -> None:
    """A callback that raises when the work has just ended does not take its answer away."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()

        async def work() -> str:
            loop.call_soon(sys.exit, 7)  # runs before the loop is told that the work has ended
            return "done"

        assert run_to_end(loop, work()) == "done"


def test_a_stop_that_is_meant_is_passed_on() -> None:
    """The testing kit kills a process by stopping its loop."""
    loop = asyncio.new_event_loop()

    async def work() -> None:
        loop.stop()
        await asyncio.sleep(0)

    try:
        with pytest.raises(RuntimeError, match="stopped"):
            run_to_end(loop, work(), may_stop=lambda: True)
        assert run_to_end(loop, work()) is None
    finally:
        loop.close()


async def test_tasks_of_the_runtime_are_not_wrapped() -> None:
    """The task factory wraps only tasks of agents, and calls the factory before it."""
    loop = asyncio.get_running_loop()
    made: list[Any] = []

    def noting(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Future[Any]:
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **options)

    loop.set_task_factory(noting)
    try:
        prepare_loop(loop)
        prepare_loop(loop)
        own = asyncio.sleep(0)
        await asyncio.create_task(own)
        assert made == [own]
        with pytest.raises(AgentFailedError, match=r"sys\.exit"):
            await asyncio.create_task(contained(in_a_task(exits)))
        assert made[-1].__qualname__ == "exits"
    finally:
        loop.set_task_factory(None)

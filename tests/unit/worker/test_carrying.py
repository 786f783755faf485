"""Context variables around the agent: on every attempt, in every turn, in its own context alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.tasks.entries import Caller, TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from tests.support.messages import request
from tests.support.workers import Agent, Bench, PacedClock, S, complete, status

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="unset")
NAME = f"{__name__}:REQUEST_ID"
Seen = list[tuple[str, str]]


def caller(request_id: str) -> Caller:
    return Caller(variables=json.dumps({NAME: request_id}))


class Noting(Agent):
    """Notes the variable in `execute()` and in `cancel()`."""

    def __init__(self, execute: Callable[[RequestContext, EventQueue], Awaitable[None]]) -> None:
        super().__init__(execute)
        self.seen: Seen = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.seen.append(("execute", REQUEST_ID.get()))
        REQUEST_ID.set("the agent's own")
        await super().execute(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.seen.append(("cancel", REQUEST_ID.get()))
        REQUEST_ID.set("the agent's own")
        await super().cancel(context, event_queue)


def bench_of(agent: Any, **options: Any) -> Bench:
    return Bench(agent, context_variables=NAME, retry_base_s=0, **options)


async def ask(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "which?"))


async def silent(_context: RequestContext, _queue: EventQueue) -> None:
    await asyncio.Event().wait()


async def answered(bench: Bench, task: Head, who: Caller) -> None:
    """A follow-up of another caller, enqueued."""
    opened = TurnOpened(request("that one"), who)
    head = await bench.storage.commit(await bench.head(task), Commit(entries=(opened,)))
    await bench.enqueue(head)


async def test_every_attempt_sees_the_turns_value() -> None:
    """Each attempt sees the turn's value, also after an exception and after a dead worker."""

    async def third_time(context: RequestContext, queue: EventQueue) -> None:
        if len(agent.started) < 3:
            raise ValueError
        await complete(context, queue)

    agent = Noting(third_time)
    bench = bench_of(agent, max_attempts=9)
    task = await bench.send(caller=caller("r1"))
    assert not await bench.work()
    assert not await bench.work()
    await bench.storage.commit(await bench.head(task), Commit(token="dead", claims=True))
    assert await bench.work()
    assert agent.seen == [("execute", "r1")] * 3
    assert (await bench.head(task)).state == S.TASK_STATE_COMPLETED


async def test_each_turn_has_its_own_value() -> None:
    """A follow-up brings its own; one without a value finds nothing of the turn before it."""
    agent = Noting(ask)
    bench = bench_of(agent)
    task = await bench.send(caller=caller("r1"))
    assert await bench.work()
    for who in (caller("r2"), Caller()):
        await answered(bench, task, who)
        assert await bench.work()
    assert agent.seen == [("execute", "r1"), ("execute", "r2"), ("execute", "unset")]
    assert REQUEST_ID.get() == "unset"


async def test_turns_at_the_same_time_do_not_see_each_other() -> None:
    """Two tasks of one worker, each with its own value while both run."""
    both = asyncio.Barrier(2)

    async def together(context: RequestContext, queue: EventQueue) -> None:
        await both.wait()
        await complete(context, queue)

    agent = Noting(together)
    bench = bench_of(agent)
    for request_id in ("r1", "r2"):
        await bench.send(caller=caller(request_id))
    assert all(await asyncio.gather(bench.work(), bench.work()))
    assert sorted(agent.seen) == [("execute", "r1"), ("execute", "r2")]


async def test_cancel_of_a_running_turn_sees_the_turns_value() -> None:
    """`cancel()` sees the value that the message brought, not what `execute()` made of it."""
    clock = PacedClock()
    agent = Noting(silent)
    bench = bench_of(agent, clock=clock)
    task = await bench.send(caller=caller("r1"))
    working = asyncio.create_task(bench.work())
    await clock.pass_time(1.5)
    await bench.storage.request_cancel(task.task_id)
    await clock.pass_time(2)
    assert await working
    assert agent.seen == [("execute", "r1"), ("cancel", "r1")]


async def test_cancel_of_a_paused_task_sees_the_last_turns_value() -> None:
    """A cancel operation runs in whatever process gets it: the value comes from the log."""
    bench = bench_of(Agent(ask))
    task = await bench.send(caller=caller("r1"))
    assert await bench.work()
    await answered(bench, task, caller("r2"))
    assert await bench.work()
    await bench.cancel(task)
    agent = Noting(ask)
    assert await bench_of(agent, backends=bench.backends).work()
    assert agent.seen == [("cancel", "r2")]


async def test_a_turn_that_waited_behind_another_has_its_own_value() -> None:
    """A message that came while an agent waited for credentials runs next, in its own context."""
    clock = PacedClock()

    async def wait_out_of_band(context: RequestContext, queue: EventQueue) -> None:
        if context.get_user_input() == "hello":
            await queue.enqueue_event(status(context, S.TASK_STATE_AUTH_REQUIRED, "log in"))
            await clock.sleep(5)
            await ask(context, queue)
        else:
            await complete(context, queue)

    agent = Noting(wait_out_of_band)
    bench = bench_of(agent, clock=clock)
    task = await bench.send(caller=caller("r1"))
    working = asyncio.create_task(bench.work())
    await clock.pass_time(1)
    await bench.storage.commit(
        await bench.head(task), Commit(entries=(TurnOpened(request("here"), caller("r2")),))
    )
    await clock.pass_time(6)
    assert await working
    await bench.enqueue(await bench.head(task))
    assert await bench.work()
    assert agent.seen == [("execute", "r1"), ("execute", "r2")]


async def test_a_worker_class_sees_it_too() -> None:
    """`Worker.handle`, and the tasks and threads that it starts."""
    seen = []

    class Reading(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            seen.append(await asyncio.create_task(asyncio.to_thread(REQUEST_ID.get)))
            await ctx.respond(REQUEST_ID.get())

    bench = bench_of(WorkerExecutor(Reading()))
    task = await bench.send(caller=caller("r1"))
    assert await bench.work()
    assert seen == ["r1"]
    assert (await bench.task(task)).status.message.parts[0].text == "r1"


async def test_a_worker_without_the_setting_runs_the_turn() -> None:
    """While a release comes in, the API may be ahead of the worker: the value is left out."""
    agent = Noting(complete)
    bench = Bench(agent)
    task = await bench.send(caller=caller("r1"))
    assert await bench.work()
    assert agent.seen == [("execute", "unset")]
    assert (await bench.head(task)).state == S.TASK_STATE_COMPLETED

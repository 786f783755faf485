"""The Worker API: what a TaskContext shows and what its methods make of the task."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from doctest import DocTestParser
from types import FunctionType
from typing import Any, cast

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import Part, SendMessageConfiguration, SendMessageRequest, Task

from a2a_serverless.clock import SystemClock
from a2a_serverless.tasks.entries import Caller, TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import Remote, TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor, active_turn
from a2a_serverless.worker.outbox import FLUSH_BYTES
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.testing import StandIn
from tests.support.messages import request
from tests.support.workers import (
    Agent,
    Bench,
    S,
    artifact_texts,
    complete,
    status,
    status_text,
    user_request,
)
from tests.unit.worker.test_steps import Handle, Script


def public_methods(kind: type) -> list[str]:
    """The names of the methods that an agent calls, or writes."""
    members = inspect.getmembers(kind, inspect.isfunction)
    return [name for name, _ in members if not name.startswith("_")]


async def run(handle: Handle, request: SendMessageRequest | None = None) -> tuple[Bench, Task]:
    """The task after one turn."""
    address = "https://agent.example"
    bench = Bench(WorkerExecutor(Script(handle)), retry_base_s=0, public_url=address)
    opened = await bench.storage.open_task(
        "ctx",
        request or user_request(Part(text="hello")),
        caller=Caller("ann", "acme", ("urn:x",)),
    )
    await bench.enqueue(opened.head)
    assert await bench.work()
    return bench, await bench.task(opened.head)


async def test_the_output_types_a_client_takes() -> None:
    """A client that names output types takes those; one that names none takes all."""
    seen = []

    async def handle(ctx: TaskContext) -> None:
        seen.append((ctx.accepts("text/plain"), ctx.accepts("image/png")))
        await ctx.respond()

    await run(handle)
    request = user_request(Part(text="x"))
    request.configuration.CopyFrom(SendMessageConfiguration(accepted_output_modes=["text/plain"]))
    await run(handle, request)
    assert seen == [(True, True), (True, False)]


def ran(method: Callable[..., Any], names: dict[str, Any]) -> Any:
    """What the example in a docstring makes of `names`; a coroutine if it awaits something."""
    examples = DocTestParser().get_examples(inspect.getdoc(method) or "")
    assert examples
    source = "".join(example.source for example in examples)
    return FunctionType(compile(source, "example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)()


@pytest.mark.parametrize("name", public_methods(TaskContext))
async def test_the_example_of_a_method_runs(name: str) -> None:
    """The examples in the docstrings of TaskContext's methods run as they stand."""

    async def handle(ctx: TaskContext) -> None:
        books = StandIn("books", lambda _: "a book", SystemClock())
        active_turn(ctx).agents = {"books": cast("Remote", books)}
        made = ran(getattr(TaskContext, name), {"ctx": ctx})
        if inspect.isawaitable(made):
            await made
        if not ctx.turn_ended:
            await ctx.respond()

    _, task = await run(handle)
    assert (task.status.state == S.TASK_STATE_FAILED) is (name == "fail")


@pytest.mark.parametrize("name", public_methods(Worker))
async def test_the_example_of_a_worker_runs(name: str) -> None:
    """The examples in the docstrings of Worker's methods run."""
    deleted: list[str] = []

    class Jobs:
        async def delete(self, task_id: str) -> None:
            deleted.append(task_id)

    class Example(Script):
        jobs = Jobs()

    names: dict[str, Any] = {}
    ran(getattr(Worker, name), names)
    setattr(Example, name, names[name])

    async def handle(ctx: TaskContext) -> None:
        await getattr(Example(TaskContext.respond), name)(ctx)
        if not ctx.turn_ended:
            await ctx.respond()

    _, task = await run(handle)
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert deleted == ([task.id] if name == "cancel" else [])


WRONG_ENDINGS: dict[str, Callable[[Any], Awaitable[None]]] = {
    "emit_artifact": lambda ctx: ctx.emit_artifact(artifact_id="x"),
    "update_context": lambda ctx: ctx.update_context(object()),
    "request_auth": lambda ctx: ctx.request_auth("Log in", schemes=[object()]),
    "complete": lambda ctx: ctx.complete(42),
    "complete_json": lambda ctx: ctx.complete_json(object()),
    "complete_json with a large number": lambda ctx: ctx.complete_json(10**400),
    "respond": lambda ctx: ctx.respond(42),
    "reply_directly": lambda ctx: ctx.reply_directly(42),
    "request_input": lambda ctx: ctx.request_input(42),
    "request_input with data": lambda ctx: ctx.request_input("which?", object()),
    "reject": lambda ctx: ctx.reject(42),
    "fail": lambda ctx: ctx.fail(42),
}


@pytest.mark.parametrize("wrong", WRONG_ENDINGS)
async def test_an_ending_that_cannot_be_made_is_none(wrong: str) -> None:
    """A wrong argument raises before anything is ended: the worker may still end its turn."""

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises((TypeError, ValueError)):
            await WRONG_ENDINGS[wrong](ctx)
        assert not ctx.turn_ended
        await ctx.fail("I could not say it")

    _, task = await run(handle)
    assert (task.status.state, status_text(task)) == (S.TASK_STATE_FAILED, "I could not say it")
    assert not task.artifacts


async def test_the_state_may_be_stored_more_than_once() -> None:
    """The last value is stored, once, whatever the turn has committed in between."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.load_context()
        for n in range(3):
            await ctx.update_context(n)
            await ctx.emit_text_artifact("x" * FLUSH_BYTES, str(n))
        await ctx.respond()

    bench, task = await run(handle)
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert await bench.storage.contexts.load("ctx") == (2, 1)


async def test_a_worker_is_told_of_a_cancel() -> None:
    """`Worker.cancel` runs with the task's context; without one of its own nothing happens."""
    told = []

    class Tidy(Script):
        async def cancel(self, ctx: TaskContext) -> None:
            told.append((ctx.task_id, ctx.is_cancelled, ctx.user_text))

    bench = Bench(WorkerExecutor(Tidy(lambda ctx: ctx.request_input("?"))))
    head = await bench.send()
    assert await bench.work()
    await bench.cancel(head)
    assert await bench.work()
    assert told == [(head.task_id, True, "")]
    assert (await bench.task(head)).status.state == S.TASK_STATE_CANCELED


@pytest.mark.parametrize("is_stale", [True, False])
async def test_a_cancel_is_one_whatever_the_state_is(*, is_stale: bool) -> None:
    """A `cancel` that ends the task otherwise ends it with its state, if that is not stale."""

    class Completing(Script):
        async def cancel(self, ctx: TaskContext) -> None:
            await ctx.load_context()
            if is_stale:
                await Storage(bench.storage).update_context("ctx", "another's")
            await ctx.update_context("mine")
            await ctx.complete("too late")

    bench = Bench(WorkerExecutor(Completing(lambda ctx: ctx.request_input("?"))))
    head = await bench.send()
    assert await bench.work()
    await bench.cancel(head)
    assert await bench.work()
    task = await bench.task(head)
    assert task.status.state == (S.TASK_STATE_CANCELED if is_stale else S.TASK_STATE_COMPLETED)
    assert artifact_texts(task) == ({} if is_stale else {"final-answer": ["too late"]})
    assert await Storage(bench.storage).load_context("ctx") == ("another's" if is_stale else "mine")


async def test_a_turn_merges_its_state_with_anothers() -> None:
    """`merge` gets the state that is stored, each time that it has changed, and the turn's own."""
    merged: list[list[str]] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.load_context()
        await Storage(bench.storage).update_context("ctx", ["first"])
        await ctx.update_context(["mine"], merge=merge)
        await ctx.complete("done")

    def merge(stored: list[str], own: list[str]) -> list[str]:
        merged.append(stored)
        return stored + own

    bench = Bench(WorkerExecutor(Script(handle)), max_attempts=1)
    head = await bench.send()
    assert await bench.work()
    assert (await bench.task(head)).status.state == S.TASK_STATE_COMPLETED
    assert merged == [["first"]]
    assert await Storage(bench.storage).load_context("ctx") == ["first", "mine"]


@pytest.mark.parametrize(
    ("merge", "sentence"),
    [
        (lambda _, __: 1 / 0, "ZeroDivisionError"),
        (lambda _, __: {1}, "must be a JSON value"),
        (lambda _, __: {1: "a", "1": "b"}, "Two keys of a context's state are '1' as text"),
        (asyncio.sleep, "`merge=lambda stored, own:"),
    ],
)
async def test_a_merge_that_fails(
    merge: Any, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The task fails, as for any other error of the agent, and the stored state stays."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.load_context()
        await Storage(bench.storage).update_context("ctx", "another's")
        await ctx.update_context("mine", merge=merge)
        await ctx.complete()

    bench = Bench(WorkerExecutor(Script(handle)), max_attempts=1)
    head = await bench.send()
    assert await bench.work()
    task = await bench.task(head)
    assert task.status.state == S.TASK_STATE_FAILED
    assert sentence in caplog.text
    assert await Storage(bench.storage).load_context("ctx") == "another's"


@pytest.mark.parametrize("ends_in", ["handle", "cancel"])
async def test_a_running_agents_stale_end_is_a_cancel(ends_in: str) -> None:
    """A canceled agent that ends otherwise with a stale state is canceled all the same."""

    class Completing(Script):
        async def cancel(self, ctx: TaskContext) -> None:
            if ends_in == "cancel":
                await ctx.complete("too late")

    async def handle(ctx: TaskContext) -> None:
        await ctx.load_context()
        await ctx.update_context("mine")
        await Storage(bench.storage).update_context("ctx", "another's")
        await bench.storage.request_cancel(ctx.task_id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends_in == "handle":
                await ctx.complete("too late")
            raise

    bench = Bench(WorkerExecutor(Completing(handle)), max_attempts=1)
    head = await bench.send()
    assert await bench.work()
    assert (await bench.task(head)).status.state == S.TASK_STATE_CANCELED
    assert await Storage(bench.storage).load_context("ctx") == "another's"


async def test_a_worker_needs_this_runtime() -> None:
    """A Worker that gets another queue than this runtime's fails its task."""
    executor = WorkerExecutor(Script(lambda ctx: ctx.respond()))
    agent = Agent(lambda context, _queue: executor.execute(context, object()))  # type: ignore[arg-type]
    bench = Bench(agent, max_attempts=1)
    head = await bench.send()
    assert await bench.work()
    assert (await bench.task(head)).status.state == S.TASK_STATE_FAILED


# -- context variables of a message --------------------------------------------------------------

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


async def test_a_worker_without_the_setting_runs_the_turn() -> None:
    """While a release comes in, the API may be ahead of the worker: the value is left out."""
    agent = Noting(complete)
    bench = Bench(agent)
    task = await bench.send(caller=caller("r1"))
    assert await bench.work()
    assert agent.seen == [("execute", "unset")]
    assert (await bench.head(task)).state == S.TASK_STATE_COMPLETED

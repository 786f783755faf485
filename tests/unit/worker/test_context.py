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
from a2a.types import Part, SendMessageRequest

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
from tests.support.workers import Agent, S, user_request
from tests.unit.worker.stand import Handle, Log, Script, Stand, ask, run


def public_methods(kind: type) -> list[str]:
    """The names of the methods that an agent calls, or writes."""
    members = inspect.getmembers(kind, inspect.isfunction)
    return [name for name, _ in members if not name.startswith("_")]


async def sent(handle: Handle, message: SendMessageRequest | None = None) -> tuple[Stand, Head]:
    """A task behind one turn for a caller's message."""
    stand = Stand(handle, clock=SystemClock(), public_url="https://agent.example")
    opened = await stand.storage.open_task(
        "ctx", message or user_request(Part(text="hello")), caller=Caller("ann", "acme", ("urn:x",))
    )
    stand.task = opened.head
    await stand.bench.enqueue(opened.head)
    assert await stand.bench.work()
    return stand, await stand.head()


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

    _, head = await sent(handle)
    assert (head.state == S.TASK_STATE_FAILED) is (name == "fail")


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

    _, head = await sent(handle)
    assert head.state == S.TASK_STATE_COMPLETED
    assert deleted == ([head.task_id] if name == "cancel" else [])


WRONG_ENDINGS: dict[str, Callable[[Any], Awaitable[None]]] = {
    "emit_artifact": lambda ctx: ctx.emit_artifact(artifact_id="x"),
    "update_context": lambda ctx: ctx.update_context(object()),
    "request_auth": lambda ctx: ctx.request_auth("Log in", schemes=[object()]),
    "complete_json with a large number": lambda ctx: ctx.complete_json(10**400),
    "request_input with data": lambda ctx: ctx.request_input("which?", object()),
    "reject": lambda ctx: ctx.reject(42),
}
"""What `test_mistakes.py` has no sentence for."""


@pytest.mark.parametrize("wrong", WRONG_ENDINGS)
async def test_an_ending_that_cannot_be_made_is_none(wrong: str) -> None:
    """A wrong argument raises before anything is ended: the worker may still end its turn."""

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises((TypeError, ValueError)):
            await WRONG_ENDINGS[wrong](ctx)
        assert not ctx.turn_ended
        await ctx.fail("I could not say it")

    stand, head = await run(handle)
    assert (head.state, await stand.text()) == (S.TASK_STATE_FAILED, "I could not say it")
    assert not await stand.artifacts()


async def test_the_state_may_be_stored_more_than_once() -> None:
    """The last value is stored, once, whatever the turn has committed in between."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.load_context()
        for n in range(3):
            await ctx.update_context(n)
            await ctx.emit_text_artifact("x" * FLUSH_BYTES, str(n))
        await ctx.respond()

    stand, head = await run(handle)
    assert head.state == S.TASK_STATE_COMPLETED
    assert await stand.storage.contexts.load("ctx") == (2, 1)


async def other(stand: Stand, state: object = "another's") -> None:
    """Let another turn of the conversation store its state."""
    await Storage(stand.storage).update_context("ctx", state)


async def kept(stand: Stand) -> object:
    """The state of the conversation."""
    return await Storage(stand.storage).load_context("ctx")


@pytest.mark.parametrize("is_stale", [True, False])
async def test_a_cancel_is_one_whatever_the_state_is(*, is_stale: bool) -> None:
    """`Worker.cancel` may end the task otherwise, with its state, unless that is stale."""
    told: list[tuple[str, bool, str]] = []

    class Completing(Script):
        async def cancel(self, ctx: TaskContext) -> None:
            told.append((ctx.task_id, ctx.is_cancelled, ctx.user_text))
            await ctx.load_context()
            if is_stale:
                await other(stand)
            await ctx.update_context("mine")
            await ctx.complete("too late")

    stand, head = await run(WorkerExecutor(Completing(lambda ctx: ctx.request_input("?"))))
    await stand.cancel()
    await stand.work()
    assert told == [(head.task_id, True, "")]
    state = S.TASK_STATE_CANCELED if is_stale else S.TASK_STATE_COMPLETED
    shown = {} if is_stale else {"final-answer": ["too late"]}
    assert (await stand.state(), await stand.artifacts()) == (state, shown)
    assert await kept(stand) == ("another's" if is_stale else "mine")


@pytest.mark.parametrize(
    ("merge", "sentence"),
    [
        (lambda _, __: 1 / 0, "ZeroDivisionError"),
        (lambda _, __: {1}, "must be a JSON value"),
        (lambda _, __: {1: "a", "1": "b"}, "Two keys of a context's state are '1' as text"),
        (asyncio.sleep, "`merge=lambda stored, own:"),
    ],
)
async def test_a_merge_that_fails(merge: Any, sentence: str, caplog: Log) -> None:
    """The task fails, as for any other error of the agent, and the stored state stays."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.load_context()
        await other(stand)
        await ctx.update_context("mine", merge=merge)
        await ctx.complete()

    stand = Stand(handle, max_attempts=1)
    assert (await stand.work()).state == S.TASK_STATE_FAILED
    assert sentence in caplog.text
    assert await kept(stand) == "another's"


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
        await other(stand)
        await stand.storage.request_cancel(ctx.task_id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends_in == "handle":
                await ctx.complete("too late")
            raise

    stand = Stand(WorkerExecutor(Completing(handle)), clock=SystemClock(), max_attempts=1)
    assert (await stand.work()).state == S.TASK_STATE_CANCELED
    assert await kept(stand) == "another's"


async def test_a_worker_needs_this_runtime() -> None:
    """A Worker that gets another queue than this runtime's fails its task."""
    executor = WorkerExecutor(Script(lambda ctx: ctx.respond()))
    agent = Agent(lambda context, _queue: executor.execute(context, object()))  # type: ignore[arg-type]
    _, head = await run(agent, max_attempts=1)
    assert head.state == S.TASK_STATE_FAILED


# -- context variables of a message --------------------------------------------------------------

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="unset")
NAME = f"{__name__}:REQUEST_ID"


def caller(request_id: str) -> Caller:
    return Caller(variables=json.dumps({NAME: request_id}))


@pytest.mark.parametrize("is_set", [True, False])
async def test_each_turn_has_its_own_value(*, is_set: bool) -> None:
    """Each attempt of it sees that, also after a failure, and so does a cancel.

    A turn without a value finds nothing of the one before it; the value comes from the log.
    A worker without the setting, as a release comes in, leaves it out.
    """
    seen: list[str] = []

    async def note(*_: object) -> None:
        seen.append(REQUEST_ID.get())
        REQUEST_ID.set("the agent's own")

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await note()
        if len(seen) == 1:
            raise ValueError
        await ask(context, queue)

    stand = Stand(Agent(execute, note), context_variables=NAME if is_set else "")
    await stand.send(caller=caller("r1"))
    await stand.work()
    for who in (Caller(), caller("r2")):
        opened = Commit(entries=(TurnOpened(request("that one"), who),))
        await stand.bench.enqueue(await stand.storage.commit(await stand.head(), opened))
        await stand.work()
    await stand.cancel()
    await stand.work()
    values = ["r1", "r1", "unset", "r2", "r2"]
    assert seen == [value if is_set else "unset" for value in values]
    assert REQUEST_ID.get() == "unset"

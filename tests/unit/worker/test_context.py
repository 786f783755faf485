"""The Worker API: what a TaskContext shows and what its methods make of the task."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Awaitable, Callable
from doctest import DocTestParser
from types import FunctionType
from typing import Any, cast

import pytest
from a2a.helpers import get_data_parts
from a2a.types import Part, SendMessageConfiguration, SendMessageRequest, Task

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import InvalidArgumentError, StateTooLargeError
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.head import Operation
from a2a_serverless.worker import Remote, TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor, active_turn
from a2a_serverless.worker.outbox import FLUSH_BYTES
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.testing import StandIn
from tests.support.workers import (
    Agent,
    Bench,
    S,
    artifact_texts,
    params_of,
    status_text,
    user_request,
)

Handle = Callable[[TaskContext], Awaitable[None]]


class Handling(Worker):
    """A worker made of a function."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def handle(self, ctx: TaskContext) -> None:
        await self._handle(ctx)


def public_methods(kind: type) -> list[str]:
    """The names of the methods that an agent calls, or writes."""
    members = inspect.getmembers(kind, inspect.isfunction)
    return [name for name, _ in members if not name.startswith("_")]


async def run(handle: Handle, request: SendMessageRequest | None = None) -> tuple[Bench, Task]:
    """The task after one turn."""
    address = "https://agent.example"
    bench = Bench(WorkerExecutor(Handling(handle)), retry_base_s=0, public_url=address)
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

    class Example(Handling):
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


async def test_artifact_ids_may_be_given_by_position() -> None:
    """Artifact ids may be positional: first in `emit_artifact`, elsewhere after the content."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("one", "text", append=True)
        await ctx.emit_data_artifact({"n": 1}, "data", "application/x")
        await ctx.emit_artifact("file", file_bytes=b"x")
        await (ctx.complete if ctx.user_text == "text" else ctx.complete_json)("done", "result")

    for said_, field in (("text", "text"), ("json", "data")):
        _, task = await run(handle, user_request(Part(text=said_)))
        assert [a.artifact_id for a in task.artifacts] == ["text", "data", "file", "result"]
        assert task.artifacts[1].parts[0].media_type == "application/x"
        assert task.artifacts[3].parts[0].WhichOneof("content") == field


async def test_a_question_may_have_data() -> None:
    """It is a part of its own beside the text, for programs that answer."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.request_input("Pay it?", {"amount": 12.5})

    _, task = await run(handle)
    assert task.status.state == S.TASK_STATE_INPUT_REQUIRED
    assert status_text(task) == "Pay it?"
    assert get_data_parts(task.status.message.parts) == [{"amount": 12.5}]


WRONG_ENDINGS: dict[str, Callable[[Any], Awaitable[None]]] = {
    "request_auth": lambda ctx: ctx.request_auth("Log in", schemes=[object()]),
    "complete": lambda ctx: ctx.complete(42),
    "complete_json": lambda ctx: ctx.complete_json(object()),
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


async def test_an_artifact_needs_content() -> None:
    """An artifact of nothing is refused where it is made."""
    raised = []

    async def handle(ctx: TaskContext) -> None:
        try:
            await ctx.emit_artifact(artifact_id="x")
        except ValueError as error:
            raised.append(str(error))
        await ctx.respond()

    await run(handle)
    assert raised == ["An artifact needs text, data, file_bytes or file_url."]


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


@pytest.mark.parametrize("data", [object(), {1: "a"}, 10**400], ids=["object", "key", "number"])
async def test_data_is_json(data: object) -> None:
    """Data that JSON cannot hold is refused with InvalidArgumentError, and the turn goes on."""

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(InvalidArgumentError):
            await ctx.complete_json(data)
        await ctx.respond("none")

    _, task = await run(handle)
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert status_text(task) == "none"


async def test_the_state_is_json() -> None:
    """A state that JSON cannot hold is refused by `update_context`."""
    raised = []

    async def handle(ctx: TaskContext) -> None:
        try:
            await ctx.update_context(object())
        except InvalidArgumentError as error:
            raised.append(error)
        await ctx.respond()

    await run(handle)
    assert len(raised) == 1


@pytest.mark.long
async def test_a_state_that_is_too_large_fails_the_task_with_a_sentence() -> None:
    """At once, and with the state as it was; an agent that keeps less of it may go on."""
    most = StateTooLargeError.LIMIT_OFFLOADED

    async def lets_it_pass(ctx: TaskContext) -> None:
        await ctx.update_context("x" * most)

    async def keeps_less(ctx: TaskContext) -> None:
        with pytest.raises(StateTooLargeError):
            await ctx.update_context("x" * most)
        await ctx.update_context("x" * (most - 2))
        await ctx.respond()

    bench, task = await run(lets_it_pass)
    assert task.status.state == S.TASK_STATE_FAILED
    assert status_text(task).startswith("The state of this conversation would have 50000002 bytes")
    assert await Storage(bench.storage).load_context("ctx") is None
    bench, task = await run(keeps_less)
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert await Storage(bench.storage).load_context("ctx") == "x" * (most - 2)


async def test_a_worker_is_told_of_a_cancel() -> None:
    """`Worker.cancel` runs with the task's context; without one of its own nothing happens."""
    told = []

    class Tidy(Handling):
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

    class Completing(Handling):
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

    bench = Bench(WorkerExecutor(Handling(handle)), max_attempts=1)
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
        ("mine", "got 'mine'"),
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

    bench = Bench(WorkerExecutor(Handling(handle)), max_attempts=1)
    head = await bench.send()
    assert await bench.work()
    task = await bench.task(head)
    assert task.status.state == S.TASK_STATE_FAILED
    assert sentence in caplog.text
    assert await Storage(bench.storage).load_context("ctx") == "another's"


@pytest.mark.parametrize("ends_in", ["handle", "cancel"])
async def test_a_running_agents_stale_end_is_a_cancel(ends_in: str) -> None:
    """A canceled agent that ends otherwise with a stale state is canceled all the same."""

    class Completing(Handling):
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


async def test_a_cancel_that_pauses_leaves_the_state() -> None:
    """The cancel ends the task in the agent's place, and so nothing of its state is stored."""

    class Asking(Handling):
        async def cancel(self, ctx: TaskContext) -> None:
            await ctx.request_input("Really?")

    async def handle(ctx: TaskContext) -> None:
        await ctx.update_context("half")
        await bench.storage.request_cancel(ctx.task_id)
        await asyncio.Event().wait()

    bench = Bench(WorkerExecutor(Asking(handle)))
    head = await bench.send()
    await bench.work()
    assert await Storage(bench.storage).load_context("ctx") is None
    await bench.operations.send(Operation.to_cancel(params_of(head)))
    assert await bench.work()
    assert (await bench.task(head)).status.state == S.TASK_STATE_CANCELED
    assert await Storage(bench.storage).load_context("ctx") is None


async def test_a_worker_needs_this_runtime() -> None:
    """A Worker that gets another queue than this runtime's fails its task."""
    executor = WorkerExecutor(Handling(lambda ctx: ctx.respond()))
    agent = Agent(lambda context, _queue: executor.execute(context, object()))  # type: ignore[arg-type]
    bench = Bench(agent, max_attempts=1)
    head = await bench.send()
    assert await bench.work()
    assert (await bench.task(head)).status.state == S.TASK_STATE_FAILED

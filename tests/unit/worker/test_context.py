"""The Worker API: what a TaskContext shows and what its methods make of the task."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Awaitable, Callable
from doctest import DocTestParser
from types import FunctionType
from typing import Any

import pytest
from a2a.helpers import get_data_parts, new_data_part
from a2a.types import Part, SendMessageConfiguration, SendMessageRequest, Task

from a2a_serverless.errors import InvalidArgumentError, StateTooLargeError
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless.worker.attempt import NO_ENDING
from a2a_serverless.worker.context import WorkerExecutor
from a2a_serverless.worker.writer import FLUSH_BYTES
from a2a_serverless_tools.contract.storage import Storage
from tests.support.messages import said
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
    bench = Bench(WorkerExecutor(Handling(handle)), retry_base_s=0)
    opened = await bench.storage.open_task(
        "ctx",
        request or user_request(Part(text="hello")),
        caller=Caller("ann", "acme", ("urn:x",)),
    )
    await bench.enqueue(opened.head)
    assert await bench.work()
    return bench, await bench.task(opened.head)


async def test_what_was_asked() -> None:
    """Ids, text, files, data, metadata and caller of the user's message are there to be read."""
    seen: dict[str, Any] = {}
    names = [name for name, kind in inspect.getmembers(TaskContext) if isinstance(kind, property)]

    async def handle(ctx: TaskContext) -> None:
        seen.update({name: getattr(ctx, name) for name in names})
        await ctx.respond()

    parts = [
        Part(text="one"),
        Part(raw=b"\x00", filename="a.bin", media_type="application/octet-stream"),
        Part(url="https://example.org/b"),
        new_data_part({"k": [1, 2]}),
        Part(text="two"),
    ]
    request = user_request(
        *parts, metadata={"lang": "de"}, reference_task_ids=["t0"], extensions=["urn:y"]
    )
    _, task = await run(handle, request)
    assert seen["task_id"] == task.id
    assert seen["context_id"] == "ctx"
    assert (seen["message_id"], seen["user_text"]) == ("u", "one\ntwo")
    assert len(seen["parts"]) == 5
    files = [(f.content, f.url, f.filename, f.media_type) for f in seen["files"]]
    assert files == [
        (b"\x00", None, "a.bin", "application/octet-stream"),
        (None, "https://example.org/b", "", ""),
    ]
    assert seen["data_parts"] == [{"k": [1, 2]}]
    assert seen["metadata"] == {"lang": "de"}
    assert (seen["reference_task_ids"], seen["message_extensions"]) == (("t0",), ("urn:y",))
    assert (seen["user"], seen["tenant"]) == ("ann", "acme")
    assert seen["requested_extensions"] == {"urn:x"}
    assert (seen["history"], seen["previous_artifacts"]) == ([], [])
    assert (seen["is_cancelled"], seen["turn_ended"]) == (False, False)


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
        await ran(getattr(TaskContext, name), {"ctx": ctx})
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


ENDINGS: dict[str, tuple[Handle, Any, str, dict[str, list[str]]]] = {
    "complete": (
        lambda ctx: ctx.complete("42"),
        S.TASK_STATE_COMPLETED,
        "",
        {"final-answer": ["42"]},
    ),
    "complete without text": (lambda ctx: ctx.complete(), S.TASK_STATE_COMPLETED, "", {}),
    "respond": (lambda ctx: ctx.respond("fine"), S.TASK_STATE_COMPLETED, "fine", {}),
    "reply_directly": (lambda ctx: ctx.reply_directly("hi"), S.TASK_STATE_COMPLETED, "hi", {}),
    "fail": (lambda ctx: ctx.fail("no model"), S.TASK_STATE_FAILED, "no model", {}),
    "reject": (lambda ctx: ctx.reject(), S.TASK_STATE_REJECTED, "Task rejected.", {}),
    "request_input": (
        lambda ctx: ctx.request_input("which?"),
        S.TASK_STATE_INPUT_REQUIRED,
        "which?",
        {},
    ),
    "request_auth": (
        lambda ctx: ctx.request_auth(),
        S.TASK_STATE_AUTH_REQUIRED,
        "Authentication required.",
        {},
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_ending_costs_one_commit(ending: str) -> None:
    """Each ending leaves its state, its message and its artifact, and ends the turn."""
    handle, state, text, artifacts = ENDINGS[ending]
    bench, task = await run(handle)
    assert task.status.state == state
    assert status_text(task) == text
    assert artifact_texts(task) == artifacts
    head = await bench.storage.head(task.id)
    assert head is not None
    assert (head.version, head.turn_is_open, head.replied) == (2, False, ending == "reply_directly")


async def test_complete_json_gives_data() -> None:
    """A JSON value becomes a data part that says what it is."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.complete_json({"n": [1, None]}, artifact_id="result")

    _, task = await run(handle)
    assert task.artifacts[0].artifact_id == "result"
    assert get_data_parts(task.artifacts[0].parts) == [{"n": [1, None]}]
    assert task.artifacts[0].parts[0].media_type == "application/json"


async def test_request_auth_tells_how() -> None:
    """Schemes, hint and URL go out as data beside the sentence for a person."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.request_auth(
            "Log in", schemes=["Bearer"], credentials_hint="a token", auth_url="https://x"
        )

    _, task = await run(handle)
    parts = task.status.message.parts
    assert parts[0].text == "Log in"
    assert get_data_parts(parts) == [
        {"schemes": ["Bearer"], "credentialsHint": "a token", "authUrl": "https://x"}
    ]


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


async def test_artifacts_of_every_kind() -> None:
    """Text in chunks, data, bytes and links, with name, metadata and extensions."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("one ", append=True)
        await ctx.emit_text_artifact("two", append=True, last_chunk=True)
        await ctx.emit_data_artifact([1], artifact_id="data")
        await ctx.emit_artifact(
            artifact_id="file",
            file_bytes=b"x",
            media_type="image/png",
            filename="x.png",
            name="picture",
            description="of x",
            metadata={"w": 1},
            extensions=["urn:z"],
        )
        await ctx.emit_artifact(artifact_id="link", file_url="https://x", text="see")
        await ctx.respond()

    _, task = await run(handle)
    answer, data, file, link = task.artifacts
    assert [part.text for part in answer.parts] == ["one ", "two"]
    assert get_data_parts(data.parts) == [[1]]
    part = file.parts[0]
    assert (part.raw, part.media_type, part.filename) == (b"x", "image/png", "x.png")
    assert (file.name, file.description, file.metadata["w"]) == ("picture", "of x", 1)
    assert list(file.extensions) == ["urn:z"]
    assert [p.WhichOneof("content") for p in link.parts] == ["text", "url"]


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


async def test_progress_is_kept_in_the_history() -> None:
    """A progress text is the status while it is the last, and history after that."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status()
        await ctx.send_status("half way")
        await ctx.respond("done")

    _, task = await run(handle)
    assert (said(task), status_text(task)) == (["hello", "half way"], "done")


async def test_a_second_ending_is_an_error() -> None:
    """Ending twice raises where it happens, and the first ending stays."""
    raised = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.respond("first")
        assert ctx.turn_ended
        try:
            await ctx.fail("second")
        except RuntimeError as error:
            raised.append(error)

    _, task = await run(handle)
    assert len(raised) == 1
    assert status_text(task) == "first"


@pytest.mark.parametrize("ending", ["respond", "request_auth"])
async def test_calls_after_the_end_are_logged_and_ignored(
    ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Progress, artifacts and state that come after the ending do nothing."""

    async def handle(ctx: TaskContext) -> None:
        await getattr(ctx, ending)()
        await ctx.send_status("late")
        await ctx.emit_text_artifact("late")
        await ctx.update_context({"late": True})

    bench, task = await run(handle)
    assert (artifact_texts(task), said(task)) == ({}, ["hello"])
    assert await Storage(bench.storage).load_context("ctx") is None
    methods = [record.__dict__["method"] for record in caplog.records]
    assert methods == ["send_status", "emit_artifact", "update_context"]


async def test_a_worker_that_does_not_end_its_turn_fails() -> None:
    """Returning without an ending fails the task with a sentence that says so."""

    async def handle(_ctx: TaskContext) -> None:
        return

    _, task = await run(handle)
    assert task.status.state == S.TASK_STATE_FAILED
    assert status_text(task) == NO_ENDING.format("none")


async def test_the_next_turn_knows_what_was_before() -> None:
    """History, with the question that was asked, and artifacts of the earlier turn are there."""
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(
            (
                [(m.role, m.text) for m in ctx.history],
                [(a.artifact_id, a.parts[0].text) for a in ctx.previous_artifacts],
            )
        )
        if not ctx.history:
            await ctx.emit_text_artifact("draft")
            await ctx.request_input("which?")
        else:
            await ctx.respond()

    bench = Bench(WorkerExecutor(Handling(handle)))
    head = await bench.send("book")
    assert await bench.work()
    await bench.follow_up(head, "that")
    assert await bench.work()
    assert seen == [([], []), ([("user", "book"), ("agent", "which?")], [("answer", "draft")])]


async def test_the_conversations_state_joins_the_turns_ending() -> None:
    """Stored state is readable at once in the turn, and for others with its ending."""
    before = []

    async def handle(ctx: TaskContext) -> None:
        before.append(await ctx.load_context())
        await ctx.update_context({"count": 1})
        await ctx.emit_text_artifact("x" * FLUSH_BYTES)  # committed when the call returns
        assert await ctx.load_context() == {"count": 1}
        assert await Storage(bench.storage).load_context("ctx") is None
        await ctx.respond()

    bench = Bench(WorkerExecutor(Handling(handle)))
    await bench.send()
    assert await bench.work()
    assert before == [None]
    assert await Storage(bench.storage).load_context("ctx") == {"count": 1}


async def test_no_update_of_the_state_is_lost() -> None:
    """A turn whose state was changed by another task meanwhile starts over and sees the change."""
    counted = []

    async def handle(ctx: TaskContext) -> None:
        count = (await ctx.load_context() or {"n": 0})["n"]
        counted.append(count)
        if len(counted) == 1:
            await Storage(bench.storage).update_context("ctx", {"n": 10})
        await ctx.update_context({"n": count + 1})
        await ctx.respond()

    bench = Bench(WorkerExecutor(Handling(handle)), retry_base_s=0)
    head = await bench.send()
    assert await bench.work() is False
    assert await bench.work() is True
    assert counted == [0, 10]
    assert await Storage(bench.storage).load_context("ctx") == {"n": 11}
    assert (await bench.task(head)).status.state == S.TASK_STATE_COMPLETED


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
    assert await bench.storage.load_context_version("ctx") == (2, 1)


@pytest.mark.parametrize(
    "data", [object(), {1: "a"}, 10**400, "\ud800"], ids=["object", "key", "number", "text"]
)
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


async def test_a_state_that_is_too_large_fails_the_task_with_a_sentence() -> None:
    """At once, and with the state as it was; an agent that keeps less of it may go on."""

    async def lets_it_pass(ctx: TaskContext) -> None:
        await ctx.update_context("x" * 340_000)

    async def keeps_less(ctx: TaskContext) -> None:
        with pytest.raises(StateTooLargeError):
            await ctx.update_context("x" * 340_000)
        await ctx.update_context("x")
        await ctx.respond()

    bench, task = await run(lets_it_pass)
    assert task.status.state == S.TASK_STATE_FAILED
    assert status_text(task).startswith("The state of this conversation would have 340002 bytes")
    assert await Storage(bench.storage).load_context("ctx") is None
    bench, task = await run(keeps_less)
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert await Storage(bench.storage).load_context("ctx") == "x"


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

"""What an agent gets wrong, and what the Worker API makes of what it gets right."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from doctest import DocTestParser
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import Part, Task
from google.protobuf.json_format import MessageToJson
from pydantic import BaseModel

from a2a_serverless.clock import SystemClock
from a2a_serverless.tasks.entries import ArtifactWritten, Caller, TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import unicode_of
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker import FinalError, Remote, Retry, TaskContext, Worker, turn
from a2a_serverless.worker.context import WorkerExecutor, active_turn
from a2a_serverless.worker.failures import WrongCallError
from a2a_serverless.worker.loops import FEW_CALLS
from a2a_serverless.worker.outbox import FLUSH_BYTES
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.testing import StandIn
from tests.support.clocks import ManualClock
from tests.support.messages import request
from tests.support.workers import Agent, S, chunk, complete
from tests.unit.worker.stand import Handle, Log, Patch, Script, Stand, ask, lines, run, sent

HERE = Path(__file__)


class Handling(Worker):
    """A worker made of a function, which need not be async."""

    def __init__(self, handle: Callable[[TaskContext], Any]) -> None:
        self.handle = handle  # type: ignore[method-assign, assignment]

    async def handle(self, ctx: TaskContext) -> None:
        raise NotImplementedError


def line_of(mark: str) -> int:
    """The line of this file that ends with a mark."""
    texts = HERE.read_text().splitlines()
    return next(number for number, text in enumerate(texts, 1) if text.endswith(f"# {mark}"))


def told(caplog: Log, action: str) -> list[str]:
    return [line["said"] for line in lines(caplog, action)]


# -- forgotten awaits --------------------------------------------------------------------------


async def emits(ctx: TaskContext) -> None:
    ctx.emit_text_artifact("lost")  # type: ignore[unused-coroutine]  # forgotten emit
    for _ in range(FEW_CALLS):  # behind so many, those that were awaited are no longer known
        await ctx.load_context()
    await ctx.respond("Done.")


async def uses(ctx: TaskContext) -> None:
    """A coroutine in the place of a state makes Python raise something else, further down."""
    state: Any = ctx.load_context()  # forgotten answer
    await ctx.complete(state["name"])


async def executes(context: RequestContext, queue: EventQueue) -> None:
    queue.enqueue_event(chunk(context, "lost"))  # type: ignore[unused-coroutine]  # forgotten event
    await complete(context, queue)


@pytest.mark.parametrize(
    ("does", "mark", "call"),
    [
        (emits, "forgotten emit", "ctx.emit_text_artifact(…)"),
        (uses, "forgotten answer", "ctx.load_context(…)"),
        (Agent(executes), "forgotten event", "event_queue.enqueue_event(…)"),
    ],
)
async def test_a_forgotten_await_fails_a_turn(does: Any, mark: str, call: str, caplog: Log) -> None:
    """It does not complete without its artifact: the client is told the call, the log the line."""
    stand, head = await run(does)
    assert head.state == S.TASK_STATE_FAILED
    sentence = f"The agent has not awaited {call}: write `await {call}`."
    assert await stand.text() == sentence
    place = f"({HERE}, line {line_of(mark)})"
    assert told(caplog, "agent_at_fault") == [f"Task failed: {sentence} {place}"]


@pytest.mark.parametrize("ending", ["reply_directly", "request_input", "fail", "reject"])
async def test_every_ending_asks_for_forgotten_calls(ending: str) -> None:
    """No ending is stored behind a call that was lost."""

    async def handle(ctx: TaskContext) -> None:
        ctx.send_status("lost")  # type: ignore[unused-coroutine]
        await getattr(ctx, ending)("the end")

    stand, head = await run(handle)
    assert head.state == S.TASK_STATE_FAILED
    assert "await ctx.send_status(…)" in await stand.text()


async def test_a_loop_without_end_is_told(monkeypatch: Patch, caplog: Log) -> None:
    """Once, with its line, while the turn goes on."""
    monkeypatch.setattr(turn, "MANY_EVENTS", 3)

    async def handle(ctx: TaskContext) -> None:
        for number in range(5):
            await ctx.send_status(str(number))  # many
        await ctx.complete()

    _, head = await run(handle)
    assert head.state == S.TASK_STATE_COMPLETED
    (said,) = told(caplog, "many_events")
    assert said.startswith(f"The turn has emitted 3 events, the last one at {HERE}, line ")
    assert f"line {line_of('many')}:" in said


async def test_an_exception_before_the_await_is_tried_again(caplog: Log) -> None:
    """The exception is the reason why nothing was awaited: it may pass. The log has the call."""
    attempts: list[int] = []

    async def handle(ctx: TaskContext) -> None:
        attempts.append(1)
        made = ctx.emit_text_artifact("whole")
        if len(attempts) == 1:
            raise ConnectionError
        await made
        await ctx.respond()

    stand, head = await run(handle, clock=ManualClock())
    assert (head.state, await stand.artifacts()) == (S.TASK_STATE_COMPLETED, {"answer": ["whole"]})
    assert [each.partition(" (")[0] for each in told(caplog, "never_awaited")] == [
        "ctx.emit_text_artifact(…) was never awaited"
    ]


async def test_calls_that_are_awaited_some_other_way(caplog: Log) -> None:
    """As tasks, together, later, or with a time limit: all of them count."""

    async def handle(ctx: TaskContext) -> None:
        first = asyncio.create_task(ctx.emit_text_artifact("1", "a"))
        await asyncio.gather(*(ctx.emit_text_artifact(str(n), f"b{n}") for n in range(3)))
        later = ctx.emit_text_artifact("2", "c")
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.emit_text_artifact("3", "d"))
        await later
        await first
        await asyncio.wait_for(ctx.complete("4"), 60)

    stand, head = await run(handle)
    assert head.state == S.TASK_STATE_COMPLETED
    assert set(await stand.artifacts()) == {"a", "b0", "b1", "b2", "c", "d", "final-answer"}
    assert not told(caplog, "never_awaited")


# -- methods that are not async ----------------------------------------------------------------


def not_async(ctx: TaskContext) -> None:
    ctx.is_cancelled  # noqa: B018


async def yields(ctx: TaskContext) -> Any:
    yield "a chunk"


async def two_arguments(context: Any, event_queue: Any) -> None:
    """An executor's method in a Worker's place."""


@pytest.mark.parametrize(
    ("handle", "rule"),
    [
        (not_async, "cannot be awaited: write `async def not_async(…)`"),
        (yields, "cannot be awaited: take its `yield` out, and emit with `await ctx.emit_text_art"),
        (two_arguments, "takes other arguments: write `async def two_arguments(self, ctx)`"),
    ],
)
async def test_a_handle_that_cannot_be_awaited(handle: Any, rule: str, caplog: Log) -> None:
    """The task fails at once, and is told the right form; the log has the method's line."""
    stand, _ = await run(WorkerExecutor(Handling(handle)))
    assert (await stand.text()).startswith(f"The agent's {handle.__name__} {rule}")
    line = handle.__code__.co_firstlineno
    assert f"({HERE}, line {line})" in told(caplog, "agent_at_fault")[0]


async def test_a_type_error_of_a_method_is_its_own() -> None:
    """What the method raises before its first `await` may pass, and is tried again."""
    errors = [TypeError("of its own")]

    def handle(ctx: TaskContext) -> Any:
        if errors:
            raise errors.pop()
        return ctx.respond()

    _, head = await run(WorkerExecutor(Handling(handle)))
    assert head.state == S.TASK_STATE_COMPLETED


async def test_an_execute_that_is_not_async() -> None:
    """The same for an AgentExecutor."""

    class Plain(Agent):
        def execute(self, context: RequestContext, event_queue: EventQueue) -> None:  # type: ignore[override]
            pass

    stand, _ = await run(Plain(complete))
    assert "Plain.execute cannot be awaited: write `async def execute(…)`" in await stand.text()


# -- values of the wrong type ------------------------------------------------------------------


async def refused(ctx: TaskContext, method: str, *args: Any, **options: Any) -> str:
    """The sentence with which a call is refused; it ends nothing."""
    with pytest.raises(WrongCallError) as error:
        await getattr(ctx, method)(*args, **options)
    assert not ctx.turn_ended
    return str(error.value)


async def said_by(method: str, *args: Any, **options: Any) -> str:
    """The sentence with which a call is refused; the turn goes on to its end."""
    said: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        said.append(await refused(ctx, method, *args, **options))
        await ctx.respond()

    _, head = await run(handle)
    assert head.state == S.TASK_STATE_COMPLETED
    return said[0]


@pytest.mark.parametrize(
    ("method", "value", "way"),
    [
        ("respond", {"a": 1}, "for data write `await ctx.complete_json(…)`"),
        ("complete", 5, "for its text `await ctx.complete(str(…))`"),
        ("complete", b"x", "`await ctx.emit_artifact(…, file_bytes=…, media_type=…)`"),
        ("complete", Part(text="x"), "pass the text of a part, `part.text`"),
        ("reply_directly", ["x"], "for data write `await ctx.complete_json(…)`"),
        ("fail", ValueError("x"), "write `await ctx.fail(str(…))`"),
        ("request_input", {"a": 1}, "for its text `await ctx.request_input(str(…))`"),
        ("send_status", 5, "for its text `await ctx.send_status(str(…))`"),
        ("emit_text_artifact", {"a": 1}, "for data write `await ctx.emit_data_artifact(…)`"),
        # Such as what a model has not said.
        ("request_input", None, '; if there may be none, write `await ctx.request_input(… or "")`'),
        ("reply_directly", None, "the text is missing; if there may be none, write `await ctx."),
        ("emit_text_artifact", None, 'write `await ctx.emit_text_artifact(… or "")`'),
    ],
)
async def test_a_value_that_is_no_text(method: str, value: object, way: str) -> None:
    """It is refused with the method, the type that it got, and the right call; nothing ended."""
    sentence = await said_by(method, value)
    got = "None" if value is None else f"a {type(value).__name__}"
    assert sentence.startswith(f"ctx.{method} takes a text, and got {got}: ")
    assert way in sentence


class Weather(BaseModel):
    city: str


@dataclass
class Sight:
    city: str


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Weather(city="Oslo"), 'data is a Weather: write `….model_dump(mode="json")`'),
        (Sight("Oslo"), "data is a Sight: write `dataclasses.asdict(…)`"),
        ({"when": [1, date(2026, 1, 2)]}, "data['when'][1] is a date: write `str(…)`, or make"),
        ({"a": {"b": {1, 2}}}, "data['a']['b'] is a set: write `list(…)`"),
        ({"a": {5: 1}}, "a key of data['a'] is a int: write `str(…)`"),
        ([b"x"], "data[0] is a bytes: for a file write `await ctx.emit_artifact"),
        (ENDLESS, "this is none: "),
    ],
)
async def test_data_that_is_no_json_value(value: Any, says: str) -> None:
    """It is refused with what is wrong in it, and the right call; it is not tried again."""
    for method in ("complete_json", "emit_data_artifact"):
        sentence = await said_by(method, value)
        assert sentence.startswith(f"ctx.{method} takes a JSON value, and {says}")


@pytest.mark.parametrize(
    ("value", "way"),
    [("x", "text.encode()"), (bytearray(b"x"), "bytes(…)"), (HERE, "path.read_bytes()")],
)
async def test_a_content_that_is_not_bytes(value: object, way: str) -> None:
    """The same for the content of a file."""
    sentence = await said_by("emit_artifact", "a", file_bytes=value)
    assert re.search(rf"takes bytes as file_bytes.*{re.escape(way)}`", sentence)


async def test_a_coroutine_in_the_place_of_a_text() -> None:
    """The answer of a call that was not awaited is no text."""

    async def handle(ctx: TaskContext) -> None:
        late = asyncio.sleep(0, "late")
        assert "await it first" in await refused(ctx, "complete", late)
        await ctx.complete(await late)

    stand, _ = await run(handle)
    assert await stand.artifacts() == {"final-answer": ["late"]}


async def test_a_wrong_call_is_not_tried_again(caplog: Log) -> None:
    """It would come again: one attempt is enough."""

    async def handle(ctx: TaskContext) -> None:
        text: Any = {"a": 1}
        await ctx.respond(text)

    _, head = await run(handle)
    (line,) = lines(caplog, "gave_up")
    assert (head.state, line["attempts"]) == (S.TASK_STATE_FAILED, 1)


# -- halves of surrogate pairs: what an agent says is text -----------------------------------------


HIGH, LOW = "\ud83d", "\ude00"
Says = Callable[[TaskContext], Awaitable[None]]


class Named(BaseModel):
    name: str


async def said(says: Says) -> tuple[Task, list[str]]:
    """The task after one attempt, and the chunks of its artifacts."""
    stand = await sent(says, max_attempts=3)
    await stand.bench.work()
    chunks = [e.artifact for e in await stand.entries() if isinstance(e, ArtifactWritten)]
    return await stand.shown(), [part.text for each in chunks for part in each.parts]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([f"a{HIGH}", f"{LOW}b"], ["a", "😀b"]),
        ([HIGH, LOW], ["", "😀"]),
        (["a", HIGH, LOW, "b"], ["a", "😀", "b"]),
        ([f"a{HIGH}{LOW}b"], ["a😀b"]),
        ([f"a{HIGH}"], ["a", "\ufffd"]),
        ([f"a{HIGH}", "b"], ["a", "\ufffdb"]),
        (["a", LOW], ["a", "\ufffd"]),
        ([f"{HIGH}a{LOW}", "b"], ["\ufffda\ufffd", "b"]),
        ([f"a{HIGH}", HIGH, LOW], ["a", "\ufffd", "😀"]),
        (["a", "", "b"], ["a", "", "b"]),
    ],
)
async def test_halves_of_neighbours_are_joined(chunks: list[str], expected: list[str]) -> None:
    """Those that stay alone are U+FFFD, at the latest with the turn's ending."""

    async def says(ctx: TaskContext) -> None:
        for number, text in enumerate(chunks):
            await ctx.emit_text_artifact(text, append=number > 0)
        await ctx.respond("done")

    task, seen = await said(says)
    assert (task.status.state, seen) == (S.TASK_STATE_COMPLETED, expected)
    text = "".join(part.text for part in task.artifacts[0].parts)
    assert text == unicode_of("".join(chunks))


async def test_halves_belong_to_their_artifact() -> None:
    """One is not joined with another artifact's text, nor with what replaces its own."""

    async def says(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact(f"a{HIGH}", "one")
        await ctx.emit_text_artifact(f"{LOW}b", "two")
        await ctx.emit_text_artifact("c", "one", append=True, last_chunk=True)
        await ctx.emit_text_artifact(f"d{HIGH}", "two")
        await ctx.emit_text_artifact(f"{LOW}e", "two")
        await ctx.emit_text_artifact(f"f{HIGH}", "two", append=True, last_chunk=True)
        await ctx.complete(f"{LOW}g")

    _, seen = await said(says)
    assert seen == ["a", "\ufffdb", "\ufffdc", "d", "\ufffde", "f\ufffd", "\ufffdg"]


async def test_a_try_that_has_failed_leaves_no_half() -> None:
    """What it has said is not kept."""
    tries = iter([True, False])

    async def says(ctx: TaskContext) -> None:
        async def one() -> None:
            fails = next(tries)
            await ctx.emit_text_artifact(HIGH if fails else f"{LOW}a", append=True)
            if fails:
                raise ConnectionError

        await ctx.step("say", one, retry=Retry(tries=2, base_s=0))
        await ctx.respond()

    assert (await said(says))[1] == ["\ufffda"]


async def final(_: TaskContext) -> None:
    raise FinalError("log", client_text=f"x{HIGH}")


async def step(ctx: TaskContext, **options: Any) -> None:
    async def returns() -> Any:
        return Named(name=f"x{HIGH}") if options else {"name": f"x{HIGH}"}

    made = await ctx.step(f"n{HIGH}", returns, key=f"k{LOW}", **options)
    await ctx.complete(made.name if options else made["name"])


async def statuses(ctx: TaskContext) -> None:
    await ctx.send_status(f"x{HIGH}", {f"x{HIGH}": [f"x{HIGH}", {"name": HIGH + LOW}]})
    await ctx.progress(1, 2, f"x{HIGH}")
    await ctx.respond()


async def artifact(ctx: TaskContext) -> None:
    text = f"x{HIGH}"
    names: dict[str, Any] = {"name": text, "description": text, "filename": text}
    await ctx.emit_artifact(text, text="a", metadata={text: text}, **names)
    await ctx.complete("b", artifact_id=f"y{HIGH}")


@pytest.mark.parametrize(
    ("says", "state"),
    [
        (lambda ctx: ctx.complete(f"x{HIGH}"), S.TASK_STATE_COMPLETED),
        (lambda ctx: ctx.respond(f"x{HIGH}"), S.TASK_STATE_COMPLETED),
        (lambda ctx: ctx.reply_directly(f"x{HIGH}"), S.TASK_STATE_COMPLETED),
        (lambda ctx: ctx.fail(f"x{HIGH}"), S.TASK_STATE_FAILED),
        (lambda ctx: ctx.reject(f"x{HIGH}"), S.TASK_STATE_REJECTED),
        (lambda ctx: ctx.request_input(f"x{HIGH}", {"a": HIGH}), S.TASK_STATE_INPUT_REQUIRED),
        (lambda ctx: ctx.request_auth(f"x{HIGH}", [HIGH]), S.TASK_STATE_AUTH_REQUIRED),
        (lambda ctx: ctx.complete_json({f"x{HIGH}": [f"x{HIGH}", 3]}), S.TASK_STATE_COMPLETED),
        (statuses, S.TASK_STATE_COMPLETED),
        (artifact, S.TASK_STATE_COMPLETED),
        (final, S.TASK_STATE_FAILED),
        (step, S.TASK_STATE_COMPLETED),
        (lambda ctx: step(ctx, type=Named), S.TASK_STATE_COMPLETED),
    ],
)
async def test_all_that_an_agent_says_is_text(says: Says, state: Any) -> None:
    """Each way to say it ends the task after one attempt."""
    task, _ = await said(says)
    assert task.status.state == state, task.status
    assert "x\ufffd" in MessageToJson(task, ensure_ascii=False)


# -- what a TaskContext shows, and what its methods make of the task -----------------------------


def public_methods(kind: type) -> list[str]:
    """The names of the methods that an agent calls, or writes."""
    members = inspect.getmembers(kind, inspect.isfunction)
    return [name for name, _ in members if not name.startswith("_")]


async def task_sent(handle: Handle) -> tuple[Stand, Head]:
    """A task behind one turn for a caller's message."""
    stand = Stand(handle, clock=SystemClock(), public_url="https://agent.example")
    await stand.send(caller=Caller("ann", "acme", ("urn:x",)))
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

    _, head = await task_sent(handle)
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

    _, head = await task_sent(handle)
    assert head.state == S.TASK_STATE_COMPLETED
    assert deleted == ([head.task_id] if name == "cancel" else [])


WRONG_ENDINGS: list[Callable[[Any], Awaitable[None]]] = [
    lambda ctx: ctx.emit_artifact(artifact_id="x"),
    lambda ctx: ctx.update_context(object()),
    lambda ctx: ctx.request_auth("Log in", schemes=[object()]),
    lambda ctx: ctx.complete_json(10**400),
    lambda ctx: ctx.request_input("which?", object()),
    lambda ctx: ctx.reject(42),
]
"""What none of the tests above has a sentence for."""


@pytest.mark.parametrize("wrong", WRONG_ENDINGS)
async def test_an_ending_that_cannot_be_made_is_none(wrong: Any) -> None:
    """A wrong argument raises before anything is ended: the worker may still end its turn."""

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises((TypeError, ValueError)):
            await wrong(ctx)
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


@pytest.mark.parametrize("is_stale", [True, False])
async def test_a_cancel_is_one_whatever_the_state_is(*, is_stale: bool) -> None:
    """`Worker.cancel` may end the task otherwise, with its state, unless that is stale."""
    told: list[tuple[str, bool, str]] = []

    class Completing(Script):
        async def cancel(self, ctx: TaskContext) -> None:
            told.append((ctx.task_id, ctx.is_cancelled, ctx.user_text))
            await ctx.load_context()
            if is_stale:
                await Storage(stand.storage).update_context("ctx", "another's")
            await ctx.update_context("mine")
            await ctx.complete("too late")

    stand, head = await run(WorkerExecutor(Completing(lambda ctx: ctx.request_input("?"))))
    await stand.cancel()
    await stand.work()
    assert told == [(head.task_id, True, "")]
    state = S.TASK_STATE_CANCELED if is_stale else S.TASK_STATE_COMPLETED
    shown = {} if is_stale else {"final-answer": ["too late"]}
    assert (await stand.state(), await stand.artifacts()) == (state, shown)
    kept = "another's" if is_stale else "mine"
    assert await Storage(stand.storage).load_context("ctx") == kept


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
        await Storage(stand.storage).update_context("ctx", "another's")
        await ctx.update_context("mine", merge=merge)
        await ctx.complete()

    stand = Stand(handle, max_attempts=1)
    assert (await stand.work()).state == S.TASK_STATE_FAILED
    assert sentence in caplog.text
    assert await Storage(stand.storage).load_context("ctx") == "another's"


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
        await Storage(stand.storage).update_context("ctx", "another's")
        await stand.storage.request_cancel(ctx.task_id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends_in == "handle":
                await ctx.complete("too late")
            raise

    stand = Stand(WorkerExecutor(Completing(handle)), clock=SystemClock(), max_attempts=1)
    assert (await stand.work()).state == S.TASK_STATE_CANCELED
    assert await Storage(stand.storage).load_context("ctx") == "another's"


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
    """It comes from the log, to each attempt and a cancel, and not without the setting."""
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
    assert (seen, REQUEST_ID.get()) == ([value if is_set else "unset" for value in values], "unset")

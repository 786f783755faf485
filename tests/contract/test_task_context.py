"""The Worker API over memory and the emulators: every method, and what ends a turn wrongly."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
from a2a.helpers import get_data_parts, new_data_part
from a2a.types import Part, SendMessageConfiguration, Task, TaskState
from google.protobuf.json_format import MessageToDict

from a2a_serverless.settings import Settings
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.progress import Progress, progress_in
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless.worker import FinalError, TaskContext, Worker
from a2a_serverless.worker.context import WorkerExecutor
from a2a_serverless.worker.outbox import FLUSH_BYTES
from a2a_serverless_tools.contract import Storage
from tests.contract.queues import fauxqs_queues
from tests.support.databases import Database, new_scope
from tests.support.emulators import Emulator
from tests.support.messages import said
from tests.support.present import present
from tests.support.workers import Bench, S, artifact_texts, status_text, user_request

Handle = Callable[[TaskContext], Awaitable[None]]

AT_ONCE = "x" * FLUSH_BYTES
"""A text that is committed when the call that emits it returns."""


class Handling(Worker):
    """A worker made of a function."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def handle(self, ctx: TaskContext) -> None:
        await self._handle(ctx)


@pytest.fixture(params=["memory", pytest.param("emulators", marks=pytest.mark.emulators)])
def backends(request: pytest.FixtureRequest) -> Iterator[Backends]:
    """Memory, or DynamoDB Local and fauxqs; on these in a scope and queues of the test's own."""
    if request.param == "memory":
        yield memory_backends(Settings())
        return
    database: Database = request.getfixturevalue("database")
    fauxqs: Emulator = request.getfixturevalue("fauxqs")
    scope = new_scope()
    with fauxqs_queues(fauxqs) as queues:
        yield Backends(storage=database.storage(scope=scope), operations=queues.operations())


Run = Callable[..., Awaitable[Task]]


@pytest.fixture
def run(backends: Backends) -> Run:
    """Run a task of one or several turns; `more` are further parts of the first message."""

    async def running(handle: Handle, *texts: str, more: Sequence[Part] = ()) -> Task:
        bench = bench_of(backends, handle)
        head = await opened(bench, texts[0] if texts else "hello", *more)
        for text in (None, *texts[1:]):
            if text is not None:
                await bench.follow_up(head, text)
            assert await bench.work()
        return await bench.task(head)

    return running


def bench_of(backends: Backends, handle: Handle) -> Bench:
    return Bench(WorkerExecutor(Handling(handle)), backends=backends, retry_base_s=0)


async def opened(bench: Bench, text: str, *more: Part) -> Head:
    """A task of the context "ctx", its first turn enqueued."""
    beside: dict[str, Any] = {"metadata": {"lang": "de"}, "extensions": ["urn:y"]}
    request = user_request(Part(text=text), *more, **beside, reference_task_ids=["t0"])
    request.configuration.CopyFrom(SendMessageConfiguration(accepted_output_modes=["text/plain"]))
    caller = Caller("ann", "acme", ("urn:x",))
    task = await bench.storage.open_task("ctx", request, caller=caller)
    await bench.enqueue(task.head)
    return task.head


async def test_reading(run: Run) -> None:
    """On the second turn the message, the caller, the history and the artifacts are there."""
    seen: list[dict[str, Any]] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(
            {
                "ids": (bool(ctx.task_id), ctx.context_id, bool(ctx.message_id)),
                "said": (ctx.user_text, len(ctx.parts), ctx.data_parts),
                "files": [(f.content, f.url, f.filename, f.media_type) for f in ctx.files],
                "with it": (ctx.metadata, ctx.reference_task_ids, ctx.message_extensions),
                "caller": (ctx.user, ctx.tenant, set(ctx.requested_extensions)),
                "accepts": (ctx.accepts("text/plain"), ctx.accepts("image/png")),
                "history": [(m.role, m.text) for m in ctx.history],
                "artifacts": [(a.artifact_id, a.parts[0].text) for a in ctx.previous_artifacts],
                "flags": (ctx.is_cancelled, ctx.turn_ended),
            }
        )
        if ctx.history:
            await ctx.respond()
        else:
            await ctx.emit_text_artifact("draft")
            await ctx.request_input("which?")

    more = [
        Part(raw=b"\x00\xff", filename="a.bin", media_type="application/octet-stream"),
        Part(url="https://example.org/b.pdf", filename="b.pdf", media_type="application/pdf"),
        new_data_part({"nights": [1, None]}),
        Part(text="for two"),
    ]
    await run(handle, "book", "that", more=more)
    first, second = seen
    assert first == {
        "ids": (True, "ctx", True),
        "said": ("book\nfor two", 5, [{"nights": [1, None]}]),
        "files": [
            (b"\x00\xff", None, "a.bin", "application/octet-stream"),
            (None, "https://example.org/b.pdf", "b.pdf", "application/pdf"),
        ],
        "with it": ({"lang": "de"}, ("t0",), ("urn:y",)),
        "caller": ("ann", "acme", {"urn:x"}),
        "accepts": (True, False),
        "history": [],
        "artifacts": [],
        "flags": (False, False),
    }
    assert second["said"][0] == "that"
    assert second["history"] == [("user", "book\nfor two"), ("agent", "which?")]
    assert second["artifacts"] == [("answer", "draft")]


LOG_IN = "Authentication required."
ENDINGS: dict[str, tuple[Handle, TaskState, str]] = {
    "complete": (lambda c: c.complete("42"), S.TASK_STATE_COMPLETED, ""),
    "complete without text": (lambda c: c.complete(), S.TASK_STATE_COMPLETED, ""),
    "respond": (lambda c: c.respond("fine"), S.TASK_STATE_COMPLETED, "fine"),
    "reply_directly": (lambda c: c.reply_directly("hi"), S.TASK_STATE_COMPLETED, "hi"),
    "fail": (lambda c: c.fail("no model"), S.TASK_STATE_FAILED, "no model"),
    "reject": (lambda c: c.reject(), S.TASK_STATE_REJECTED, "Task rejected."),
    "request_input": (lambda c: c.request_input("a?"), S.TASK_STATE_INPUT_REQUIRED, "a?"),
    "request_auth": (lambda c: c.request_auth(), S.TASK_STATE_AUTH_REQUIRED, LOG_IN),
}
AFTER = {
    "returns": [],
    "ends again": ["error_after_end"],
    "emits": ["call_after_end"] * 4,
    "raises": ["error_after_end"],
}
"""What an agent does after the end of its turn, and what is logged."""


@pytest.mark.parametrize(
    ("ending", "after"),
    [*product(ENDINGS, ["returns"]), *product(("complete", "reply_directly"), [*AFTER][1:])],
)
async def test_an_ending_is_final(
    run: Run, backends: Backends, ending: str, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The turn is stored in one commit when the ending returns; what comes then changes nothing."""
    end, state, text = ENDINGS[ending]
    caplog.set_level(logging.WARNING)
    heads, refused = [], []

    async def handle(ctx: TaskContext) -> None:
        await end(ctx)
        assert ctx.turn_ended
        head = present(await backends.storage.head(ctx.task_id))
        heads.append((head.version, head.turn.is_open, head.replied))
        if after == "ends again":
            try:
                await ctx.complete("again")
            except RuntimeError as error:
                refused.append(str(error))
                raise
        elif after == "emits":
            await ctx.send_status("late")
            await ctx.emit_text_artifact("late")
            await ctx.update_context("late")
            await ctx.emit_file(io.BytesIO(b"late"), media_type="text/plain")
        elif after == "raises":
            raise ValueError

    task = await run(handle)
    assert heads == [(2, False, ending == "reply_directly")]
    assert (task.status.state, status_text(task), said(task)) == (state, text, ["hello"])
    assert artifact_texts(task) == ({"final-answer": ["42"]} if ending == "complete" else {})
    assert await Storage(backends.storage).load_context("ctx") is None
    assert refused == ["The turn has ended already: end it exactly once."] * (after == "ends again")
    assert [r.__dict__["action"] for r in caplog.records] == AFTER[after]
    if after == "emits":
        methods = [r.__dict__["method"] for r in caplog.records]
        assert methods == ["send_status", "emit_artifact", "update_context", "emit_file"]


async def test_progress(run: Run) -> None:
    """Statuses become history, artifacts grow or are replaced; numbers are kept beside the text."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("one")
        await ctx.send_status()
        await ctx.send_status(metadata={"tool": {"name": "search"}})
        await ctx.progress(1, 4)
        await ctx.progress(3.5, 4, "Nearly done")
        for text in ("Once ", "upon ", "a time"):
            await ctx.emit_text_artifact(text, append=True, last_chunk=text == "a time")
        await ctx.emit_data_artifact({"draft": True}, artifact_id="data")
        await ctx.emit_data_artifact({"draft": False}, artifact_id="data")
        file: dict[str, Any] = {"file_bytes": b"\x00", "media_type": "image/png", "name": "picture"}
        file |= {"filename": "x.png", "description": "of x", "metadata": {"w": 1}}
        await ctx.emit_artifact(artifact_id="file", **file, extensions=["urn:z"])
        await ctx.emit_artifact(artifact_id="link", file_url="https://x", text="see")
        await ctx.complete_json({"n": [1, None]})

    task = await run(handle)
    answer, data, file, link, json = task.artifacts
    assert said(task) == ["hello", "one", "Nearly done"]
    assert progress_in(task.metadata) == Progress(3.5, 4)
    assert MessageToDict(task.metadata)["tool"] == {"name": "search"}
    assert [part.text for part in answer.parts] == ["Once upon a time"]
    assert get_data_parts(data.parts) == [{"draft": False}]
    part = file.parts[0]
    assert (part.raw, part.media_type, part.filename) == (b"\x00", "image/png", "x.png")
    assert (file.name, file.description, file.metadata["w"]) == ("picture", "of x", 1)
    assert list(file.extensions) == ["urn:z"]
    assert [part.WhichOneof("content") for part in link.parts] == ["text", "url"]
    assert get_data_parts(json.parts) == [{"n": [1, None]}]
    assert json.parts[0].media_type == "application/json"


async def test_the_ways_to_log_in(run: Run) -> None:
    """`request_auth` sends a sentence for a person, and one data part for a program."""
    hints = {"schemes": ["Bearer", "Basic"], "credentials_hint": "a token", "auth_url": "https://x"}
    task = await run(lambda ctx: ctx.request_auth("Log in", **hints))
    sentence, data = task.status.message.parts
    assert (sentence.text, data.media_type) == ("Log in", "application/json")
    told = dict(zip(("schemes", "credentialsHint", "authUrl"), hints.values(), strict=True))
    assert get_data_parts([data]) == [told]


async def fails(_ctx: TaskContext) -> None:
    raise FinalError


FAULTS: dict[str, Handle] = {
    "raises a final error": fails,
    "returns without an ending": lambda ctx: ctx.send_status(),
    "emits what no task can hold": lambda ctx: ctx.emit_text_artifact("x", ""),
}


@pytest.mark.parametrize("is_stale", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault(run: Run, backends: Backends, fault: str, *, is_stale: bool) -> None:
    """The task fails on its first attempt, and its own update of the state is not stored."""
    contract = Storage(backends.storage)
    await contract.update_context("ctx", "before")

    async def handle(ctx: TaskContext) -> None:
        assert await ctx.load_context() == "before"
        if is_stale:
            await contract.update_context("ctx", "another's")
        await ctx.update_context("mine")
        await FAULTS[fault](ctx)

    task = await run(handle)
    assert task.status.state == S.TASK_STATE_FAILED
    assert await contract.load_context("ctx") == ("another's" if is_stale else "before")


async def test_the_state_of_a_context_goes_from_task_to_task(run: Run) -> None:
    """What a turn stores is there for the next turn and for the next task of the context."""
    seen = []

    async def handle(ctx: TaskContext) -> None:
        state = await ctx.load_context() or {"n": 0}
        seen.append(state["n"])
        await ctx.update_context({"n": state["n"] + 1})
        again = await ctx.load_context()
        assert again == {"n": state["n"] + 1}
        again["n"] = 99  # its own copy
        assert (await ctx.load_context()) == {"n": state["n"] + 1}
        await (ctx.respond() if ctx.history else ctx.request_input("more?"))

    await run(handle, "one", "two")
    await run(handle, "three")
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("loads", [True, False])
async def test_two_tasks_update_the_state_at_once(backends: Backends, *, loads: bool) -> None:
    """If two tasks read the state, or store without having read, the refused one starts over."""
    both, read = asyncio.Barrier(2), list[int]()

    async def handle(ctx: TaskContext) -> None:
        count = await ctx.load_context() or 0 if loads else len(read) // 2
        read.append(count)
        if not loads:
            await ctx.update_context(count + 1)
        if len(read) <= 2:
            await both.wait()
        if loads:
            await ctx.update_context(count + 1)
        await ctx.emit_text_artifact(str(count) + AT_ONCE)
        await ctx.respond()

    bench = bench_of(backends, handle)
    heads = [await opened(bench, text) for text in ("one", "two")]
    assert sorted(await asyncio.gather(bench.work(), bench.work())) == [False, True]
    assert await bench.work()
    assert sorted(read) == [0, 0, 1]
    assert await backends.storage.contexts.load("ctx") == (2, 2)
    tasks = [await bench.task(head) for head in heads]
    assert [t.status.state for t in tasks] == [S.TASK_STATE_COMPLETED] * 2
    assert sorted(artifact_texts(t)["answer"][0][0] for t in tasks) == ["0", "1"]

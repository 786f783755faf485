"""Halves of surrogate pairs, as some models stream them: what an agent says is Unicode text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from a2a.types import Task
from google.protobuf.json_format import MessageToJson
from pydantic import BaseModel

from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.identity import unicode_of
from a2a_serverless.worker import FinalError, Retry, TaskContext
from tests.support.workers import S
from tests.unit.worker.stand import Stand

HIGH, LOW = "\ud83d", "\ude00"
Says = Callable[[TaskContext], Awaitable[None]]


class Named(BaseModel):
    name: str


async def said(says: Says) -> tuple[Task, list[str]]:
    """The task after one attempt, and the chunks of its artifacts."""
    stand = Stand(says, max_attempts=3)
    head = await stand.send()
    await stand.bench.work()
    entries = [entry for record in await stand.bench.records(head) for entry in record.entries]
    chunks = [each.artifact for each in entries if isinstance(each, ArtifactWritten)]
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
async def test_halves_of_neighbouring_chunks_are_joined(
    chunks: list[str], expected: list[str]
) -> None:
    """Those that stay alone are U+FFFD, at the latest with the turn's ending."""

    async def says(ctx: TaskContext) -> None:
        for number, chunk in enumerate(chunks):
            await ctx.emit_text_artifact(chunk, append=number > 0)
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

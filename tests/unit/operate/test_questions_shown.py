"""What is shown of a task whose code waits for its client."""

from __future__ import annotations

import pytest

from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.turns import turns_of
from a2a_serverless.worker import TaskContext, WaitTimeoutError
from a2a_serverless_tools.console.parts import shown_parts
from a2a_serverless_tools.operate.lists import TaskRow
from a2a_serverless_tools.operate.view import facts
from tests.unit.operate.timelines import timeline_of
from tests.unit.worker.test_questions import answered
from tests.unit.worker.test_steps import Stand, run


async def shown(stand: Stand, head: Head) -> dict[str, str]:
    records = await stand.bench.records(head)
    seen = timeline_of(head, records, now_ms=stand.clock.now_ms())
    return {fact.name: fact.text for fact in facts(seen)}


@pytest.mark.parametrize("timeout_s", [None, 7200])
async def test_a_question_says_since_when_and_until_when_it_waits(timeout_s: int | None) -> None:
    """And what ends the wait: the next message, or the sweeper at the end of its time."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.ask("Which account?", timeout_s=timeout_s)
        await ctx.complete()

    stand, head = await run(handle)
    told = await shown(stand, head)
    assert told["asks"] == "Which account?"
    assert told["waits"].startswith("for an answer since ")
    assert "its code goes on with the next message" in told["waits"]
    assert ("or without one at " in told["waits"]) == (timeout_s is not None)
    notes = TaskRow(head=head, why=head.attention).notes(stand.clock.now_ms())
    assert [each[:26] for each in notes] == ["waits for an answer until "] * (timeout_s is not None)
    if timeout_s is not None:
        assert told["due"].endswith("the end of the time for an answer")
    head = await answered(stand, "b")
    assert "waits" not in await shown(stand, head)


async def test_each_of_several_questions_is_shown() -> None:
    """With its first line."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.gather(ctx.ask("Which day?\nA Monday?", id="day"), ctx.ask("Where?", id="place"))

    stand, head = await run(handle)
    assert (await shown(stand, head))["asks"] == "Which day? Where?"
    asked = shown_parts((await stand.bench.task(head)).status.message.parts)
    assert [part.text for part in asked] == ["Which day?\nA Monday?", "Where?"]


async def test_a_turn_without_a_message_is_a_turn() -> None:
    """It is that of the sender of the last message."""

    async def handle(ctx: TaskContext) -> None:
        try:
            await ctx.ask("Which account?", timeout_s=60)
        except WaitTimeoutError:
            await ctx.complete()

    stand, _ = await run(handle)
    await stand.pass_time(61)
    head = await stand.work()
    turns = turns_of(head, await stand.bench.records(head))
    assert [(turn.number, len(turn.attempts)) for turn in turns] == [(1, 1), (2, 1)]
    assert turns[1].ended is not None


async def test_questions_are_among_the_steps() -> None:
    """With what became of them: asked, until when, and that an answer fits."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.ask("How many?", schema=int, id="number")
        await ctx.step("plan", len, "")
        await ctx.ask("Sure?", timeout_s=60, id="sure")
        await ctx.complete()

    stand, _ = await run(handle)
    head = await answered(stand, "3")
    seen = timeline_of(head, await stand.bench.records(head))
    told = [(step.id.key or step.id.name, step.turn, step.result[:14]) for step in seen.steps]
    assert told == [
        ("number", 1, "asked"),
        ("number", 2, "answered"),
        ("plan", 2, "0"),
        ("sure", 2, "asked, until 2"),
    ]

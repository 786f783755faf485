"""What is shown of a task that tells its progress, or whose code waits for its client or others."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from a2a.types import StreamResponse, TaskState, TaskStatus, TaskStatusUpdateEvent

from a2a_serverless.storage.signals import signal
from a2a_serverless.tasks.entries import Entry, Restarted, StatusChanged
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.progress import Progress
from a2a_serverless.tasks.turns import turns_of
from a2a_serverless.tasks.waits import Signal, open_waits
from a2a_serverless.worker import Remote, Retry, TaskContext, WaitTimeoutError
from a2a_serverless.worker.context import active_turn
from a2a_serverless_tools.cli.task_text import as_json
from a2a_serverless_tools.console.parts import shown_parts
from a2a_serverless_tools.local.demo import _Transcript
from a2a_serverless_tools.operate.cost import Workers, cost_of
from a2a_serverless_tools.operate.lists import TaskRow
from a2a_serverless_tools.operate.timeline import Timeline
from a2a_serverless_tools.operate.view import facts, tree
from a2a_serverless_tools.testing import Outcome, StandIn
from tests.support.clocks import ManualClock
from tests.support.heads import with_fields
from tests.support.messages import agent_message
from tests.support.present import present
from tests.unit.operate.timelines import timeline_of
from tests.unit.tasks.heads import opened
from tests.unit.worker.test_questions import answered
from tests.unit.worker.test_steps import Handle, Stand, run


async def seen(stand: Stand, head: Head) -> Timeline:
    records = await stand.bench.records(head)
    return timeline_of(head, records, now_ms=stand.clock.now_ms())


async def begin(handle: Handle, clock: ManualClock | None = None) -> tuple[Stand, Timeline]:
    """The worker of a script, and its task as an operator sees it."""
    stand = Stand(handle, clock=clock, public_url="https://agent.example")
    await stand.send()
    return stand, await seen(stand, await stand.work())


def waits(shown: Timeline) -> list[str]:
    return [fact.text for fact in facts(shown) if fact.name == "waits"]


async def shown(stand: Stand, head: Head) -> dict[str, str]:
    return {fact.name: fact.text for fact in facts(await seen(stand, head))}


async def test_a_callback_and_a_poll_are_shown_until_they_are_over() -> None:
    """With their keys and times, and what ends them."""

    async def handle(ctx: TaskContext) -> None:
        callback = await ctx.callback("paid", key="a")
        poll = ctx.poll("export", lambda: None, every_s=300, timeout_s=7200)
        await ctx.gather(callback.wait(timeout_s=3600), poll)

    stand, shown = await begin(handle)
    callback, poll = waits(shown)
    assert callback.startswith("for the callback paid [a] until 20")
    ends, since = callback.split("; ")[1:]
    assert ends == "a POST to its address ends that, or `a2a-serverless tasks signal`"
    assert since.startswith("waits since 20")
    assert poll.startswith("for the poll export, which looks again at 20")
    assert "; waits since 20" in poll
    assert "; gives up at 20" in poll
    storage = stand.bench.storage
    step_id = next(iter(open_waits(present(await storage.read(shown.head.task_id)))))
    where = (shown.head.task_id, shown.head.incarnation)
    await signal(storage, *where, turn=1, step_id=step_id, given=Signal(b"7"))
    (left,) = waits(await seen(stand, await stand.work()))
    assert left.startswith("for the poll export")


async def test_a_called_agent_is_shown_with_its_task() -> None:
    """Where an operator finds what this task waits for."""
    found: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        turn = active_turn(ctx)
        books = StandIn("books", lambda _: Outcome("a book", after_s=72_000), turn.lease.clock)
        turn.agents = {"books": cast("Remote", books)}
        try:
            await ctx.call_agent("books", "wait", timeout_s=36_000)
        finally:
            found.extend(books._tasks)

    _, shown = await begin(handle, ManualClock())
    (text,) = waits(shown)
    (task_id,) = found
    assert text.startswith(f"for the task {task_id} of the agent books")
    assert ", which is looked at again at 20" in text
    assert "; gives up at 20" in text


async def test_a_step_that_is_tried_again_is_shown_and_a_sleep_is_not() -> None:
    """A sleep is a row of its own, and nothing says that it is over."""

    async def fails() -> None:
        raise ConnectionError

    async def handle(ctx: TaskContext) -> None:
        await ctx.sleep(90)
        await ctx.step("plan", fails, retry=Retry(tries=3, base_s=900, cap_s=900))

    stand, shown = await begin(handle)
    assert waits(shown) == []
    await stand.pass_time(91)
    (text,) = waits(await seen(stand, await stand.work()))
    assert text.startswith("for the next try of the step plan at 20")


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
    steps = (await seen(stand, head)).steps
    told = [f"{step.id.key or step.id.name} {step.turn} {step.result[:14]}" for step in steps]
    assert told == ["number 1 asked", "number 2 answered", "plan 2 0", "sure 2 asked, until 2"]


WORKING = TaskStatus(state=TaskState.TASK_STATE_WORKING)
BAR = "██████░░░░░░░░░░░░░░ 3 of 10"


def told(done: float) -> StatusChanged:
    return StatusChanged(WORKING, Progress.of(done, 10).metadata(), archive=True)


def records(*entries: Entry) -> list[Record]:
    return [Record(version=n, entries=(entry,)) for n, entry in enumerate(entries, 1)]


def test_the_command_line_shows_a_bar() -> None:
    """One of the open turn at the top, and one in each version that told it; never the text."""
    shown = timeline_of(opened(), records(told(1), told(3)))
    assert [fact.text for fact in facts(shown) if fact.name == "progress"] == [BAR]
    assert [line.text.endswith(f"status working, {BAR}") for line in tree(shown)].count(True) == 1


def test_only_what_counts_now_is_at_the_top() -> None:
    """A later status without progress, a restart, and the end of the turn leave none."""
    for last in (StatusChanged(WORKING), Restarted(1)):
        assert timeline_of(opened(), records(told(1), told(3), last)).progress is None
    over = with_fields(opened(), is_open=False)
    assert timeline_of(over, records(told(3))).progress is None


def test_programs_get_the_numbers() -> None:
    """In the JSON of the task, and of each change that told them."""

    def printed_of(*entries: Entry) -> dict[str, Any]:
        shown = timeline_of(opened(), records(*entries))
        return as_json(shown, cost_of(shown, Workers()))

    printed = printed_of(told(3), StatusChanged(WORKING))
    assert printed["progress"] is None
    assert printed["commits"][0]["changes"][0]["progress"] == {"done": 3, "total": 10}
    assert printed["commits"][1]["changes"][0]["progress"] is None
    assert printed_of(told(3))["progress"] == {"done": 3, "total": 10}


def test_the_transcript_of_a_stream_shows_a_bar() -> None:
    """`demo` prints it beside the state, before the text."""
    out = io.StringIO()
    status = TaskStatus(state=WORKING.state, message=agent_message("Page 3"))
    update = TaskStatusUpdateEvent(status=status, metadata=Progress.of(3, 10).metadata())
    _Transcript(out).event(StreamResponse(status_update=update))
    assert out.getvalue().endswith(f"{BAR}  Page 3\n")
    assert "working" in out.getvalue()

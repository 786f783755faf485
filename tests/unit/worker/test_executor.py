"""What executors written for the official SDK may emit, and what becomes of it."""

from __future__ import annotations

import asyncio
import copy
import threading
from contextlib import suppress
from typing import Any

import pytest
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import MessageToDict

from a2a_serverless.clock import SystemClock
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.worker.context import TaskContext
from tests.support.messages import said
from tests.support.workers import Agent, Execute, S, chunk, complete, status
from tests.unit.worker.stand import Log, Patch, Stand, actions, run

PAUSES = [S.TASK_STATE_INPUT_REQUIRED, S.TASK_STATE_AUTH_REQUIRED]


def text_message(text: str, *, task_id: str = "") -> Message:
    parts = [Part(text=text)]
    return Message(message_id="m", role=Role.ROLE_AGENT, parts=parts, task_id=task_id)


def own_task(context: RequestContext) -> Task:
    assert context.message is not None
    return new_task_from_user_message(context.message)


async def followed(execute: Execute, *turns: str) -> Stand:
    """A task behind a turn for "hello", and one for each of these messages."""
    stand, _ = await run(Agent(execute))
    for text in turns:
        await stand.follow_up(text)
        await stand.work()
    return stand


async def test_a_task_event_first_is_the_task_we_have() -> None:
    """The usual opening of an SDK executor adds nothing twice, least of all the user's message."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(own_task(context))
        updater = TaskUpdater(queue, context.task_id or "", context.context_id or "")
        await updater.start_work(updater.new_agent_message([Part(text="thinking")]))
        await updater.add_artifact([Part(text="one")], artifact_id="a", last_chunk=True)
        await updater.complete(updater.new_agent_message([Part(text="done")]))

    stand, _ = await run(Agent(execute))
    assert said(await stand.shown()) == ["hello", "thinking"]
    assert (await stand.text(), await stand.artifacts()) == ("done", {"a": ["one"]})


async def test_a_task_event_brings_what_it_holds() -> None:
    """History, artifacts, metadata and status of an agent's own Task are taken over, once."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        task = own_task(context)
        task.history.append(text_message("note"))
        task.artifacts.append(Artifact(artifact_id="a", parts=[Part(text="all")]))
        task.metadata["cost"] = 3
        await queue.enqueue_event(task)
        await queue.enqueue_event(task)  # nothing in it is new
        bare = Message(parts=[Part(text="bare")])
        update = Task(id=context.task_id, context_id=context.context_id, history=[bare])
        for _ in range(2):  # its message is known by its parts, and it has no status
            await queue.enqueue_event(update)
        task.status.CopyFrom(TaskStatus(state=S.TASK_STATE_COMPLETED, message=text_message("ok")))
        task.status.message.message_id = "end"
        await queue.enqueue_event(task)

    stand, head = await run(Agent(execute))
    task = await stand.shown()
    assert (head.state, task.metadata["cost"]) == (S.TASK_STATE_COMPLETED, 3)
    assert (said(task), await stand.text()) == (["hello", "note", "bare"], "ok")
    assert (task.history[-1].role, bool(task.history[-1].message_id)) == (Role.ROLE_AGENT, True)
    assert await stand.artifacts() == {"a": ["all"]}
    assert (await stand.kinds())[2:-2] == ["ArtifactWritten", *["StatusChanged"] * 4]


async def test_nothing_is_accepted_after_the_end(caplog: Log) -> None:
    """The end is stored when `enqueue_event` returns; later events, of threads too, are dropped."""
    states: list[S] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await complete(context, queue)
        states.append(await stand.state())
        await queue.enqueue_event(chunk(context, "late"))
        await queue.enqueue_event(status(context, S.TASK_STATE_WORKING))
        late = threading.Thread(
            target=lambda: asyncio.run(queue.enqueue_event(chunk(context, "late"))), daemon=True
        )
        late.start()
        late.join(30)  # blocks the queue's own loop
        assert not late.is_alive()

    stand = Stand(Agent(execute))
    head = await stand.work()
    assert [*states, head.state] == [S.TASK_STATE_COMPLETED] * 2
    assert (await stand.artifacts(), actions(caplog)) == ({}, ["event_dropped"] * 3)


async def test_a_closed_queue_takes_no_more() -> None:
    """As the SDK's own: close(), also by `async with`, stores what was taken and takes no more."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        async with queue:  # type: ignore[attr-defined]
            await queue.enqueue_event(chunk(context, "in"))
            assert not queue.is_closed()  # type: ignore[attr-defined]
        assert queue.is_closed()  # type: ignore[attr-defined]
        assert await stand.artifacts() == {"a": ["in"]}
        await queue.close()  # type: ignore[attr-defined]
        await queue.enqueue_event(chunk(context, "out"))

    stand = Stand(Agent(execute))
    await stand.work()
    assert await stand.artifacts() == {"a": ["in"]}


async def test_a_queue_that_closes_at_once_waits_for_no_commit() -> None:
    """As the SDK's own; what was taken is stored all the same."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "in"))
        await queue.close(immediate=True)  # type: ignore[attr-defined]
        seen.append((queue.is_closed(), await stand.artifacts()))  # type: ignore[attr-defined]

    stand, seen = Stand(Agent(execute)), list[object]()
    await stand.work()
    assert seen == [(True, {})]
    assert await stand.artifacts() == {"a": ["in"]}


async def test_a_pause_without_a_message_is_none_in_the_history() -> None:
    """The next turn hears what was said."""
    heard: list[list[str]] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        heard.append([each.text for each in TaskContext(context, queue).history])
        await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED))

    stand, _ = await run(Agent(execute))
    await stand.follow_up("more")
    await stand.work()
    assert heard == [[], ["hello"]]


async def test_an_event_may_be_changed_after_it_was_enqueued() -> None:
    """An event that the agent changes after enqueueing it is stored as it was enqueued."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        event = chunk(context, "one")
        await queue.enqueue_event(event)
        event.artifact.parts[0].text = "two"
        await queue.enqueue_event(event)
        await complete(context, queue)

    stand, _ = await run(Agent(execute))
    assert await stand.artifacts() == {"a": ["onetwo"]}


async def test_a_task_event_with_a_fault_is_not_written_in_part() -> None:
    """No part of a faulty Task event is written, and no event after it."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "before"))
        task = own_task(context)
        task.history.append(text_message("note"))
        task.artifacts.append(Artifact(artifact_id="b", parts=[Part(text="right")]))
        task.artifacts.append(Artifact(artifact_id="c", parts=[Part()]))
        task.metadata["cost"] = 3
        task.status.CopyFrom(TaskStatus(state=S.TASK_STATE_COMPLETED))
        await queue.enqueue_event(task)

    stand, head = await run(Agent(execute))
    assert head.state == S.TASK_STATE_FAILED
    assert await stand.text() == "Artifact 'c' of the agent has a part without content."
    task = await stand.shown()
    assert (said(task), await stand.artifacts()) == (["hello"], {"a": ["before"]})
    assert not task.metadata.fields


def status_of(task_id: str, state: Any = S.TASK_STATE_WORKING) -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(task_id=task_id, status=TaskStatus(state=state))


def artifact_of(task_id: str, **fields: Any) -> TaskArtifactUpdateEvent:
    return TaskArtifactUpdateEvent(task_id=task_id, artifact=Artifact(**fields))


HOLLOW = {"artifact_id": "a", "parts": [Part()]}
EMPTY = Message(message_id="m", role=Role.ROLE_AGENT)
LATE = "emitted a Message after task events; it has to use a status message."
FAULTS: list[tuple[list[Any], str]] = [
    ([status_of("@"), text_message("late")], LATE),
    ([status_of("other")], "emitted a TaskStatusUpdateEvent for another task than its own."),
    ([artifact_of("other", **HOLLOW)], "emitted a TaskArtifactUpdateEvent for another task than"),
    ([Task(id="other")], "emitted a Task for another task than its own."),
    ([text_message("x", task_id="other")], "emitted a Message for another task than its own."),
    ([status_of("@", None)], "emitted a status without a state."),
    ([EMPTY], "emitted a message without parts."),
    ([artifact_of("@", **HOLLOW)], "Artifact 'a' of the agent has a part without content."),
    ([artifact_of("@", parts=[Part(text="x")])], "emitted an artifact without artifactId."),
    (["hello"], "emitted a str, which is no A2A event."),
]
"""What an agent may not emit, `@` for its task's id, and the sentence of it."""


@pytest.mark.parametrize("caught", [(), (Exception,)])
@pytest.mark.parametrize(("events", "sentence"), FAULTS)
async def test_an_impossible_event_fails_the_task(events: Any, sentence: str, caught: Any) -> None:
    """The task fails at once and the sentence names the agent's fault, also if it catches it."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        for template in events:
            event = copy.deepcopy(template)
            if getattr(event, "task_id", "") == "@":
                event.task_id = context.task_id
            with suppress(*caught):
                await queue.enqueue_event(event)
        await complete(context, queue)

    stand, head = await run(Agent(execute))
    assert head.state == S.TASK_STATE_FAILED
    assert (await stand.text()).removeprefix("The agent ").startswith(sentence)


async def test_tasks_that_emit_at_once_share_no_commit_beyond_its_limit() -> None:
    """Four artifacts of 1.5 MB by gather are stored as they are one after the other."""

    async def together(context: RequestContext, queue: EventQueue) -> None:
        chunks = (chunk(context, "x" * 1_500_000, artifact_id=f"a{n}") for n in range(4))
        await asyncio.gather(*(queue.enqueue_event(one) for one in chunks))
        await complete(context, queue)

    stand, head = await run(Agent(together))
    assert head.state == S.TASK_STATE_COMPLETED
    assert [len(text) for (text,) in (await stand.artifacts()).values()] == [1_500_000] * 4


async def test_an_agent_emits_from_a_loop_of_its_own() -> None:
    """Calls from an agent's thread run in the queue's loop, and are stored in their order."""

    async def elsewhere(context: RequestContext, queue: EventQueue) -> None:
        for text in ("one ", "two "):
            await asyncio.to_thread(asyncio.run, queue.enqueue_event(chunk(context, text)))
        await asyncio.to_thread(lambda: asyncio.run(complete(context, queue)))

    async with asyncio.timeout(60):
        stand, head = await run(Agent(elsewhere), clock=SystemClock())
    assert (head.state, await stand.artifacts()) == (S.TASK_STATE_COMPLETED, {"a": ["one two "]})


async def test_events_of_many_tasks_keep_their_order(monkeypatch: Patch) -> None:
    """Full batches make emitters wait; none overtakes another, and the ending overtakes none."""
    emitting: list[asyncio.Task[None]] = []
    commit = DurableStorage.commit

    async def slowly(*args: object) -> object:
        for _ in range(20):
            await asyncio.sleep(0)
        return await commit(*args)  # type: ignore[arg-type]

    async def many(context: RequestContext, queue: EventQueue) -> None:
        for number in range(40):
            text = f"{number:02d}" + " " * 30_000
            emitting.append(asyncio.create_task(queue.enqueue_event(chunk(context, text))))
        await asyncio.sleep(0)
        await complete(context, queue)

    monkeypatch.setattr(DurableStorage, "commit", slowly)
    stand, _ = await run(Agent(many))
    (text,) = (await stand.artifacts())["a"]
    assert text.split() == [f"{number:02d}" for number in range(40)]


async def test_a_large_answer_fits_behind_the_conversations_state() -> None:
    """The state that the end of the turn stores counts as a part of its commit."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.update_context("s" * 330_000)
        await ctx.emit_text_artifact("x" * 60_000, "small")
        await ctx.respond("y" * 3_620_000)

    _, head = await run(handle)
    assert head.state == S.TASK_STATE_COMPLETED


def wordless(**metadata: object) -> Message:
    return Message(message_id="w", role=Role.ROLE_AGENT, metadata=metadata)


async def in_statuses(context: RequestContext, queue: EventQueue) -> None:
    task_id = context.task_id or ""
    for state, message, metadata in (
        (S.TASK_STATE_WORKING, wordless(a=1, b=1), {"a": 2}),
        (S.TASK_STATE_COMPLETED, wordless(c=3), {}),
    ):
        event = status_of(task_id, state)
        event.status.message.CopyFrom(message)
        event.metadata.update(metadata)
        await queue.enqueue_event(event)


async def in_a_task(context: RequestContext, queue: EventQueue) -> None:
    task = own_task(context)
    task.history.extend([wordless(a=1, b=1, c=1), wordless(a=2, c=2)])
    task.status.CopyFrom(TaskStatus(state=S.TASK_STATE_COMPLETED, message=wordless(c=3, a=3)))
    task.metadata["a"] = 2
    await queue.enqueue_event(task)


@pytest.mark.parametrize("execute", [in_statuses, in_a_task])
async def test_a_message_without_parts_is_no_message(execute: Execute) -> None:
    """Its status counts, its metadata joins the event's, whose own keys win; nothing is said."""
    stand, head = await run(Agent(execute))
    assert head.state == S.TASK_STATE_COMPLETED
    task = await stand.shown()
    assert not task.status.HasField("message")
    assert (said(task), MessageToDict(task.metadata)) == (["hello"], {"a": 2, "b": 1, "c": 3})


@pytest.mark.parametrize("names_messages", [True, False])
@pytest.mark.parametrize("pause", PAUSES)
async def test_the_same_question_is_asked_again(pause: TaskState, *, names_messages: bool) -> None:
    """A turn that ends with the pause it began with has ended, and the question is there twice."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        message = Message(role=Role.ROLE_AGENT, parts=[Part(text="Which?")])
        if names_messages:
            message.message_id = f"question {context.get_user_input()}"
        task = own_task(context)  # made anew in each turn
        task.status.CopyFrom(TaskStatus(state=pause, message=message))
        await queue.enqueue_event(task)

    stand = await followed(execute, "two", "three")
    assert (await stand.state(), await stand.text()) == (pause, "Which?")
    assert said(await stand.shown()) == ["hello", "Which?", "two", "Which?", "three"]


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize(
    "ends", [[], *([end] for end in (S.TASK_STATE_COMPLETED, PAUSES[0], S.TASK_STATE_WORKING))]
)
async def test_what_follows_a_task_that_is_sent_back_counts(pause: S, ends: list[S]) -> None:
    """Without a status behind it the agent pauses as it returns; who works on needs an end."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.current_task is None:
            await queue.enqueue_event(status(context, pause, "Which?"))
            return
        await queue.enqueue_event(copy.deepcopy(context.current_task))
        await queue.enqueue_event(chunk(context, "draft"))
        for end in ends:
            await queue.enqueue_event(status(context, S.TASK_STATE_WORKING, "thinking"))
            await queue.enqueue_event(status(context, end, "there"))

    stand = await followed(execute, "two")
    if ends == [S.TASK_STATE_WORKING]:
        assert await stand.state() == S.TASK_STATE_FAILED
        return
    shown = (ends[0], "there") if ends else (pause, "Which?")
    assert (await stand.state(), await stand.text()) == shown
    assert said(await stand.shown()) == ["hello", "Which?", "two", *["thinking"] * len(ends)]
    assert await stand.artifacts() == {"a": ["draft"]}

"""Messages without parts, and Tasks that say again what was said before."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import pytest
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import Message, Part, Role, Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToDict

from tests.support.messages import said
from tests.support.workers import (
    Agent,
    Bench,
    Execute,
    S,
    artifact_texts,
    chunk,
    status,
    status_text,
)

PAUSES = [S.TASK_STATE_INPUT_REQUIRED, S.TASK_STATE_AUTH_REQUIRED]


def wordless(**metadata: object) -> Message:
    """An agent's message without parts."""
    return Message(message_id="w", role=Role.ROLE_AGENT, metadata=metadata)


def update(
    context: RequestContext, state: TaskState, message: Message, metadata: Mapping[str, object]
) -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(
        task_id=context.task_id,
        context_id=context.context_id,
        status=TaskStatus(state=state, message=message),
        metadata=metadata,
    )


def own_task(context: RequestContext) -> Task:
    assert context.message is not None
    return new_task_from_user_message(context.message)


async def run(execute: Execute, *, turns: Sequence[str] = ("hello",)) -> Task:
    bench = Bench(Agent(execute))
    head = await bench.send(turns[0])
    assert await bench.work()
    for text in turns[1:]:
        await bench.follow_up(head, text)
        assert await bench.work()
    return await bench.task(head)


def metadata_of(task: Task) -> dict[str, object]:
    return MessageToDict(task.metadata)


async def test_a_status_message_without_parts_is_no_message() -> None:
    """The status counts, its metadata joins the event's, whose own keys win; nothing is said."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        message = wordless(step=1, model="none")
        await queue.enqueue_event(update(context, S.TASK_STATE_WORKING, message, {"step": 2}))
        end = update(context, S.TASK_STATE_COMPLETED, wordless(done=True), {})
        await queue.enqueue_event(end)

    task = await run(execute)
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert not task.status.HasField("message")
    assert said(task) == ["hello"]
    assert metadata_of(task) == {"step": 2, "model": "none", "done": True}


async def test_messages_without_parts_in_a_task_are_no_messages() -> None:
    """Metadata of messages without parts joins the Task's."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        task = own_task(context)
        task.history.extend([wordless(a=1, b=1, c=1, d=1), wordless(b=2, c=2, d=2)])
        task.status.CopyFrom(TaskStatus(state=S.TASK_STATE_COMPLETED, message=wordless(c=3, d=3)))
        task.metadata["d"] = 4
        await queue.enqueue_event(task)

    task = await run(execute)
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert not task.status.HasField("message")
    assert said(task) == ["hello"]
    assert metadata_of(task) == {"a": 1, "b": 2, "c": 3, "d": 4}


def asking(pause: TaskState, *, names_messages: bool) -> Execute:
    """Ask one question on every turn, by a Task that is made anew."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        message = Message(role=Role.ROLE_AGENT, parts=[Part(text="Which?")])
        if names_messages:
            message.message_id = f"question {context.get_user_input()}"
        task = own_task(context)
        task.status.CopyFrom(TaskStatus(state=pause, message=message))
        await queue.enqueue_event(task)

    return execute


@pytest.mark.parametrize("names_messages", [True, False])
@pytest.mark.parametrize("pause", PAUSES)
async def test_the_same_question_in_a_task_is_asked_again(
    pause: TaskState,
    names_messages: bool,  # noqa: FBT001
) -> None:
    """A turn that ends with the pause it began with has ended, and the question is there twice."""
    task = await run(asking(pause, names_messages=names_messages), turns=("one", "two", "three"))
    assert task.status.state == pause
    assert said(task) == ["one", "Which?", "two", "Which?", "three"]
    assert status_text(task) == "Which?"


@pytest.mark.parametrize("pause", PAUSES)
async def test_a_task_that_is_sent_back_ends_the_turn_at_its_return(pause: TaskState) -> None:
    """What follows the given Task is taken; without a status of its own the agent still pauses."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.current_task is None:
            await queue.enqueue_event(status(context, pause, "Which?"))
            return
        await queue.enqueue_event(context.current_task)
        await queue.enqueue_event(chunk(context, "draft"))

    task = await run(execute, turns=("one", "two"))
    assert (task.status.state, status_text(task)) == (pause, "Which?")
    assert said(task) == ["one", "Which?", "two"]
    assert artifact_texts(task) == {"a": ["draft"]}


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("end", [S.TASK_STATE_COMPLETED, S.TASK_STATE_INPUT_REQUIRED])
async def test_a_status_after_the_given_task_is_what_counts(
    pause: TaskState, end: TaskState
) -> None:
    """A Task that is sent back first, as samples do, neither ends the turn nor asks again."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.current_task is None:
            await queue.enqueue_event(status(context, pause, "Which?"))
            return
        await queue.enqueue_event(copy.deepcopy(context.current_task))
        await queue.enqueue_event(status(context, S.TASK_STATE_WORKING, "thinking"))
        await queue.enqueue_event(status(context, end, "there"))

    task = await run(execute, turns=("one", "two"))
    assert (task.status.state, status_text(task)) == (end, "there")
    assert said(task) == ["one", "Which?", "two", "thinking"]


async def test_an_agent_that_goes_on_working_after_the_given_task_is_at_fault() -> None:
    """The pause that was sent back is over with the next status; the turn still needs an end."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.current_task is None:
            await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "Which?"))
            return
        await queue.enqueue_event(context.current_task)
        await queue.enqueue_event(status(context, S.TASK_STATE_WORKING))

    task = await run(execute, turns=("one", "two"))
    assert task.status.state == S.TASK_STATE_FAILED

"""What executors written for the official SDK may emit, and what becomes of it."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Sequence
from contextvars import ContextVar

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
    TaskStatus,
    TaskStatusUpdateEvent,
)

from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.fold import Event
from a2a_serverless.worker.context import TaskContext, Worker, WorkerExecutor
from a2a_serverless_tools.contract import Storage
from tests.support.messages import said
from tests.support.workers import (
    Agent,
    Bench,
    S,
    artifact_texts,
    chunk,
    complete,
    status,
    status_text,
)


def text_message(text: str, *, task_id: str = "") -> Message:
    parts = [Part(text=text)]
    return Message(message_id="m", role=Role.ROLE_AGENT, parts=parts, task_id=task_id)


async def run(execute: object, *, turns: Sequence[str] = ("hello",)) -> tuple[Bench, Task]:
    bench = Bench(Agent(execute))  # type: ignore[arg-type]
    head = await bench.send(turns[0])
    assert await bench.work()
    for text in turns[1:]:
        await bench.follow_up(head, text, message_id="u")
        assert await bench.work()
    return bench, await bench.task(head)


async def test_a_task_event_first_is_the_task_we_have() -> None:
    """The usual opening of an SDK executor adds nothing twice, least of all the user's message."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        assert context.message is not None
        assert context.task_id is not None
        assert context.context_id is not None
        await queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        await updater.start_work(updater.new_agent_message([Part(text="thinking")]))
        await updater.add_artifact([Part(text="one")], artifact_id="a", last_chunk=True)
        await updater.complete(updater.new_agent_message([Part(text="done")]))

    _, task = await run(execute)
    assert said(task) == ["hello", "thinking"]
    assert status_text(task) == "done"
    assert artifact_texts(task) == {"a": ["one"]}


async def test_a_task_event_brings_what_it_holds() -> None:
    """History, artifacts, metadata and status of an agent's own Task are taken over."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        task = new_task_from_user_message(context.message)  # type: ignore[arg-type]
        task.history.append(text_message("note"))
        task.artifacts.append(Artifact(artifact_id="a", parts=[Part(text="all")]))
        task.metadata["cost"] = 3
        task.status.CopyFrom(TaskStatus(state=S.TASK_STATE_COMPLETED, message=text_message("ok")))
        task.status.message.message_id = "end"
        await queue.enqueue_event(task)

    _, task = await run(execute)
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert (said(task), status_text(task)) == (["hello", "note"], "ok")
    assert artifact_texts(task) == {"a": ["all"]}
    assert task.metadata["cost"] == 3


async def test_a_message_alone_is_the_answer() -> None:
    """A single Message completes the task, and is marked as the reply for the client."""

    async def execute(_context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(text_message("hi"))

    bench, task = await run(execute)
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert status_text(task) == "hi"
    log = await bench.storage.read(task.id)
    assert log is not None
    reply = log.fold().reply
    assert log.head.replied
    assert reply is not None
    assert (reply.task_id, reply.context_id) == (task.id, task.context_id)


async def test_nothing_is_accepted_after_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Events after a terminal state are dropped and logged; the agent goes on undisturbed."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await complete(context, queue)
        await queue.enqueue_event(chunk(context, "late"))
        await queue.enqueue_event(status(context, S.TASK_STATE_WORKING))

    _, task = await run(execute)
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert artifact_texts(task) == {}
    assert [r.__dict__["action"] for r in caplog.records] == ["event_dropped"] * 2


async def test_an_ending_is_stored_when_enqueue_returns() -> None:
    """An event that ends the turn is committed before the agent goes on."""
    states = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await complete(context, queue)
        states.append((await bench.head(head)).state)

    bench = Bench(Agent(execute))
    head = await bench.send()
    assert await bench.work()
    assert states == [S.TASK_STATE_COMPLETED]


async def test_a_closed_queue_takes_no_more() -> None:
    """close() stores what was taken; later events are dropped, as on the SDK's own queue."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "in"))
        assert not queue.is_closed()  # type: ignore[attr-defined]
        await queue.close()  # type: ignore[attr-defined]
        assert queue.is_closed()  # type: ignore[attr-defined]
        assert artifact_texts(await bench.task(head)) == {"a": ["in"]}
        await queue.enqueue_event(chunk(context, "out"))

    bench = Bench(Agent(execute))
    head = await bench.send()
    assert await bench.work()
    assert artifact_texts(await bench.task(head)) == {"a": ["in"]}


async def test_a_queue_is_a_context_manager() -> None:
    """Leaving `async with queue` closes it."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        async with queue:  # type: ignore[attr-defined]
            await complete(context, queue)
        assert queue.is_closed()  # type: ignore[attr-defined]

    _, task = await run(execute)
    assert task.status.state == S.TASK_STATE_COMPLETED


async def test_an_event_may_be_changed_after_it_was_enqueued() -> None:
    """An event that the agent changes after enqueueing it is stored as it was enqueued."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        event = chunk(context, "one")
        await queue.enqueue_event(event)
        event.artifact.parts[0].text = "two"
        await queue.enqueue_event(event)
        await complete(context, queue)

    _, task = await run(execute)
    assert artifact_texts(task) == {"a": ["onetwo"]}


async def test_a_large_artifact_is_committed_while_it_is_emitted() -> None:
    """At 64 KB the agent waits for a commit, so that no batch grows without bound."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        for _ in range(10):
            await queue.enqueue_event(chunk(context, "x" * 30_000))
        await complete(context, queue)

    bench, task = await run(execute)
    head = await bench.storage.head(task.id)
    assert head is not None
    sizes = [
        sum(isinstance(entry, ArtifactWritten) for entry in record.entries)
        for record in await bench.records(head)
    ]
    assert sum(sizes) == 10
    assert max(sizes) == 3
    assert len("".join(artifact_texts(task)["a"])) == 300_000


async def test_a_task_event_with_a_fault_is_not_written_in_part() -> None:
    """No part of a faulty Task event is written, and no event after it."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(chunk(context, "before"))
        task = new_task_from_user_message(context.message)  # type: ignore[arg-type]
        task.history.append(text_message("note"))
        task.artifacts.append(Artifact(artifact_id="b", parts=[Part(text="right")]))
        task.artifacts.append(Artifact(artifact_id="c", parts=[Part()]))
        task.metadata["cost"] = 3
        task.status.CopyFrom(TaskStatus(state=S.TASK_STATE_COMPLETED))
        await queue.enqueue_event(task)

    _, task = await run(execute)
    assert task.status.state == S.TASK_STATE_FAILED
    assert status_text(task) == "Artifact 'c' of the agent has a part without content."
    assert (said(task), artifact_texts(task)) == (["hello"], {"a": ["before"]})
    assert not task.metadata.fields


async def test_an_agent_sees_the_context_variables_of_its_invocation() -> None:
    """Each turn runs in a copy of its delivery's context; what it sets stays its own."""
    seen = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        seen.append((invocation.get(), turn.get("")))
        turn.set("mine")
        await queue.enqueue_event(status(context, S.TASK_STATE_INPUT_REQUIRED, "which?"))

    async def cancel(_context: RequestContext, _queue: EventQueue) -> None:
        seen.append((invocation.get(), turn.get("")))

    invocation: ContextVar[str] = ContextVar("invocation")
    turn: ContextVar[str] = ContextVar("turn")
    bench = Bench(Agent(execute, cancel))
    head = await bench.send()
    for number in ("one", "two"):
        invocation.set(number)
        if number == "two":
            await bench.follow_up(head, "that")
        assert await bench.work()
    invocation.set("three")
    await bench.cancel(head)
    assert await bench.work()
    assert seen == [("one", ""), ("two", ""), ("three", "")]


async def test_an_agent_that_emits_all_the_time_can_be_cancelled() -> None:
    """Each enqueue lets the loop go on, so that a cancel gets through."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        while True:
            await queue.enqueue_event(status(context, S.TASK_STATE_WORKING))

    bench = Bench(Agent(execute))
    head = await bench.send()
    working = asyncio.create_task(bench.work())
    await asyncio.sleep(0)
    await Storage(bench.storage).update_task(head.task_id, S.TASK_STATE_CANCELED)
    async with asyncio.timeout(20):
        assert await working


WORKING = TaskStatus(state=S.TASK_STATE_WORKING)
EMPTY = Message(message_id="m", role=Role.ROLE_AGENT)
HOLLOW = Artifact(artifact_id="a", parts=[Part()])

FAULTS: dict[str, tuple[list[Event], str]] = {
    "a Message after task events": (
        [TaskStatusUpdateEvent(task_id="@", status=WORKING), text_message("late")],
        "The agent emitted a Message after task events; it has to use a status message.",
    ),
    "another task's status": (
        [TaskStatusUpdateEvent(task_id="other", status=WORKING)],
        "The agent emitted a TaskStatusUpdateEvent for another task than its own.",
    ),
    "another task's artifact": (
        [TaskArtifactUpdateEvent(task_id="other", artifact=HOLLOW)],
        "The agent emitted a TaskArtifactUpdateEvent for another task than its own.",
    ),
    "another Task": ([Task(id="other")], "The agent emitted a Task for another task than its own."),
    "another task's Message": (
        [text_message("x", task_id="other")],
        "The agent emitted a Message for another task than its own.",
    ),
    "a status without a state": (
        [TaskStatusUpdateEvent(task_id="@")],
        "The agent emitted a status without a state.",
    ),
    "a message without parts": ([EMPTY], "The agent emitted a message without parts."),
    "a part without content": (
        [TaskArtifactUpdateEvent(task_id="@", artifact=HOLLOW)],
        "Artifact 'a' of the agent has a part without content.",
    ),
    "an artifact without an id": (
        [TaskArtifactUpdateEvent(task_id="@", artifact=Artifact(parts=[Part(text="x")]))],
        "The agent emitted an artifact without artifactId.",
    ),
    "no event at all": (
        ["hello"],  # type: ignore[list-item]
        "The agent emitted a str, which is no A2A event.",
    ),
}


@pytest.mark.parametrize(
    ("fault", "is_caught"), [*((fault, False) for fault in FAULTS), ("another Task", True)]
)
async def test_an_impossible_event_fails_the_task(fault: str, is_caught: bool) -> None:  # noqa: FBT001
    """The task fails at once and the sentence names the agent's fault, also if it catches it."""
    events, sentence = FAULTS[fault]

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        for template in events:
            event = copy.deepcopy(template)
            if getattr(event, "task_id", "") == "@":
                event.task_id = context.task_id  # type: ignore[union-attr]
            try:
                await queue.enqueue_event(event)
            except Exception:
                if not is_caught:
                    raise
        await complete(context, queue)

    _, task = await run(execute)
    assert task.status.state == S.TASK_STATE_FAILED
    assert status_text(task) == sentence


async def test_tasks_that_emit_at_once_share_no_commit_beyond_its_limit() -> None:
    """Four artifacts of 1.5 MB by gather are stored as they are one after the other."""

    async def together(context: RequestContext, queue: EventQueue) -> None:
        chunks = (chunk(context, "x" * 1_500_000, artifact_id=f"a{n}") for n in range(4))
        await asyncio.gather(*(queue.enqueue_event(one) for one in chunks))
        await complete(context, queue)

    bench = Bench(Agent(together))
    task = await bench.send()
    assert await bench.work()
    now = await bench.task(task)
    assert now.status.state == S.TASK_STATE_COMPLETED
    assert [len(artifact.parts[0].text) for artifact in now.artifacts] == [1_500_000] * 4


async def test_an_agent_emits_from_a_loop_of_its_own() -> None:
    """Calls from an agent's thread run in the queue's loop, and are stored in their order."""

    async def elsewhere(context: RequestContext, queue: EventQueue) -> None:
        for text in ("one ", "two "):
            event = chunk(context, text)
            await asyncio.to_thread(asyncio.run, queue.enqueue_event(event))
        await asyncio.to_thread(lambda: asyncio.run(complete(context, queue)))

    bench = Bench(Agent(elsewhere))
    task = await bench.send()
    async with asyncio.timeout(60):
        assert await bench.work()
    now = await bench.task(task)
    assert now.status.state == S.TASK_STATE_COMPLETED
    assert artifact_texts(now) == {"a": ["one two "]}


async def slow_commits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every commit of the bench take several turns of the loop."""
    commit = type(bench.storage).commit

    async def slowly(*args: object) -> object:
        for _ in range(20):
            await asyncio.sleep(0)
        return await commit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(type(bench.storage), "commit", slowly)


async def test_events_of_many_tasks_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full batches make emitters wait; none overtakes another, and the ending overtakes none."""

    async def many(context: RequestContext, queue: EventQueue) -> None:
        for number in range(40):
            text = f"{number:02d}" + " " * 30_000
            emitting.append(asyncio.create_task(queue.enqueue_event(chunk(context, text))))
        await asyncio.sleep(0)
        await complete(context, queue)

    emitting: list[asyncio.Task[None]] = []
    bench = Bench(Agent(many))
    await slow_commits(bench, monkeypatch)
    task = await bench.send()
    assert await bench.work()
    (text,) = artifact_texts(await bench.task(task))["a"]
    assert text.split() == [f"{number:02d}" for number in range(40)]


async def test_a_large_answer_fits_behind_the_conversations_state() -> None:
    """The state that the end of the turn stores counts as a part of its commit."""

    class Stating(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.update_context("s" * 330_000)
            await ctx.emit_text_artifact("x" * 60_000, "small")
            await ctx.respond("y" * 3_620_000)

    bench = Bench(WorkerExecutor(Stating()))
    head = await bench.send()
    assert await bench.work()
    assert (await bench.task(head)).status.state == S.TASK_STATE_COMPLETED


async def test_a_thread_that_emits_after_the_end_is_not_kept_waiting() -> None:
    """A late event from another loop is dropped without asking the queue's own."""
    queues: list[EventQueue] = []

    async def quick(context: RequestContext, queue: EventQueue) -> None:
        queues.append(queue)
        contexts.append(context)
        await complete(context, queue)

    contexts: list[RequestContext] = []
    await run(quick)
    late = threading.Thread(
        target=lambda: asyncio.run(queues[0].enqueue_event(chunk(contexts[0], "late"))), daemon=True
    )
    late.start()
    late.join(30)  # blocks the queue's own loop
    assert not late.is_alive()

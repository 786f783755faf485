"""Executors as the SDK's samples and tests have them, written anew from what they do."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from a2a.helpers import (
    new_data_part,
    new_task_from_user_message,
    new_text_artifact_update_event,
    new_text_message,
    new_text_status_update_event,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import (
    Artifact,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import UnsupportedOperationError

S = TaskState
Act = Callable[[TaskUpdater], Awaitable[Any]]
BLOCKED_S = 1.5
"""Longer than a worker waits for an agent's first event before it claims the turn itself."""


class Sample(AgentExecutor):
    """Has the shorthands that samples write out, and notes what it was given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.released = asyncio.Event()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise UnsupportedOperationError(message="This agent cannot be cancelled.")

    async def open(self, context: RequestContext, queue: EventQueue) -> TaskUpdater:
        """The usual beginning: a Task where there is none yet."""
        if context.current_task is None:
            await queue.enqueue_event(new_task(context))
        return updater_of(context, queue)


def new_task(context: RequestContext) -> Task:
    assert context.message is not None
    return new_task_from_user_message(context.message)


def updater_of(context: RequestContext, queue: EventQueue) -> TaskUpdater:
    assert context.task_id is not None
    assert context.context_id is not None
    return TaskUpdater(queue, context.task_id, context.context_id)


class Acting(Sample):
    """Does one thing after the other; `opens`: behind the usual beginning."""

    def __init__(self, *acts: Act, opens: bool = True) -> None:
        super().__init__()
        self._acts, self._opens = acts, opens

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = updater_of(context, event_queue)
        if self._opens:
            await self.open(context, event_queue)
        for act in self._acts:
            await act(updater)


class Emitting(Sample):
    """Puts events on its queue that are made of the context."""

    def __init__(self, *makes: Callable[[RequestContext], Any]) -> None:
        super().__init__()
        self._makes = makes

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        for make in self._makes:
            await event_queue.enqueue_event(make(context))


def say(method: str, text: str) -> Act:
    """A method of the updater with a message that names task and context."""
    return lambda task: getattr(task, method)(task.new_agent_message([Part(text=text)]))


def do(method: str, *args: Any, **options: Any) -> Act:
    return lambda task: getattr(task, method)(*args, **options)


def write(text: str, artifact_id: str = "a", **options: Any) -> Act:
    """A chunk of an artifact."""
    return do("add_artifact", [Part(text=text)], artifact_id, **options)


def told(state: TaskState, text: str) -> Callable[[RequestContext], Any]:
    """A status as a plain event."""
    return lambda context: new_text_status_update_event(*ids(context), state, text)


def ids(context: RequestContext) -> tuple[str, str]:
    return context.task_id or "", context.context_id or ""


hello_world = partial(Emitting, lambda _: new_text_message("Hello, world"))
"""The first sample: one Message, no task."""
task_first = partial(
    Emitting,
    new_task,
    told(S.TASK_STATE_WORKING, "Processing"),
    lambda context: new_text_artifact_update_event(*ids(context), "result", "42", artifact_id="a"),
    told(S.TASK_STATE_COMPLETED, "Done"),
)
"""Long-running: a Task, a status, an artifact, the end; all as plain events."""
after_the_end = partial(
    Emitting, new_task, told(S.TASK_STATE_COMPLETED, "Done"), told(S.TASK_STATE_WORKING, "More")
)
"""Goes on emitting after its terminal status."""
message_after_task = partial(Emitting, new_task, lambda _: new_text_message("Hello"))
two_messages = partial(
    Emitting, lambda _: new_text_message("Hello"), lambda _: new_text_message("Hello again")
)
silent = Emitting
updater_throughout = partial(
    Acting,
    do("submit"),
    say("start_work", "Looking it up"),
    do("update_status", S.TASK_STATE_WORKING, metadata={"step": 2, "model": "none"}),
    do(
        "add_artifact",
        [Part(text="one"), Part(url="https://example.org/two")],
        artifact_id="a",
        name="answer",
        metadata={"pages": 2},
    ),
    say("complete", "There you are"),
)
"""Everything by TaskUpdater, with messages, metadata and a named artifact."""
rejecting = partial(Acting, say("reject", "Not for me"))
failing = partial(Acting, say("failed", "No model"))
status_only = partial(Acting, do("start_work"), say("complete", "Done"), opens=False)
"""Statuses without a Task before them."""
chunks = partial(
    Acting,
    *(
        write(text, artifact_id, name="n", append=append, last_chunk=append)
        for artifact_id, text, append in (
            ("a", "draft", False),
            ("b", "one ", False),
            ("a", "final ", False),
            ("b", "two", True),
            ("a", "text", True),
        )
    ),
    do("complete"),
)
"""Two artifacts in chunks, one of them replaced in the middle."""
append_first = partial(
    Acting, write("one ", append=True), write("two", append=True), do("complete")
)
artifact_first = partial(Acting, write("early"), do("complete"), opens=False)
"""An artifact before any Task or status."""
unfinished = partial(Acting, do("start_work"))
messages_without_ids = partial(
    Acting,
    lambda task: task.start_work(new_text_message("Thinking")),
    lambda task: task.complete(new_text_message("Done")),
)
"""Says in its statuses what names neither task nor context, as many frameworks do."""


class Asking(Sample):
    """Asks until it is told "done"; notes the task that each turn is given."""

    pause = S.TASK_STATE_INPUT_REQUIRED

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        given = context.current_task
        self.seen.append(
            None
            if given is None
            else [given.status.message.parts[0].text, *(m.parts[0].text for m in given.history)]
        )
        updater = await self.open(context, event_queue)
        await updater.start_work()
        if context.get_user_input() == "done":
            await write("bought")(updater)
            await say("complete", "Thanks")(updater)
        else:
            question = updater.new_agent_message([Part(text=f"Which {context.get_user_input()}?")])
            await updater.update_status(self.pause, question)


class AskingForCredentials(Asking):
    """Asks for credentials, and returns: the in-bound model."""

    pause = S.TASK_STATE_AUTH_REQUIRED


class WaitingForCredentials(Sample):
    """Asks for credentials, and stays until they come another way: the out-of-band model."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await self.open(context, event_queue)
        await say("requires_auth", "Log in")(updater)
        await self.released.wait()
        await write("secret")(updater)
        await say("complete", "Done")(updater)


class TaskAgain(Sample):
    """Enqueues its current task on every turn, as old samples do."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await event_queue.enqueue_event(context.current_task or new_task(context))
        updater = updater_of(context, event_queue)
        if context.get_user_input() == "done":
            await updater.complete()
        else:
            await say("requires_input", "Which?")(updater)


class AskingByTask(Sample):
    """Asks one question on every turn, by a Task that is made anew."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = new_task(context)
        question = updater_of(context, event_queue).new_agent_message([Part(text="Which?")])
        task.status.CopyFrom(TaskStatus(state=S.TASK_STATE_INPUT_REQUIRED, message=question))
        await event_queue.enqueue_event(task)


class TaskWithoutHistory(Sample):
    """Begins with a Task that leaves out the user's message."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = new_task(context)
        del task.history[:]
        await event_queue.enqueue_event(task)
        await updater_of(context, event_queue).complete()


class MessageWithoutParts(Sample):
    """Carries metadata in a status message without parts, as Google's ADK does."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await self.open(context, event_queue)
        message = updater.new_agent_message([], metadata={"step": 1, "model": "none"})
        await updater.update_status(S.TASK_STATE_WORKING, message, metadata={"step": 2})
        await updater.complete()


class WaitsToBegin(Sample):
    """Emits nothing until it is released."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self.released.wait()
        await (await self.open(context, event_queue)).complete()


class SynchronousClient(Sample):
    """Blocks its event loop, before its first event and after, as framework calls do."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.seen.append("run")
        self.block()
        updater = await self.open(context, event_queue)
        await updater.start_work()
        self.block()
        await write("late")(updater)
        await updater.complete()

    def block(self) -> None:
        """Wait for a slow server in a synchronous client."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            answering = threading.Timer(BLOCKED_S, theirs.sendall, [b"late"])
            answering.start()
            assert ours.recv(4) == b"late"
            answering.join()


class WholeTask(Sample):
    """Ends with a Task that has everything in it."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = new_task(context)
        await event_queue.enqueue_event(task)
        whole = Task()
        whole.CopyFrom(task)
        whole.artifacts.append(Artifact(artifact_id="a", parts=[Part(text="42")]))
        whole.status.CopyFrom(TaskStatus(state=S.TASK_STATE_COMPLETED))
        await event_queue.enqueue_event(whole)


class TellsByTask(Sample):
    """Says in the Task itself how far it is: by a message of its history, and by metadata."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = updater_of(context, event_queue)
        task = new_task(context)
        task.status.state = S.TASK_STATE_WORKING
        task.history.append(updater.new_agent_message([Part(text="half")]))
        task.metadata.update({"pages": 2})
        await event_queue.enqueue_event(task)
        await updater.complete()


class Raising(Sample):
    """Raises: before or after its Task, after its end, an error of the protocol or its own."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__()
        self._where = where
        self._error = error

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.seen.append("run")
        if self._where == "before":
            raise self._error
        updater = await self.open(context, event_queue)
        await say("start_work", "Thinking")(updater)
        if self._where == "after the end":
            await updater.complete()
        raise self._error


class Cancelled(Sample):
    """Works until it is cancelled; `ending` is what its `cancel()` does."""

    def __init__(self, ending: str) -> None:
        super().__init__()
        self._ending = ending

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await self.open(context, event_queue)
        await say("start_work", "Thinking")(updater)
        await write("half")(updater)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.seen.append("CancelledError")
            raise

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.seen.append(("cancel", context.message, context.current_task is not None))
        if self._ending == "raises":
            raise ValueError
        if self._ending == "refuses":
            raise UnsupportedOperationError
        if self._ending == "event":
            await say("cancel", "Stopped")(updater_of(context, event_queue))


class CleansUp(Sample):
    """Removes what its work needs in a `finally`, and looks for it in `cancel()`."""

    def __init__(self) -> None:
        super().__init__()
        self._work: set[str | None] = set()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = await self.open(context, event_queue)
        self._work.add(context.task_id)
        try:
            await updater.start_work()
            await asyncio.Event().wait()
        finally:
            self._work.remove(context.task_id)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        is_there = context.task_id in self._work
        self.seen.append(f"work is {'there' if is_there else 'gone'}")
        await updater_of(context, event_queue).cancel()


class CancelledWhilePaused(Asking):
    """Is cancelled while it waits for the user."""

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.seen.append("cancel")
        await say("cancel", "Stopped")(updater_of(context, event_queue))


class Closing(Sample):
    """Closes its queue, as half of the public executors do, and asks whether it is closed."""

    async def execute(self, context: RequestContext, event_queue: Any) -> None:
        updater = await self.open(context, event_queue)
        self.seen.append(event_queue.is_closed())
        await updater.complete()
        await event_queue.close()
        self.seen.append(event_queue.is_closed())


class WhoCalls(Sample):
    """Says who called it and what the request had with it."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        call = context.call_context
        self.seen.append(
            {
                "user": call.user.user_name,
                "authenticated": call.user.is_authenticated,
                "tenant": (call.tenant, context.tenant),
                "extensions": (call.requested_extensions, context.requested_extensions),
                "headers": isinstance(call.state["headers"], dict),
                "immediately": context.configuration and context.configuration.return_immediately,
                "ids": context.message is not None
                and (context.message.task_id, context.message.context_id)
                == (context.task_id, context.context_id),
            }
        )
        updater = await self.open(context, event_queue)
        await updater.complete()


class EveryField(Sample):
    """Fills in every field that a part, an artifact, a message and an event have."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        updater = await self.open(context, event_queue)
        await event_queue.enqueue_event(self.told(context, S.TASK_STATE_WORKING, "reading"))
        await event_queue.enqueue_event(
            TaskArtifactUpdateEvent(
                task_id=context.task_id,
                context_id=context.context_id,
                artifact=full_artifact(*context.message.parts),
                last_chunk=True,
                metadata={"event": {"of": "an artifact"}},
            )
        )
        # A later chunk has its own name and metadata.
        await updater.add_artifact(
            [Part(text="more", metadata={"line": 2})],
            "full",
            name="another name",
            metadata={"pages": 3, "size": {"h": 1}},
            append=True,
            last_chunk=True,
            extensions=["urn:another"],
        )
        await event_queue.enqueue_event(self.told(context, S.TASK_STATE_COMPLETED, "done"))

    def told(self, context: RequestContext, state: TaskState, text: str) -> TaskStatusUpdateEvent:
        message = new_text_message(
            text, context_id=context.context_id, task_id=context.task_id, media_type="text/plain"
        )
        message.parts.append(Part(url="https://example.org/i.png", media_type="image/png"))
        message.metadata.update({"mood": "calm"})
        message.extensions.append("urn:mood")
        message.reference_task_ids.append("an-earlier-task")
        return TaskStatusUpdateEvent(
            task_id=context.task_id,
            context_id=context.context_id,
            status=TaskStatus(state=state, message=message),
            metadata={"step": {text: 1}, "model": "none"},
        )


class EveryFieldInOneTask(Sample):
    """Ends with a Task that has all of it: its own metadata, history, artifacts and status."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        whole = new_task(context)
        whole.artifacts.append(full_artifact(*context.message.parts))
        whole.metadata.update({"model": "none", "size": {"w": 1}})
        done = updater_of(context, event_queue).new_agent_message(
            [Part(raw=b"\xff", filename="x.bin")], metadata={"mood": "calm"}
        )
        whole.status.CopyFrom(TaskStatus(state=S.TASK_STATE_COMPLETED, message=done))
        await event_queue.enqueue_event(whole)


def full_artifact(*parts: Part) -> Artifact:
    """An artifact with all its fields, and files by content and by URL among its parts."""
    picture = Part(raw=b"\x89PNG\x00", media_type="image/png", filename="a.png")
    picture.metadata.update({"alt": "a picture", "size": {"w": 1}})
    link = Part(url="https://example.org/b.pdf", media_type="application/pdf", filename="b.pdf")
    table = new_data_part({"rows": [1, None, {"x": True}]}, media_type="application/json")
    return Artifact(
        artifact_id="full",
        name="report",
        description="All that was asked for.",
        parts=[*parts, picture, link, table],
        metadata={"pages": 2, "size": {"w": 1}},
        extensions=["urn:report"],
    )


class MessageOfAllParts(Sample):
    """Answers with a Message that has files, metadata and extensions."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message = new_text_message("Here", context_id=context.context_id, task_id=context.task_id)
        message.parts.extend(full_artifact().parts)
        message.metadata.update({"mood": "calm"})
        message.extensions.append("urn:mood")
        await event_queue.enqueue_event(message)


class AnotherTask(Sample):
    """Speaks of a task that is not its own."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await event_queue.enqueue_event(new_task(context))
        await TaskUpdater(event_queue, "another", context.context_id or "").start_work()

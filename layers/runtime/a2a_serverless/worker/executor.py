"""What an agent emits: the queue of the official SDK, and its events in commits.

Commits are batched, in order, and only made while the attempt owns its turn.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, Self, TypeVar

from a2a.server.events import EventQueue
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
from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.struct_pb2 import Struct

from a2a_serverless import faults
from a2a_serverless.clock import first_of
from a2a_serverless.errors import InvalidAgentEventError
from a2a_serverless.storage.blobs import InlineLimits
from a2a_serverless.storage.contexts import fits_item
from a2a_serverless.tasks.attempts import Returned, on_return
from a2a_serverless.tasks.blobs import raw_bytes
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Entry,
    Replied,
    StatusChanged,
    copied,
    is_plain,
)
from a2a_serverless.tasks.fold import Event, Fold, Record, bound, joined
from a2a_serverless.tasks.head import KNOWN, AttemptEnd, is_terminal
from a2a_serverless.tasks.rules import Commit, ContextWrite, merge_metadata
from a2a_serverless.worker.failures import AgentFailedError
from a2a_serverless.worker.files import AGENTS, FileInfo, Files
from a2a_serverless.worker.guard import PAUSE_ROUNDS, TurnWriter
from a2a_serverless.worker.loops import AgentCall, AgentCalls, noted, runtimes_own, task_number
from a2a_serverless.worker.records import TurnRecords
from a2a_serverless.worker.steps import LeftError, Running, TurnLeft, current_step, outside

E = TypeVar("E", bound=Event)
T = TypeVar("T")

logger = logging.getLogger(__name__)

MANY_EVENTS: Final = 10_000
"""Events of one attempt after which the log asks whether the agent comes to an end."""


class TurnView:
    """The task as one attempt sees it: as its turn began, with the attempt's own entries.

    If the turn has records, it is the task as the last of them has left it.

    `given` is the Task that the agent got with its request, None on a first turn. A Task that the
    agent emits is a snapshot. If it has the given status, it is either the given Task, sent back at
    the start, or the same question, asked again: the turn goes on, and its end decides (`kept`).

    A message without parts does not count as one; its metadata joins the metadata of its event. For
    equal keys the event's own value wins; in a Task the status message comes next, then the newest
    message of the history.
    """

    def __init__(self, fold: Fold, given: Task | None) -> None:
        self._fold = fold
        self._given = given
        self._has_emitted = False
        self._sent_back: tuple[StatusChanged, ...] = ()
        self.state: TaskState | None = None
        """The last state that this attempt has emitted."""

    def entries_of(self, event: Event | object) -> tuple[Entry, ...]:
        """Return the entries to log for an event; the agent may change the event afterwards.

        Raises:
            InvalidAgentEventError: no A2A task can hold it; the message names the fault.
        """
        match event:
            case Message():
                entries = tuple(self._of_message(event))
            case Task():
                entries = tuple(self._of_task(event))
            case TaskStatusUpdateEvent():
                entries = (self._of_status(event),)
            case TaskArtifactUpdateEvent():
                entries = (self._of_artifact(event),)
            case _:
                msg = f"The agent emitted a {type(event).__name__}, which is no A2A event."
                raise InvalidAgentEventError(msg)
        self._has_emitted = True
        self.add(entries)
        return entries

    def has_artifact(self, artifact_id: str) -> bool:
        """Return True if the task has an artifact of this id."""
        return artifact_id in self._fold.artifacts

    def text_of(self, artifact_id: str) -> str:
        """Return the text that an artifact has so far."""
        known = self._fold.artifacts.get(artifact_id, Artifact())
        return "".join(part.text for part in known.parts)

    @property
    def completes_empty(self) -> bool:
        """Return True if the task is completed, and has neither a message nor an artifact."""
        parts = [*self._fold.status.message.parts]
        parts += [part for each in self._fold.artifacts.values() for part in each.parts]
        is_empty = not any(part.WhichOneof("content") != "text" or part.text for part in parts)
        return self.state == TaskState.TASK_STATE_COMPLETED and is_empty

    def raw_bytes_before(self, event: object) -> int:
        """Return the raw bytes that the artifact has to which an event appends; 0 for any other."""
        if not isinstance(event, TaskArtifactUpdateEvent) or not event.append:
            return 0
        known = self._fold.artifacts.get(event.artifact.artifact_id)
        return 0 if known is None else raw_bytes(*known.parts)

    def kept(self) -> tuple[Entry, ...]:
        """Return the pause to log for an agent that returns after sending the given status back.

        Empty if it has not sent the given status back, or has emitted another status since.
        """
        entries = self._sent_back
        self.add(entries)
        return entries

    def replied(self, message: Message) -> tuple[Entry, ...]:
        """Return the entries to log for a Message that ends the turn, also after task events."""
        entries = _reply(message)
        self.add(entries)
        return entries

    def add(self, entries: tuple[Entry, ...]) -> None:
        """Take entries into the view."""
        self._fold.add(Record(version=self._fold.version + 1, entries=entries))
        for entry in entries:
            if isinstance(entry, StatusChanged):
                self.state = entry.status.state

    def repeat(self, event: Event) -> None:
        """Take note of an event that the log keeps from an earlier attempt."""
        self._has_emitted = True
        if isinstance(event, TaskStatusUpdateEvent):
            self._sent_back, self.state = (), event.status.state

    def _of_message(self, message: Message) -> Iterator[Entry]:
        """Yield the entries of a Message that is the turn's only event."""
        if self._has_emitted:
            msg = "The agent emitted a Message after task events; it has to use a status message."
            raise InvalidAgentEventError(msg)
        if message.task_id:
            self._check_task_id(message.task_id, "Message")
        if not message.parts:
            raise InvalidAgentEventError("The agent emitted a message without parts.")
        _check_parts(message.parts, "A message")
        yield from _reply(self._completed(message))

    def _of_task(self, task: Task) -> Iterator[Entry]:
        """Yield entries for what is new in a Task; agents send the Task they got, or their own.

        Messages and metadata are statuses, so that streams and webhooks tell them, too.
        """
        self._check_task_id(task.id, "Task")
        for artifact in task.artifacts:
            known = self._fold.artifacts.get(artifact.artifact_id)
            if known is None or joined(known) != joined(artifact):
                yield ArtifactWritten(_checked(artifact))
        told = [each for each in task.history if each.parts and not self._has_message(each)]
        metadata = self._news_of(_joined(task, *task.history, task.status.message))
        is_news = self._takes_status(task.status)
        if is_news or told or metadata.fields:
            now = copied(self._fold.status)
            if now.state == TaskState.TASK_STATE_SUBMITTED:
                now.state = TaskState.TASK_STATE_WORKING
            last = self._status(task.status if is_news else now, metadata)
            said = [self._status(TaskStatus(state=now.state, message=each)) for each in told]
            for number, entry in enumerate((*said, last)):
                # A status that stays is said again at last: its message joins no history.
                yield entry if is_news or number else replace(entry, archive=False)

    def _takes_status(self, status: TaskStatus) -> bool:
        """Return True if a Task's status is a new one, and note whether it is the given one."""
        if self._given is not None and _says_the_same(status, self._given.status):
            self._sent_back = (self._status(status),)
            return False
        if self._is_news(status):
            self._sent_back = ()
            return True
        return False

    def _of_status(self, event: TaskStatusUpdateEvent) -> Entry:
        self._check_task_id(event.task_id, "TaskStatusUpdateEvent")
        self._sent_back = ()
        return self._status(event.status, _joined(event, event.status.message))

    def _of_artifact(self, event: TaskArtifactUpdateEvent) -> Entry:
        """Return the entry of a chunk; the first chunk of a new artifact never appends.

        So the artifact also starts over after a restart, as this view does.
        """
        self._check_task_id(event.task_id, "TaskArtifactUpdateEvent")
        is_known = event.artifact.artifact_id in self._fold.artifacts
        return ArtifactWritten(
            _checked(event.artifact),
            append=event.append and is_known,
            last_chunk=event.last_chunk,
            metadata=_copy(event.metadata) if event.HasField("metadata") else None,
        )

    def _status(self, status: TaskStatus, metadata: Struct | None = None) -> StatusChanged:
        if status.state not in KNOWN:
            raise InvalidAgentEventError("The agent emitted a status without a state.")
        copy = TaskStatus(state=status.state)
        if status.message.parts:
            _check_parts(status.message.parts, "A message")
            copy.message.CopyFrom(self._completed(status.message))
        return StatusChanged(copy, metadata or None, archive=True)

    def _check_task_id(self, task_id: str, kind: str) -> None:
        if task_id != self._fold.task_id:
            msg = f"The agent emitted a {kind} for another task than its own."
            raise InvalidAgentEventError(msg)

    def _has_message(self, message: Message) -> bool:
        known = [*self._fold.history, self._fold.status.message]
        if self._given is not None:
            known.append(self._given.status.message)
        if message.message_id:
            return any(message.message_id == other.message_id for other in known)
        return any(message.parts == other.parts for other in known)

    def _is_news(self, status: TaskStatus) -> bool:
        """Return True if a Task's status says more than the task's own."""
        if status.state == TaskState.TASK_STATE_UNSPECIFIED:
            return False
        if status.state == TaskState.TASK_STATE_SUBMITTED and not status.message.parts:
            return False
        return not _says_the_same(status, self._fold.status)

    def _news_of(self, metadata: Struct) -> Struct:
        """Return the fields that the task's metadata lacks or has with another value."""
        known, news = self._fold.metadata.fields, Struct()
        for key, value in metadata.fields.items():
            if key not in known or known[key] != value:
                news.fields[key].CopyFrom(value)
        return news

    def _completed(self, message: Message) -> Message:
        """Return a copy that names its task and context, with an id and a role."""
        copy = bound(message, self._fold.task_id, self._fold.context_id)
        copy.message_id = copy.message_id or str(uuid.uuid4())
        if copy.role == Role.ROLE_UNSPECIFIED:
            copy.role = Role.ROLE_AGENT
        return copy


def _reply(message: Message) -> tuple[Entry, ...]:
    status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED, message=message)
    return Replied(message), StatusChanged(status, archive=True)


def _says_the_same(status: TaskStatus, other: TaskStatus) -> bool:
    """Return True if two statuses have the same state and the same message parts."""
    return status.state == other.state and status.message.parts == other.message.parts


def _checked(artifact: Artifact) -> Artifact:
    if not artifact.artifact_id:
        raise InvalidAgentEventError("The agent emitted an artifact without artifactId.")
    _check_parts(artifact.parts, f"Artifact {artifact.artifact_id!r}")
    copy = Artifact()
    copy.CopyFrom(artifact)
    return copy


def _check_parts(parts: Iterable[Part], where: str) -> None:
    if any(part.WhichOneof("content") is None for part in parts):
        raise InvalidAgentEventError(f"{where} of the agent has a part without content.")


def _joined(event: Task | TaskStatusUpdateEvent, *messages: Message) -> Struct:
    """Return the metadata of `messages` without parts and of an event; later ones win, then it."""
    joined = Struct()
    for message in messages:
        if not message.parts:
            merge_metadata(joined, message.metadata)
    merge_metadata(joined, event.metadata)
    return joined


def _copy(struct: Struct) -> Struct:
    copy = Struct()
    copy.CopyFrom(struct)
    return copy


class TurnQueue(EventQueue):
    """The queue of one attempt: what is enqueued becomes the task's log.

    Events are taken in the order in which they come. One that ends the turn is committed when
    `enqueue_event` returns; others are committed when the agent pauses, within `FlushMs`. After the
    end of the turn and after `close` events are dropped, and logged. Calls from another event loop,
    for instance in an agent's thread, run in the queue's own loop: an agent that blocks that loop
    until its thread has emitted an event waits for ever.
    """

    def __init__(
        self,
        writer: TurnWriter,
        view: TurnView,
        kept: Sequence[Record] = (),
        *,
        hands_over: Callable[[float], bool] = lambda _: False,
        inline: InlineLimits = AGENTS,
    ) -> None:
        self.writer = writer
        self._inline = inline
        self._guard = writer.guard
        self.view = view
        self._hands_over = hands_over
        self._records = self._recording(kept) if kept else None
        self.under_way = 0
        """Short sleeps and blocking functions under way: a sleep beside them would cut them off."""
        self.left: AttemptEnd | None = None
        """The end of the attempt, once it has left its turn at a record."""
        self._leaving = asyncio.Event()
        """Set when the turn leaves its process: all waits of the agent end."""
        self._is_gone = False
        """True after that, when all calls of the agent raise TurnLeft."""
        self._leavers: list[tuple[int, asyncio.Future[None]]] = []
        """The calls that wait until then, with the numbers of their tasks."""
        self._home = asyncio.get_running_loop()
        self.main: asyncio.Task[Any] | None = None
        """The task in which the agent is called; it may start others."""
        self._taking = asyncio.Lock()
        self._is_closed = False
        self._is_over = False
        self._taken = 0
        self.halves: dict[tuple[Running | None, str], str] = {}
        """The half of a surrogate pair with which a chunk ended, by its step and artifact."""
        self._calls = AgentCalls()
        self._stopping = asyncio.Event()
        self.fault: InvalidAgentEventError | None = None
        """The first event that no task can hold: it fails the task, even if the agent goes on."""
        self.on_taken: Callable[[Event], Awaitable[None]] | None = None
        """Awaited after each event that was taken; the testing kit can stop the agent there."""

    @property
    def records(self) -> TurnRecords:
        """Return the records of the attempt; it has none if its agent uses none."""
        if self._records is None:
            self._records = self._recording(())
        return self._records

    def _recording(self, kept: Sequence[Record]) -> TurnRecords:
        return TurnRecords(self, self.writer, self.view, kept, self._hands_over)

    @property
    def is_main_task(self) -> bool:
        """Return True in the task in which the agent is called."""
        return self.is_home and asyncio.current_task() is self.main

    @property
    def exit(self) -> BaseException | None:
        """Return the exit that has stopped the attempt, of a task that the agent has started."""
        reason = self._guard.reason
        return reason.__cause__ if isinstance(reason, AgentFailedError) else None

    @property
    def calls(self) -> AgentCalls:
        """Return the agent's calls, of this queue and of the `ctx` before it."""
        return self._calls

    @property
    def is_cancelled(self) -> bool:
        """Return True if the client has asked to cancel; also true while the loop is blocked."""
        return self._guard.is_canceling

    @property
    def state(self) -> TaskState | None:
        """Return the last state that the agent has emitted on this turn."""
        return self.view.state

    @property
    def has_ended(self) -> bool:
        """Return True if the agent has emitted an event that ends the turn, and no `fault`."""
        is_ended = self._is_over or on_return(self.view.state) is Returned.ENDED
        return is_ended and self.fault is None

    async def file_chunks(self, file: FileInfo) -> AsyncIterator[bytes]:
        """Yield the content of a file, see `Files.chunks`."""
        chunks = self.files.chunks(file)
        while (chunk := await self.at_home(_next(chunks))) is not None:
            yield chunk

    @property
    def files(self) -> Files:
        """Return the files of the turn's task; what it does is awaited `at_home`."""
        return Files(self._guard.log, self._guard.head, self._inline)

    @property
    def now_ms(self) -> int:
        """Return the time of the worker's clock, in milliseconds."""
        return self._guard.clock.now_ms()

    @property
    def key(self) -> tuple[str, str, int]:
        """Return the names of the turn: its scope, task and number."""
        return *self._guard.key, self._guard.params.turn

    @noted("event_queue")
    async def enqueue_event(self, event: Event) -> None:
        """Log an event.

        Raises:
            InvalidAgentEventError: no A2A task can hold it; the turn fails.
        """
        await self._emit(event)

    async def end_with(self, event: Event) -> None:
        """Log an event that ends the turn, even if its state alone would not.

        Raises:
            InvalidAgentEventError: as `enqueue_event`.
        """
        await self._emit(event, ends_turn=True)

    async def reply(self, message: Message) -> None:
        """Answer with a message, also after task events; ends the turn."""
        await self.at_home(self._enqueue(message, self.view.replied))

    def keep_pause(self) -> None:
        """Put the pause into the log's next commit if the agent has kept it (`TurnView.kept`)."""
        entries = self.view.kept()
        if entries:
            self.put(entries)

    async def drain(self) -> None:
        """Return when all events that were taken are committed or, after a failure, dropped."""
        await self.at_home(self.writer.drain())

    def stop_waiting(self) -> None:
        """End the agent's waits in other event loops; in this loop CancelledError ends them."""
        self._stopping.set()

    async def sleep(self, seconds: float) -> None:
        """Wait by the worker's clock.

        Raises:
            TurnLeft: the turn has left this process meanwhile.
            CancelledError: the client has canceled; raised here in a loop other than the worker's.
        """
        with self.busy():
            await self.wait(self._guard.clock.sleep(seconds))

    async def wait(self, wait: Coroutine[Any, Any, None]) -> None:
        """Await `wait` for the agent; a cancel of the client ends it at once.

        Raises:
            TurnLeft: the turn has left this process meanwhile.
            CancelledError: the client has canceled; raised here in a loop other than the worker's.
        """
        stopping = () if self.is_home else (self._stopping.wait(),)
        with runtimes_own():
            await self.at_home(first_of(wait, self._leaving.wait(), *stopping))
        await self.unless_left()
        if stopping and self._stopping.is_set():
            raise asyncio.CancelledError

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Let no sleep of a minute or more leave the turn during the block."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    def call_at_home(self, call: Callable[[], None]) -> None:
        """Make a call in the queue's own loop."""
        if self.is_home:
            call()
        else:
            self._home.call_soon_threadsafe(call)

    def leave(self, end: AttemptEnd) -> None:
        """Take nothing more, as the attempt leaves its turn at a record."""
        self.left = end
        self._is_closed = True

    async def stored(self) -> None:
        """Return when all that was put is stored; do not return if the attempt is over by then.

        To be awaited in the queue's own loop.

        Raises:
            TurnLeft: the turn has left this process with that.
        """
        await self.confirm_left()
        if self.left is not None and self.writer.failure is None and not self.is_cancelled:
            if not self._is_gone:
                leaver = self._home.create_future()
                self._leavers.append((task_number(), leaver))
                await leaver
            raise TurnLeft
        if self.writer.failure is not None or self._is_closed:
            await asyncio.get_running_loop().create_future()  # until the attempt is cancelled

    async def confirm_left(self) -> None:
        """Stop the attempt if it leaves its turn, once the commit with that is stored."""
        await self.writer.drain()
        if self.left is not None and self.writer.failure is None:
            self._guard.has_given_back = True
            self._guard.stop(LeftError())

    async def unless_left(self) -> None:
        """Return unless the turn leaves this process.

        Raises:
            TurnLeft: it has left.
        """
        if self._is_gone:  # in another loop: the queue's own may not run any more
            await asyncio.sleep(0)
            raise TurnLeft
        if self.left is not None and not self.is_cancelled:
            await self.at_home(self.stored())

    async def tell_left(self) -> None:
        """Let all calls of the agent raise TurnLeft; return when they have.

        They do so in one round of the loop, and tasks before those that have started them: a
        TaskGroup of them finds none to cancel.
        """
        self._leaving.set()
        await _rounds()
        self._is_gone = True
        for _, leaver in sorted(self._leavers, key=itemgetter(0), reverse=True):
            if not leaver.done():  # its call was cancelled
                leaver.set_result(None)
        await _rounds()

    def stop(self, error: Exception) -> None:
        """Take nothing more, and stop the attempt for a reason."""
        self._is_closed = True
        self._guard.stop(error)

    async def close(self, immediate: bool = False) -> None:  # noqa: FBT001, FBT002 - the SDK's
        """Take no more events; unless `immediate`, return when those taken are committed."""
        self.shut()
        if not immediate:
            await self.drain()

    def shut(self) -> None:
        """Take no more events; log the calls that the agent did not await."""
        self._is_closed = True
        self._log_forgotten(self._calls.take_forgotten())

    def refuse_forgotten(self) -> None:
        """Check that the agent has awaited its calls.

        Raises:
            InvalidAgentEventError: it has not, and what it wanted to say would be lost: the turn
                fails.
        """
        forgotten = self._calls.take_forgotten()
        self._log_forgotten(forgotten[1:])
        for call in forgotten[:1]:
            msg = f"The agent has not awaited {call.name}: write `await {call.name}`."
            self.fault = self.fault or InvalidAgentEventError(msg, place=call.place)
            raise self.fault

    def _log_forgotten(self, calls: list[AgentCall]) -> None:
        for call in calls:
            extra = {"action": "never_awaited", "task_id": self._guard.head.task_id}
            logger.warning("%s was never awaited (%s)", call.name, call.place, extra=extra)

    def is_closed(self) -> bool:
        return self._is_closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_home(self) -> bool:
        """Return True in the queue's own loop."""
        return asyncio.get_running_loop() is self._home

    async def at_home(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call in the queue's own loop, whichever loop the caller runs in."""
        if self.is_home:
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._home))

    async def _emit(self, event: Event, *, ends_turn: bool = False) -> None:
        await self.unless_left()
        takes_over = None if ends_turn or _ends(event) else outside.get()
        if takes_over is not None and current_step() is None and takes_over(event):
            await asyncio.sleep(0)
        elif self.is_home or self._takes(_kind(event)):  # after the turn that loop may be gone
            await self.at_home(self._enqueue(event, self._entries_of, ends_turn=ends_turn))

    async def _enqueue(
        self, event: E, entries_of: Callable[[E], tuple[Entry, ...]], *, ends_turn: bool = False
    ) -> None:
        # The agent yields here. So an agent that emits all the time can still be cancelled, and
        # calls that it has made tasks of have begun before an ending looks for forgotten ones.
        await asyncio.sleep(0)
        await self._take(event, entries_of, ends_turn=ends_turn)
        await self.unless_left()

    async def _take(
        self, event: E, entries_of: Callable[[E], tuple[Entry, ...]], *, ends_turn: bool = False
    ) -> None:
        async with self.in_turn(_size_of(event)):
            if not self._takes(_kind(event)):
                return
            event, is_large = await self._as_stored(event)
            is_end = ends_turn or _ends(event)
            if self._records is not None and self._records.keeps(event, is_end=is_end):
                return
            entries = entries_of(event)
            in_step = self._records is not None and current_step() is not None
            if not (in_step or is_end):
                entries = tuple(_told(event, entry) for entry in entries)
            if ends_turn or self.has_ended:  # before the commit that ends the turn
                self.refuse_forgotten()
            self.put(entries, ends_turn=ends_turn)
            if is_large:
                self.writer.fill_batch()
            self._count()
        await self._settle(ends_turn=ends_turn)
        if self.on_taken is not None:
            await self.on_taken(event)

    async def _as_stored(self, event: E) -> tuple[E, bool]:
        """Return an event with the ids and references that the log has, and whether it is large.

        Its large contents are stored then; the agent keeps its own event.
        """
        given: object = event  # it may be anything
        if not isinstance(given, ProtobufMessage):
            return event, False
        if self._records is not None:
            event = self._records.named(event)
        if is_plain(event):  # what its artifact has before it does not matter
            return event, False
        behind = self.view.raw_bytes_before(event)
        faults.point("before-blob")
        stored = await self._guard.log.set_apart(self._guard.head, event, behind=behind)
        if stored is not event:
            faults.point("blob-stored")
        return stored, stored is not event

    def _entries_of(self, event: Event) -> tuple[Entry, ...]:
        try:
            return self.view.entries_of(event)
        except InvalidAgentEventError as fault:
            self.fault = self.fault or fault
            raise

    def _count(self) -> None:
        """Warn, once, of an agent that may emit without end."""
        self._taken += 1
        if self._taken == MANY_EVENTS:
            extra = {"action": "many_events", "task_id": self._guard.head.task_id}
            text = (
                "The turn has emitted %d events, the last one at %s: does its loop end? If it does,"
                " put more into one call"
            )
            logger.warning(text, MANY_EVENTS, self._calls.last_place, extra=extra)

    @asynccontextmanager
    async def in_turn(self, size: int) -> AsyncIterator[None]:
        """Wait until the events before this one are taken, and until there is room for its bytes.

        The lock is fair: events keep the order in which they came, even if several tasks emit at
        once and a full batch makes all of them wait.
        """
        state = self._state
        if state is not None and fits_item(state):
            size += len(state.value)
        async with self._taking:
            while self.writer.is_full or not self.writer.has_room(size):
                await self.writer.drain()
            yield

    def _takes(self, kind: str) -> bool:
        if not (self._is_closed or self.has_ended or self.fault):
            return True
        if self.left is not None:  # it says it again when it goes on
            return False
        extra = {"action": "event_dropped", "task_id": self._guard.head.task_id, "event": kind}
        logger.warning("Event after the end of the turn", extra=extra)
        return False

    @property
    def _state(self) -> ContextWrite | None:
        return None if self._records is None else self._records.state

    @property
    def _keeps_state(self) -> bool:
        """Return True if the conversation's state is stored: the agent itself has ended the turn.

        A failure or a cancel leaves the state as it was. So does a pause of a task that is being
        canceled, because the cancel ends that task.
        """
        is_final = self.state is not None and is_terminal(self.state)
        return self.has_ended and (is_final or not self.is_cancelled)

    def put(self, entries: tuple[Entry, ...], *, ends_turn: bool = False) -> None:
        """Put entries into the log's next commit."""
        self._is_over = ends_turn
        state = self._state if self._keeps_state else None
        self.writer.put(*entries, wanted=None if state is None else Commit(context_write=state))

    async def _settle(self, *, ends_turn: bool = False) -> None:
        """Wait for the commit of an ending, and of a batch that is full."""
        if self.has_ended or self.writer.is_full:
            # If the commit fails, the attempt is told, and stops the agent.
            await self.writer.drain(ends_turn=ends_turn)


async def _rounds() -> None:
    """Let the loop make so many rounds that each wait that has ended is over."""
    for _ in range(2 * PAUSE_ROUNDS):
        await asyncio.sleep(0)


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


def _size_of(event: object) -> int:
    return event.ByteSize() if isinstance(event, ProtobufMessage) else 0


def _kind(event: object) -> str:
    return type(event).__name__


def _told(event: Event, entry: Entry) -> Entry:
    """Return an entry with the mark of what the agent says outside of steps.

    A Task has none: said again, it adds nothing that the log has.
    """
    is_update = isinstance(event, TaskArtifactUpdateEvent | TaskStatusUpdateEvent)
    if is_update and isinstance(entry, ArtifactWritten | StatusChanged):
        return replace(entry, told=True)
    return entry


def _ends(event: Event) -> bool:
    """Return True if an event ends the turn by itself."""
    if isinstance(event, Message):
        return True
    if not isinstance(event, Task | TaskStatusUpdateEvent):
        return False
    state = event.status.state
    return is_terminal(state) or state == TaskState.TASK_STATE_INPUT_REQUIRED

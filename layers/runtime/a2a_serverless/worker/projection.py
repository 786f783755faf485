"""The task as an attempt sees it, and the log's entries for what its agent emits."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

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
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import InvalidAgentEventError
from a2a_serverless.tasks.blobs import raw_bytes
from a2a_serverless.tasks.entries import ArtifactWritten, Entry, Replied, StatusChanged, copied
from a2a_serverless.tasks.fold import Event, Fold, Record, bound, joined
from a2a_serverless.tasks.head import KNOWN
from a2a_serverless.tasks.rules import merge_metadata
from a2a_serverless.values import dataclass


@dataclass(eq=False)
class Projection:
    """The task as one attempt sees it: as its turn began, with the attempt's own entries.

    If the turn has records, it is the task as the last of them has left it.

    `given` is the status of the Task that the agent got with its request, None on a first turn. A
    Task that the agent emits is a snapshot. If it has the given status, it is either the given
    Task, sent back at the start, or the same question, asked again: the turn goes on, and its end
    decides (`pause`).

    A message without parts does not count as one; its metadata joins the metadata of its event. For
    equal keys the event's own value wins; in a Task the status message comes next, then the newest
    message of the history.
    """

    _fold: Fold
    _given: TaskStatus | None
    state: TaskState | None = field(default=None, init=False)
    """The last state that this attempt has emitted."""
    _has_emitted: bool = field(default=False, init=False)
    _sent_back: tuple[StatusChanged, ...] = field(default=(), init=False)

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

    def pause(self) -> tuple[Entry, ...]:
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

    def replay(self, event: Event) -> None:
        """Take note of an event that the log has from an earlier attempt."""
        self._has_emitted = True
        if isinstance(event, TaskStatusUpdateEvent):
            self._sent_back, self.state = (), event.status.state

    def _of_message(self, message: Message) -> Iterator[Entry]:
        """Yield the entries of a Message that is the turn's only event."""
        if self._has_emitted:
            msg = "The agent emitted a Message after task events; it has to use a status message."
            raise InvalidAgentEventError(msg)
        if message.task_id and message.task_id != self._fold.task_id:
            raise _of_another("Message")
        if not message.parts:
            raise InvalidAgentEventError("The agent emitted a message without parts.")
        _check_parts(message.parts, "A message")
        yield from _reply(self._completed(message))

    def _of_task(self, task: Task) -> Iterator[Entry]:
        """Yield entries for what is new in a Task; agents send the Task they got, or their own.

        Messages and metadata are statuses, so that streams and webhooks tell them, too.
        """
        if task.id != self._fold.task_id:
            raise _of_another("Task")
        for artifact in task.artifacts:
            known = self._fold.artifacts.get(artifact.artifact_id)
            if known is None or joined(known) != joined(artifact):
                yield ArtifactWritten(_checked(artifact))
        news = [each for each in task.history if each.parts and not self._has_message(each)]
        metadata = self._news_of(_joined(task, *task.history, task.status.message))
        is_news = self._takes_status(task.status)
        if is_news or news or metadata.fields:
            now = copied(self._fold.status)
            if now.state == TaskState.TASK_STATE_SUBMITTED:
                now.state = TaskState.TASK_STATE_WORKING
            last = self._status(task.status if is_news else now, metadata)
            said = [self._status(TaskStatus(state=now.state, message=each)) for each in news]
            for number, entry in enumerate((*said, last)):
                # A status that stays is said again at last: its message joins no history.
                yield entry if is_news or number else replace(entry, archive=False)

    def _takes_status(self, status: TaskStatus) -> bool:
        """Return True if a Task's status is a new one, and note whether it is the given one."""
        if self._given is not None and _says_the_same(status, self._given):
            self._sent_back = (self._status(status),)
            return False
        if self._is_news(status):
            self._sent_back = ()
            return True
        return False

    def _of_status(self, event: TaskStatusUpdateEvent) -> Entry:
        if event.task_id != self._fold.task_id:
            raise _of_another("TaskStatusUpdateEvent")
        self._sent_back = ()
        return self._status(event.status, _joined(event, event.status.message))

    def _of_artifact(self, event: TaskArtifactUpdateEvent) -> Entry:
        """Return the entry of a chunk; the first chunk of a new artifact never appends.

        So the artifact also starts over after a restart, as this view does.
        """
        if event.task_id != self._fold.task_id:
            raise _of_another("TaskArtifactUpdateEvent")
        is_known = event.artifact.artifact_id in self._fold.artifacts
        return ArtifactWritten(
            _checked(event.artifact),
            append=event.append and is_known,
            last_chunk=event.last_chunk,
            metadata=copied(event.metadata) if event.HasField("metadata") else None,
        )

    def _status(self, status: TaskStatus, metadata: Struct | None = None) -> StatusChanged:
        if status.state not in KNOWN:
            raise InvalidAgentEventError("The agent emitted a status without a state.")
        copy = TaskStatus(state=status.state)
        if status.message.parts:
            _check_parts(status.message.parts, "A message")
            copy.message.CopyFrom(self._completed(status.message))
        return StatusChanged(copy, metadata or None, archive=True)

    def _has_message(self, message: Message) -> bool:
        known = [*self._fold.history, self._fold.status.message]
        if self._given is not None:
            known.append(self._given.message)
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


def _of_another(kind: str) -> InvalidAgentEventError:
    return InvalidAgentEventError(f"The agent emitted a {kind} for another task than its own.")


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
    return copied(artifact)


def _check_parts(parts: Iterable[Part], where: str) -> None:
    if None in [part.WhichOneof("content") for part in parts]:
        raise InvalidAgentEventError(f"{where} of the agent has a part without content.")


def _joined(event: Task | TaskStatusUpdateEvent, *messages: Message) -> Struct:
    """Return the metadata of `messages` without parts and of an event; later ones win, then it."""
    joined = Struct()
    for message in messages:
        if not message.parts:
            merge_metadata(joined, message.metadata)
    merge_metadata(joined, event.metadata)
    return joined

"""Folding a task's log into the Task that a client sees."""

from __future__ import annotations

from dataclasses import dataclass, field

from a2a.types import Artifact, Message, SendMessageRequest, Task, TaskStatus
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Caller,
    Entry,
    MessageAppended,
    MetadataMerged,
    Replied,
    Restarted,
    StatusChanged,
    TurnEnded,
    TurnOpened,
)
from a2a_serverless.tasks.rules import merge_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One complete commit as it stands in the log."""

    version: int
    entries: tuple[Entry, ...]
    token: str | None = None
    commit_id: str = ""
    at: int | None = None
    """When it was committed, in milliseconds since the epoch; None: by a release without times."""
    trace: str | None = None
    """X-Ray's header of whoever has committed."""


@dataclass(slots=True)
class Fold:
    """The state of one incarnation of a task after the records added so far.

    Records come in unbroken version order, from 1. The fold keeps them, because a restart takes
    back what attempts wrote since the turn began.
    """

    task_id: str
    context_id: str
    version: int = 0
    status: TaskStatus = field(default_factory=TaskStatus)
    metadata: Struct = field(default_factory=Struct)
    history: list[Message] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    reply: Message | None = None
    restored: list[Artifact] = field(default_factory=list)
    """The artifacts as the last restart left them."""
    _opened: dict[int, TurnOpened] = field(default_factory=dict)
    _records: list[Record] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Apply the next record."""
        if record.version != self.version + 1:
            msg = f"record {record.version} does not follow version {self.version}"
            raise ValueError(msg)
        for entry in record.entries:
            self._apply(entry, record)
        self._records.append(record)
        self.version = record.version

    def opening(self, turn: int) -> tuple[SendMessageRequest, Caller]:
        """The request that opened `turn`, and who sent it; KeyError if that turn is not there."""
        opened = self._opened[turn]
        return opened.request, opened.caller

    def record(self, version: int) -> Record:
        """The record of a version that was added."""
        return self._records[version - 1]

    def task(self, history_length: int | None = None, *, include_artifacts: bool = True) -> Task:
        """The Task: fresh objects that belong to the caller.

        `history_length`: None = all, 0 = none, n = the last n messages.
        """
        task = Task(id=self.task_id, context_id=self.context_id, status=self.status)
        task.history.extend(limit_history(self.history, history_length))
        if include_artifacts:
            task.artifacts.extend(self.artifacts.values())
        if self.metadata.fields:
            task.metadata.CopyFrom(self.metadata)
        return task

    def _apply(self, entry: Entry, record: Record) -> None:
        match entry:
            case TurnOpened(request, _):
                self._opened[record.version] = entry
                self._archive_status_message()
                self.history.append(bound(request.message, self.task_id, self.context_id))
            case MessageAppended(message):
                self.history.append(message)
            case StatusChanged(status, metadata, archive):
                if archive:
                    self._archive_status_message()
                self.status = status
                if metadata is not None:
                    merge_metadata(self.metadata, metadata)
            case ArtifactWritten():
                self._write_artifact(entry)
            case MetadataMerged(metadata):
                merge_metadata(self.metadata, metadata)
            case Restarted(base):
                self._restart(base)
            case Replied(message):
                self.reply = message
            case TurnEnded():
                pass

    def _archive_status_message(self) -> None:
        if self.status.HasField("message"):
            self.history.append(self.status.message)
            without = TaskStatus()
            without.CopyFrom(self.status)
            without.ClearField("message")
            self.status = without

    def _write_artifact(self, write: ArtifactWritten) -> None:
        known = self.artifacts.get(write.artifact.artifact_id)
        if known is None or not write.append:
            self.artifacts[write.artifact.artifact_id] = _copy(write.artifact)
            return
        known.parts.extend(write.artifact.parts)
        if write.artifact.HasField("metadata"):
            merge_metadata(known.metadata, write.artifact.metadata)

    def restarted_at(self, base: int) -> Fold:
        """The task without what attempts wrote after version `base`."""
        again = Fold(self.task_id, self.context_id)
        for record in self._records:
            if record.version <= base or record.token is None:
                for entry in record.entries:
                    again._apply(entry, record)
        return again

    def _restart(self, base: int) -> None:
        again = self.restarted_at(base)
        self.status, self.metadata, self.reply = again.status, again.metadata, again.reply
        self.history, self.artifacts = again.history, again.artifacts
        self.restored = [_copy(artifact) for artifact in again.artifacts.values()]


def limit_history(history: list[Message], length: int | None) -> list[Message]:
    """The last `length` messages, oldest first (A2A 1.0.1, section 3.2.4)."""
    check_history_length(length)
    if length is None:
        return history
    return history[-length:] if length else []


def check_history_length(length: object) -> None:
    """Refuse what is neither None nor a whole number of messages."""
    if length is None:
        return
    if isinstance(length, bool) or not isinstance(length, int) or length < 0:
        msg = "history_length is a whole number, 0 or more."
        raise InvalidArgumentError(msg)


def _copy(artifact: Artifact) -> Artifact:
    copy = Artifact()
    copy.CopyFrom(artifact)
    return copy


def bound(message: Message, task_id: str, context_id: str) -> Message:
    """A copy of `message` that names its task and context; the input is never mutated."""
    copy = Message()
    copy.CopyFrom(message)
    copy.task_id, copy.context_id = task_id, context_id
    return copy

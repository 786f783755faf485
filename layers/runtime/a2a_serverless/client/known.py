"""What a caller has got of a task: enough to tell what of a stream is new to it."""

from __future__ import annotations

import hashlib

from a2a.types import Artifact, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus
from google.protobuf.message import Message


class Known:
    """The newest event that a caller has, and digests of everything before it.

    `last_id` is the id of the newest event; None if it has none.
    """

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self._newest: StreamResponse | None = None
        self._status = TaskStatus()
        self._artifacts: dict[str, _Parts] = {}
        self._seen: dict[str, bytes] = {}
        self._ids_are_unique = True

    @property
    def is_empty(self) -> bool:
        """Return True if no event has come."""
        return self._newest is None

    @property
    def state(self) -> TaskState:
        """Return the task's newest state."""
        return self._status.state

    def ends_at(self, event_id: str | None, opening: StreamResponse) -> bool:
        """Return True if a stream with this opening goes on after the newest event.

        Its id alone does not prove that: a server that numbers the events of each connection opens
        every stream under the same id.
        """
        if event_id is None or event_id != self.last_id:
            return False
        if not opening.HasField("task"):
            return opening == self._newest
        return self._has_status(opening.task.status) and _parts_of(opening.task) == self._artifacts

    def _has_status(self, status: TaskStatus) -> bool:
        """Return True if `status` shows nothing new; a follow-up clears the message of a status."""
        known = TaskStatus()
        known.CopyFrom(self._status)
        if not status.HasField("message"):
            known.ClearField("message")
        return status == known

    def has(self, event_id: str | None, event: StreamResponse) -> bool:
        """Return True if the server has sent this very event before, under the same id.

        A server that gives one id to different events has no ids by which events are recognised.
        """
        if event.HasField("task") and self.ends_at(event_id, event):
            return True
        before = self._seen.get(event_id or "")
        if before is None or before == _digest(event):
            return before is not None
        self._ids_are_unique = False
        self._seen.clear()
        return False

    def is_newest(self, event: StreamResponse) -> bool:
        """Return True if `event` equals the newest event."""
        return event == self._newest

    def forget_ids(self) -> None:
        """Forget all ids: those that come may be given to other events."""
        self._seen.clear()
        self.last_id = None

    def note_id(self, event_id: str | None, event: StreamResponse) -> None:
        """Note that the caller has `event`, which came under this id."""
        self.last_id = event_id
        if event_id is not None and self._ids_are_unique:
            self._seen[event_id] = _digest(event)

    def take(self, event_id: str | None, event: StreamResponse) -> None:
        """Note that the caller gets `event`."""
        self.note_id(event_id, event)
        self._newest = event
        match event.WhichOneof("payload"):
            case "task":
                self._status.CopyFrom(event.task.status)
                self._artifacts = _parts_of(event.task)
            case "status_update":
                self._status.CopyFrom(event.status_update.status)
            case "artifact_update":
                self._write(event.artifact_update)

    def _write(self, update: TaskArtifactUpdateEvent) -> None:
        artifact = update.artifact
        known = self._artifacts.get(artifact.artifact_id) if update.append else None
        if known is None:
            self._artifacts[artifact.artifact_id] = _Parts.of(artifact)
        else:
            known.add(artifact)


class _Parts:
    """A digest of an artifact's parts, to which parts can be added."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    @classmethod
    def of(cls, artifact: Artifact) -> _Parts:
        parts = cls()
        parts.add(artifact)
        return parts

    def add(self, artifact: Artifact) -> None:
        for part in artifact.parts:
            self._hash.update(_digest(part))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parts) and self._hash.digest() == other._hash.digest()

    __hash__ = None  # type: ignore[assignment]


def _parts_of(task: Task) -> dict[str, _Parts]:
    return {artifact.artifact_id: _Parts.of(artifact) for artifact in task.artifacts}


def _digest(message: Message) -> bytes:
    content = message.SerializeToString(deterministic=True)
    return hashlib.blake2b(content, digest_size=16).digest()

"""The events that subscribers see, and the cursor of the last one that a subscriber has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

from a2a_serverless.tasks.entries import ArtifactWritten, Restarted, StatusChanged
from a2a_serverless.tasks.fold import Fold, Record
from a2a_serverless.tasks.identity import digest

Event = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent

LAST = 1_000_000_000
"""An index beyond every event of a commit: the cursor of a whole version."""

_CURSOR = re.compile(r"(\d{1,12})\.(\d{1,10})\.([A-Za-z0-9_-]{6})")


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The last event a subscriber has: `index` counts the events of commit `version`."""

    version: int
    index: int
    tag: str

    def __str__(self) -> str:
        """Return the SSE `id:`."""
        return f"{self.version}.{self.index}.{self.tag}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """Return the cursor in a `Last-Event-ID`; None if no cursor has this form."""
        match = _CURSOR.fullmatch(text)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None


def incarnation_tag(incarnation: str) -> str:
    """Return six characters that identify an incarnation in a cursor without revealing it."""
    return digest("cursor", incarnation)[:6]


def events_of(record: Record, after: Fold) -> Iterator[Event]:
    """Yield the events of one commit in order; `after` is the fold that includes the commit.

    A restart yields the artifacts as they were when the turn began. They replace what the
    subscriber has, and so take back the additions of dead attempts.
    """
    for entry in record.entries:
        match entry:
            case StatusChanged(status, metadata, _):
                yield TaskStatusUpdateEvent(
                    task_id=after.task_id,
                    context_id=after.context_id,
                    status=status,
                    metadata=metadata,
                )
            case ArtifactWritten(artifact, append, last_chunk, metadata):
                yield TaskArtifactUpdateEvent(
                    task_id=after.task_id,
                    context_id=after.context_id,
                    artifact=artifact,
                    append=append,
                    last_chunk=last_chunk,
                    metadata=metadata,
                )
            case Restarted():
                for artifact in after.restored:
                    yield TaskArtifactUpdateEvent(
                        task_id=after.task_id, context_id=after.context_id, artifact=artifact
                    )
            case _:
                pass

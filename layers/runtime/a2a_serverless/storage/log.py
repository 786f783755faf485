"""The log of a task, and what a storage returns of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from a2a.types import Task, TaskStatus
from google.protobuf.message import DecodeError

from a2a_serverless.tasks.entries import Restarted, TurnOpened, Unknown, has_time, is_finite
from a2a_serverless.tasks.fold import Fold, Record
from a2a_serverless.tasks.head import Head

TaskKey: TypeAlias = tuple[str, str]
"""The scope's digest and the id of a task."""

LOOK_AT_ONCE: Final = 100
"""Tasks of one `look`: DynamoDB reads as many items in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """HEAD and the complete commits after a version, unbroken up to HEAD's version."""

    head: Head
    records: tuple[Record, ...]

    @property
    def needs_newer(self) -> bool:
        """Return True if only a newer release may run or write the task."""
        return self.head.needs_newer or any(
            isinstance(entry, Unknown) and entry.is_critical
            for record in self.records
            for entry in record.entries
        )

    @property
    def cannot_run(self) -> bool:
        """Return True if no worker of this release can run the open turn.

        The task needs a newer release, or the message that opened the turn cannot be read. For a
        log read from its beginning.
        """
        return self.needs_newer or (self.head.turn_is_open and not self._has_opening)

    @property
    def _has_opening(self) -> bool:
        return any(
            isinstance(entry, TurnOpened)
            for record in self.records
            if record.version == self.head.turn
            for entry in record.entries
        )

    def restores(self) -> int:
        """Return how many artifacts come back when a claim starts the open turn over."""
        fold = self.fold()
        claim = Record(version=self.head.version + 1, entries=())
        fold.apply(Restarted(self.head.turn_base), claim)
        return len(fold.restored)

    def fold(self) -> Fold:
        """Return the fold of a log that was read from its beginning."""
        return extend(Fold(self.head.task_id, self.head.context_id), self.records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The task that a creation has made, or has found under a repeated key or id (`created` False).

    `log` is that of a created task, so that the caller need not read what was just written.
    """

    head: Head
    created: bool
    log: Log | None = None


def extend(fold: Fold, records: tuple[Record, ...]) -> Fold:
    """Add the records that follow to a fold, and return it."""
    for record in records:
        fold.add(record)
    return fold


def task_of_head(head: Head) -> Task | None:
    """Return the Task without history and artifacts; None when HEAD alone does not know it.

    None also if HEAD's copy of status or metadata is damaged, or cannot be shown in an answer: the
    log has both.
    """
    if head.status is None or head.metadata is None:
        return None
    task = Task(id=head.task_id, context_id=head.context_id)
    try:
        task.status.CopyFrom(TaskStatus.FromString(head.status))
        if head.metadata:
            task.metadata.ParseFromString(head.metadata)
    except DecodeError:
        return None
    return task if has_time(task.status) and is_finite(task) else None

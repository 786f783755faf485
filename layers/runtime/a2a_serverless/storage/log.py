"""The log of a task, and what a storage returns of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from a2a_serverless.storage.layout import status_key
from a2a_serverless.tasks.entries import Restarted, TurnOpened, Unknown
from a2a_serverless.tasks.fold import Fold, Record
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.push import Push

TaskKey: TypeAlias = tuple[str, str]
"""The scope's digest and the id of a task."""

Place: TypeAlias = tuple[int, str, str]
"""Due time, id and the scope's digest of a task that is due."""


HOUR_MS: Final = 3_600_000

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
class Survey:
    """A task as far as it can be read, for a person who looks at it; nothing is decided from it."""

    head: Head
    records: tuple[Record, ...]
    """The commits up to HEAD's version, in order; those that cannot be read are left out."""
    missing: frozenset[str] = frozenset()
    """Fields of `head` that could not be read: their values say nothing."""
    unreadable: tuple[str, ...] = ()
    """What could not be read, as clauses such as `HEAD has no turn`."""
    pushes: tuple[Push, ...] = ()
    """The task's push configurations that can be read, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """Tasks of all scopes that were created in one hour, the newest first."""

    heads: tuple[Head, ...]
    before: str
    """The place where the look has ended, for the next one; empty: the hour has no more."""

    @staticmethod
    def place(head: Head) -> str:
        """Return a task's place in its hour, as text that sorts correctly."""
        return created_place(status_key(head.created_at, head.task_id), head.scope)


def created_place(created_key: str, scope: str) -> str:
    """Return a place among tasks by creation: like `status_key`, then the scope's digest."""
    return f"{created_key}#{scope}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A task that has to be looked at from `due_at` on (milliseconds since the epoch)."""

    scope: Scope
    task_id: str
    due_at: int

    @property
    def place(self) -> Place:
        """Return the task's place in the order of what is due, the longest overdue first."""
        return self.due_at, self.task_id, self.scope.digest


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

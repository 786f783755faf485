"""The log of a task, and what a storage returns of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self, TypeAlias

from a2a_serverless.clock import Clock
from a2a_serverless.storage.listing import status_key
from a2a_serverless.tasks.entries import Restarted, TurnOpened, Unknown
from a2a_serverless.tasks.fold import Fold, Record
from a2a_serverless.tasks.head import AttemptEnd, Head, Spared
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.push import Push
from a2a_serverless.tasks.rules import Commit, Timing
from a2a_serverless.tasks.storing import counts_for, is_requested

TaskKey: TypeAlias = tuple[str, str]
"""The scope's digest and the id of a task."""

Place: TypeAlias = tuple[int, str, str]
"""Due time, id and the scope's digest of a task that is due."""


HOUR_MS: Final = 3_600_000

LOOK_AT_ONCE: Final = 50
"""Tasks of one `look`: two items each, of the 100 that DynamoDB reads in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """HEAD and the complete commits after a version, unbroken up to HEAD's version."""

    head: Head
    records: tuple[Record, ...]
    flagged: str | None = None
    """The incarnation whose cancel was requested, read before HEAD; None without a flag.

    A log that was not read from its beginning does not know.
    """

    @property
    def is_cancelled(self) -> bool:
        """Return True if the task's cancel was requested. For a log read from its beginning."""
        return is_requested(self.head, self.flagged)

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

    def counted(self) -> Log:
        """Return the log with HEAD's generation, counted here if an older release has not kept it.

        For a log read from its beginning.
        """
        if self.head.generation is not None:
            return self
        return replace(self, head=replace(self.head, generation=self.fold().generation))

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
class Look:
    """HEAD and cancel flag of a task, from a read that may be out of date."""

    head: Head | None
    flagged: str | None
    """The incarnation whose cancel was requested; None without a flag."""

    @property
    def is_cancelled(self) -> bool:
        """Return True if the flag is meant for the incarnation that HEAD shows."""
        return (
            self.head is not None
            and self.flagged is not None
            and counts_for(self.flagged, self.head.incarnation)
        )


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
class OverdueCancel(Due):
    """A cancel that has not ended its task by `due_at`, and the incarnation it is meant for."""

    incarnation: str


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


class TaskLog(ABC):
    """The commits of tasks, seen through one scope."""

    wakes: ClassVar[bool] = False
    """True where `changed` returns at every commit and deletion, so that no reader has to poll."""

    scope: Scope
    clock: Clock
    timing: Timing

    @abstractmethod
    def for_scope(self, scope: Scope) -> Self:
        """Return the same log seen by another owner; cheap."""

    @abstractmethod
    async def head(self, task_id: str) -> Head | None:
        """Return HEAD as of now, None when the task does not exist or has expired."""

    @abstractmethod
    async def look(self, tasks: Collection[TaskKey]) -> Mapping[TaskKey, Look]:
        """Look at up to `LOOK_AT_ONCE` tasks of all scopes, in one request that is not repeated.

        What is seen may be out of date: a HEAD may be an earlier one, or missing although its task
        was just created. So a look only gives notice, and a consistent read or a commit's condition
        decides. A task that the backend had no capacity for is left out.

        Raises:
            Exception: any error of the backend's client; the next look may succeed.
        """

    @abstractmethod
    async def read(
        self, task_id: str, *, after: int = 0, incarnation: str | None = None
    ) -> Log | None:
        """Return HEAD and every commit after version `after`; if that is 0, the flag as well.

        None when the task does not exist, has expired, or is not of `incarnation`.

        Raises:
            UnreadableTaskError: HEAD or a commit after `after` is damaged or missing.
        """

    async def survey(self, task_id: str) -> Survey | None:
        """Return the task as far as it can be read; None when it does not exist or has expired.

        Unlike for `read`, damage is no error.
        """
        log = await self.read(task_id)
        return None if log is None else Survey(head=log.head, records=log.records)

    @abstractmethod
    async def commit(self, head: Head, commit: Commit) -> Head:
        """Write `commit` onto `head` as one atomic step; return the new HEAD.

        It is written exactly once: a write whose answer was lost is recognised as applied.

        Raises:
            TaskNotFoundError: the task is gone, or another incarnation took its id.
            ConcurrencyError: another writer has committed since `head`.
            FencedError, TurnFinishedError, TaskTerminalStateError,
            TaskNotAcceptingMessagesError: the rules refuse it.
            CommitTooLargeError: more than 4 MB; nothing was written.
            UnavailableError: no answer within the retry budget; the outcome is unknown.
        """

    @abstractmethod
    async def find(self, task_id: str) -> list[TaskKey]:
        """Return the live tasks with this id, of all scopes, also one whose HEAD is damaged.

        A task that a release without this index has created is not found. The index lags behind by
        milliseconds.

        Raises:
            ConfigurationError: the table has no such index.
        """

    @abstractmethod
    async def created_in(self, hour_ms: int, *, before: str = "", limit: int = 100) -> Created:
        """Return the live ones of `limit` tasks that were created in an hour, the newest first.

        The tasks are those of all scopes. The cost depends on `limit` alone. A HEAD that cannot be
        read is left out. The index lags behind by milliseconds.

        Args:
            hour_ms: any time in the hour (UTC), in milliseconds since the epoch.
            before: the place where the page before ended; empty: from the newest on.
            limit: how many tasks are looked at, including those that have expired.

        Raises:
            ConfigurationError: the table has no such index.
        """

    @abstractmethod
    async def due(self, now_ms: int, *, limit: int = 100, after: Due | None = None) -> list[Due]:
        """Return the first `limit` overdue turns of all scopes, the longest overdue first.

        With `after`, the first ones behind it. Turns of tasks that cannot be read are included.
        """

    @abstractmethod
    async def postpone(self, head: Head, *, due_at: int, sends: int) -> bool:
        """Move HEAD's due time without a commit; False when HEAD has changed since, or expired."""

    @abstractmethod
    async def renew(self, head: Head, *, token: str, due_at: int) -> bool:
        """Move the due time of a turn that the attempt with `token` still owns, without a commit.

        False when that attempt does not own it: the turn is over, another attempt has claimed it,
        or the task is gone. Commits made since `head` was read do not matter.

        Raises:
            UnavailableError: no answer within the retry budget; the outcome is unknown.
        """

    @abstractmethod
    async def release(
        self,
        head: Head,
        end: AttemptEnd,
        *,
        due_at: int | None = None,
        attempts: int | None = None,
        spared: Spared | None = None,
    ) -> bool:
        """Note that the attempt `end.token` has given its turn back, without a commit.

        `due_at` also moves the due time, `attempts` sets how many attempts of the turn count, and
        `spared` how many starts do not.
        False when that attempt does not own the turn: it never claimed it, the turn is over,
        another attempt has claimed it, or the task is gone. Commits made since `head` was read do
        not matter.

        Raises:
            UnavailableError: no answer within the retry budget; the outcome is unknown.
        """

    @abstractmethod
    async def changed(self, task_id: str, version: int, timeout_s: float) -> None:
        """Return when the task may have moved beyond `version`, at the latest after `timeout_s`."""

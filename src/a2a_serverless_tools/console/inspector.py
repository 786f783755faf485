"""What an operator asks about tasks: one interface, over a table or over a running `dev`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from a2a.types import TaskState

from a2a_serverless.storage.deletion import Counted, Deleted
from a2a_serverless.tasks.head import KNOWN, plain_state
from a2a_serverless_tools.console.letters import Aside, Letters
from a2a_serverless_tools.console.lines import LogLine
from a2a_serverless_tools.inspect.timeline import Timeline
from a2a_serverless_tools.inspect.wording import age, times

STATES: Final[Mapping[str, TaskState]] = {plain_state(state): state for state in sorted(KNOWN)}
"""The states that a task can have, by their plain names."""

PAGE: Final = 50
"""The tasks of one page, unless the caller asks for another number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task in a list. Times are milliseconds since the epoch."""

    scope: str
    task_id: str
    context_id: str
    state: str
    created_at: int
    status_at: int
    version: int
    attempts: int
    turn_is_open: bool
    due_at: int | None
    is_cancel_asked: bool
    sends: int
    """How often the sweeper has sent the turn again."""
    is_claimed: bool
    """True if an attempt has claimed the open turn and has not given it back."""
    waits_since: int | None
    """The time since which the open turn has no worker; None: it is claimed, or the time is
    unknown."""
    waits_until: int
    """The time before which the open turn does not start again; 0: it may start."""
    waits_for: str
    """Why the open turn was given back; empty: it was not."""

    def notes(self, now_ms: int) -> list[str]:
        """Return what a person should know of the task besides its state."""
        notes = ["cancel asked"] if self.is_cancel_asked and self.state != "canceled" else []
        if not self.turn_is_open:
            return notes
        if self.waits_until > now_ms:
            notes.append(f"waits {age(self.waits_until - now_ms)}: {self.waits_for}")
        elif not self.is_claimed:
            since = self.waits_since
            notes.append("no worker" if since is None else f"no worker for {age(now_ms - since)}")
        if self.attempts > 1:
            notes.append(f"attempt {self.attempts}")
        if self.sends:
            notes.append(f"sent again {times(self.sends)}")
        if self.due_at is not None and self.due_at < now_ms:
            notes.append("overdue")
        return notes


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuery:
    """Which tasks to list: of one scope by their status, newest first; else by their creation."""

    scope: str | None = None
    state: str | None = None
    since_ms: int | None = None
    """Only tasks whose status has changed since then; None: all."""
    created_ms: int | None = None
    """Without a scope: only tasks created since then. None: a page without a token looks at those
    of a day, or since `since_ms` if that is longer ago; the next pages look further back."""
    limit: int = PAGE
    token: str = ""
    """The place where the page before ended; empty: from the newest on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The tasks among which a page was looked for: those created from `oldest` to `newest`."""

    count: int
    newest: int
    oldest: int
    """Milliseconds since the epoch, as `newest`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One page of a list, and the token of the next one; empty: there is none."""

    rows: tuple[TaskRow, ...]
    next_token: str = ""
    looked: Looked | None = None
    """None: the list is in the order of changes, and the page has all that match up to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One event as subscribers get it."""

    cursor: str
    event: Mapping[str, Any]
    """A StreamResponse as JSON."""


class Inspector(ABC):
    """Looks at tasks of all scopes, and does with them what an operator may do.

    Every method raises:
        ConfigurationError: one sentence says what cannot be reached, and what to do.
    """

    place: str
    """What is looked at, such as `the table tasks`."""
    has_logs: bool
    """True if `lines` can read the logs of the functions."""

    @abstractmethod
    async def timelines(self, task_id: str, scope: str | None = None) -> list[Timeline]:
        """Return the task of `scope`; without a scope, all tasks with this id, ordered by scope."""

    @abstractmethod
    def events(
        self, task_id: str, scope: str, *, is_followed: bool = False
    ) -> AsyncIterator[EventLine]:
        """Yield the task's events from the first one on; `is_followed`: until it has ended.

        Raises:
            TaskNotFoundError: there is no such task, or it has been deleted meanwhile.
        """

    @abstractmethod
    def lines(self, task_id: str, since_ms: int) -> AsyncIterator[LogLine]:
        """Yield what the functions have logged about a task from a time on, in order."""

    @abstractmethod
    async def tasks(self, query: TaskQuery) -> Rows:
        """Return one page of tasks; it looks at a bounded number, and may have fewer than asked.

        Raises:
            PageTokenError: the token was made for another kind of list.
        """

    @abstractmethod
    async def count(self, scope: str, state: str) -> int:
        """Return how many tasks of a scope are in a state; this reads an index entry for each."""

    async def counts(self, scope: str) -> Mapping[str, int]:
        """Return the number of a scope's tasks by state."""
        return {state: await self.count(scope, state) for state in STATES}

    @abstractmethod
    async def cancel(self, task_id: str, scope: str) -> str:
        """Cancel a task; return the state in which it has ended.

        Raises:
            TaskNotFoundError: there is no such task.
            TaskNotCancelableError: it has ended.
        """

    @abstractmethod
    async def resend(self, task_id: str, scope: str) -> bool:
        """Make an open turn due now, so that the next sweep sends it; False if HEAD has moved.

        Raises:
            TaskNotFoundError: there is no such task.
            TurnFinishedError: no turn is open.
            UnsupportedOperationError: the turn waits for a time of its own.
        """

    @abstractmethod
    async def count_data(
        self, scope: str, context_id: str | None = None, *, after: str = ""
    ) -> Counted:
        """Count the next part of a scope's data, or of one of its contexts.

        `after` is the one that the step before returned; empty for the first step.

        Raises:
            UnavailableError: AWS did not answer in time.
        """

    @abstractmethod
    async def delete_data(self, scope: str, context_id: str | None = None) -> Deleted:
        """Delete a part of a scope's data, or of one of its contexts; call it until it is done.

        Raises:
            UnavailableError: AWS did not answer in time; call it again.
        """

    @abstractmethod
    def letters(self, aside: Aside) -> Letters | None:
        """Return the messages set aside in a queue; None if there is no such queue."""

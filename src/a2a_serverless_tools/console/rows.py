"""What an operator asks for, and what is answered: lists of tasks, and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from a2a.types import TaskState

from a2a_serverless.tasks.head import KNOWN, plain_state
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

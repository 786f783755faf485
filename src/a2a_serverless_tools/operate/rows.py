"""A task as a list shows it, and what chooses the tasks of a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from a2a.types import TaskState

from a2a_serverless.storage.layout import MAX_REASON, TROUBLES, WAIT_KINDS
from a2a_serverless.tasks.head import (
    ASLEEP,
    HANDOVER,
    KNOWN,
    TERMINAL,
    Head,
    Reason,
    Trouble,
    Wait,
    plain_state,
)
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless_tools.operate.wording import IN_LINE, age, duration, left_at_record, times

STATES: Final[Mapping[str, TaskState]] = {plain_state(state): state for state in sorted(KNOWN)}
"""The states that a task can have, by their plain names."""

ATTENTIONS: Final[tuple[Trouble | Wait, ...]] = (*TROUBLES, *WAIT_KINDS)
"""What a task can need attention for."""

PAGE: Final = 50
"""The tasks of one page, unless the caller asks for another number."""

LATE_MS: Final = 120_000
"""Two sweeps of a deployment: a turn that slept is woken by then."""

_ENDS: Final = frozenset(map(plain_state, TERMINAL))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task in a list. Times are milliseconds since the epoch."""

    head: Head = field(repr=False)
    scope: str
    task_id: str
    incarnation: str
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
    left: Reason
    """What the open turn stands in line for, without a message on the queue; empty: it does not."""
    reason: str = ""
    """Why the task has failed, or what its open turn waits for; empty: it has not, or no reason is
    known."""
    correlation_id: str = ""
    """What the client of a failed task was given."""
    holder: str = ""
    """The process that has claimed the open turn; empty: none has, or it is unknown."""
    caller: str = ""
    tenant: str = ""
    first_line: str = ""
    """The first line of what the task was asked."""

    @property
    def key(self) -> TaskKey:
        """Return the key of the task among those of all scopes."""
        return self.scope, self.task_id

    @property
    def fields(self) -> dict[str, Any]:
        """Return all fields but HEAD, by their names."""
        names = (name for name in self.__dataclass_fields__ if name != "head")
        return {name: getattr(self, name) for name in names}

    def took_ms(self, now_ms: int) -> int:
        """Return how long the task took to its end, or has taken so far."""
        has_ended = self.state in _ENDS
        return max(0, (self.status_at if has_ended else now_ms) - self.created_at)

    def described(self, now_ms: int) -> list[str]:
        """Return what a person knows of the task: its reason, time, holder, caller and request."""
        by = f"{self.caller} ({self.tenant})" if self.tenant else self.caller
        return [
            *([self.reason] if self.reason and not self.turn_is_open else []),
            f"{'took' if self.state in _ENDS else 'for'} {duration(self.took_ms(now_ms))}",
            *([f"on {self.holder}"] if self.holder else []),
            *([f"by {by}"] if by else []),
            *([repr(self.first_line)] if self.first_line else []),
        ]

    def mentions(self, text: str) -> bool:
        """Return True if the row, with what is known of it, contains a casefolded text."""
        asked = (self.caller, self.tenant, self.context_id, self.first_line)
        shown = (*asked, self.reason, self.holder)
        exact = (self.correlation_id, self.scope)
        begins = self.task_id.casefold().startswith(text)
        return begins or any(text in one.casefold() for one in (*shown, *exact))

    def notes(self, now_ms: int) -> list[str]:
        """Return what a person should know of the task besides its state."""
        notes = ["cancel asked"] if self.is_cancel_asked and self.state != "canceled" else []
        if not self.turn_is_open:
            return notes
        since = self.waits_since
        if self.left == ASLEEP:
            notes.append(left_at_record(ASLEEP, self.waits_until))
        elif self.left:
            waited = "" if since is None else f", for {age(now_ms - since)}"
            notes.append(IN_LINE[self.left] + waited)
        elif self.waits_until > now_ms:
            notes.append(f"waits {age(self.waits_until - now_ms)}: {self.waits_for}")
        elif not self.is_claimed:
            handed = "handed over, " if self.waits_for == HANDOVER else ""
            waited = "" if since is None else f" for {age(now_ms - since)}"
            notes.append(f"{handed}no worker{waited}")
        if self.attempts > 1:
            notes.append(f"attempt {self.attempts}")
        if self.sends:
            notes.append(f"sent again {times(self.sends)}")
        if self.is_overdue(now_ms):
            notes.append("overdue")
        return notes

    def is_overdue(self, now_ms: int) -> bool:
        """Return True if the sweeper was to look at the task; it wakes a sleeping turn a bit late.

        That is at most `LATE_MS` where it runs.
        """
        late_ms = LATE_MS if self.left == ASLEEP else 0
        return self.due_at is not None and self.due_at + late_ms < now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuery:
    """Which tasks to list: of one scope by their status, newest first; else by their creation."""

    scope: str | None = None
    state: str | None = None
    since_ms: int | None = None
    """Only tasks whose status has changed since then; None: all."""
    until_ms: int | None = None
    """Only tasks whose status has changed before then; None: all."""
    context_id: str | None = None
    reason: str | None = None
    """Only tasks that have failed, or whose open turn waits, for this; empty: for none known."""
    created_ms: int | None = None
    """Without a scope: only tasks created since then. None: a page without a token looks at those
    of a day, or since `since_ms` if that is longer ago; the next pages look further back."""
    limit: int = PAGE
    token: str = ""
    """The place where the page before ended; empty: from the newest on."""
    attention: Trouble | Wait | None = None
    """Only tasks that need attention for this: the newest trouble first, the longest wait first.
    Their times and reasons are then those of that, and not of the status."""
    text: str = ""
    """Only tasks of which caller, tenant, context, reason, correlation id, the holder of the open
    turn or the request's first line contain this, whatever the case, or whose id begins with it:
    among `SEARCHED`."""
    is_whole: bool = False
    """Without a scope: the first page, too, looks back to the oldest task."""

    def has(self, row: TaskRow, at: int | None = None) -> bool:
        """Return True if a task is one of those, but for its text and why it needs attention.

        `at` is the time that the query's times are about; None: that of its status.
        """
        at = row.status_at if at is None else at
        return (
            self.scope in (None, "", row.scope)
            and self.state in (None, "", row.state)
            and self.context_id in (None, row.context_id)
            and (self.reason is None or self.reason[:MAX_REASON] == row.reason[:MAX_REASON])
            and at >= (self.since_ms or 0)
            and (self.until_ms is None or at < self.until_ms)
        )


def row_of(head: Head) -> TaskRow:
    """Return a task as a list shows it."""
    noted = head.attention
    released = head.released if head.turn_is_open and head.was_released else None
    return TaskRow(
        head=head,
        scope=head.scope,
        task_id=head.task_id,
        incarnation=head.incarnation,
        context_id=head.context_id,
        state=plain_state(head.state),
        created_at=head.created_at,
        status_at=head.status_at,
        version=head.version,
        attempts=head.attempts,
        turn_is_open=head.turn_is_open,
        due_at=head.due_at,
        is_cancel_asked=head.cancel is not None,
        sends=head.resends,
        is_claimed=head.turn_is_open
        and head.token is not None
        and not (head.was_released or head.left),
        waits_since=_waits_since(head),
        waits_until=released.until if released else 0,
        waits_for=released.reason if released else "",
        left=head.left if head.turn_is_open else "",
        reason=noted.reason if noted else "",
        correlation_id=noted.correlation_id if noted else "",
    )


def _waits_since(head: Head) -> int | None:
    """Return the time since which the open turn has no worker; None: it has one, or is unknown."""
    if not head.turn_is_open:
        return None
    if head.released is not None and head.was_released:
        return head.released.until if head.released.reason == ASLEEP else head.released.at
    is_new = head.token is None and head.state == TaskState.TASK_STATE_SUBMITTED
    return head.status_at if is_new else None

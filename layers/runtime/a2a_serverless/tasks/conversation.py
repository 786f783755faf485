"""Decisions about the turns of one conversation, which run one after the other.

Where an agent keeps a state, each accepted message takes a place at the end of its conversation's
line, in the transaction that accepts it. The turn at the first place may run. Every other one is
left when a worker receives it, and is woken when its place has become the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, Self

from a2a_serverless.tasks.head import Head

MOST_WAITING: Final = 50
"""Turns that may wait in one conversation behind the one that has it."""


class Place(NamedTuple):
    """One turn's place in the line of its conversation."""

    task_id: str
    incarnation: str
    turn: int

    @classmethod
    def of(cls, head: Head, turn: int | None = None) -> Self:
        """Return the place of a turn of a task, by default of its current one."""
        return cls(head.task_id, head.incarnation, head.turn.number if turn is None else turn)

    @classmethod
    def stored(cls, text: str) -> Self:
        """Return the place that a line has as `text`; one that no release writes is of no task."""
        task_id, incarnation, turn = ["", *text.rsplit("#", 2)][-3:]
        return cls(task_id, incarnation, int(turn) if turn.isdecimal() else 0)

    def __str__(self) -> str:
        return f"{self.task_id}#{self.incarnation}#{self.turn}"

    def is_of(self, head: Head) -> bool:
        """Return True if it is a place of this task."""
        return (self.task_id, self.incarnation) == (head.task_id, head.incarnation)


class StartDecision(Enum):
    """The work of a worker that has received a turn of a conversation with a line."""

    RUN = "run"
    """The turn has the conversation."""
    JOIN = "join"
    """Take a place at the end of the line: the turn has none, or has lost it."""
    LEAVE = "leave"
    """Leave the turn, pass the conversation on, and acknowledge: another turn is first."""


def on_start(head: Head, line: Sequence[Place]) -> StartDecision:
    """Return the work on the current turn of `head`, given the line of its conversation.

    The place of a later turn of the task is as good: that turn waits for this one.
    """
    if line and line[0].is_of(head) and line[0].turn >= head.turn.number:
        return StartDecision.RUN
    return StartDecision.LEAVE if Place.of(head) in line else StartDecision.JOIN


class FirstDecision(Enum):
    """What becomes of the turn at the first place of a line."""

    STAYS = "stays"
    """It runs, or is about to: its message is on the queue, or its cancel ends it."""
    WAKE = "wake"
    """It was left, and its place has become the first: put it on the queue."""
    DROP = "drop"
    """Its place is free: the turn is over, or has not run for too long."""


def on_first(
    head: Head | None,
    place: Place,
    *,
    since: int,
    waiting: int,
    now_ms: int,
    hold_s: float,
) -> FirstDecision:
    """Return what becomes of the first turn of a line, given HEAD of its task as it is now.

    `since` is when its place became the first, in milliseconds, and `waiting` how many turns wait
    behind it. A turn that does not run keeps the conversation for `hold_s` at most if others wait.
    Its place is gone then, and it takes another one at the end when a worker receives it. One that
    waits for a share of the workers keeps it: it runs when it is its caller's turn.
    """
    if head is None or not place.is_of(head) or head.is_over(place.turn):
        return FirstDecision.DROP
    if head.cancel is not None or head.turn.parked == "share":
        return FirstDecision.STAYS
    if head.turn.parked == "conversation":
        return FirstDecision.WAKE
    is_too_long = now_ms - _ran_until(head, since) > hold_s * 1000
    return FirstDecision.DROP if waiting and is_too_long else FirstDecision.STAYS


def _ran_until(head: Head, since: int) -> int:
    """Return until when the first turn of a line has run, or will run, as far as HEAD tells."""
    if head.turn.released is not None:
        return max(since, head.turn.released.at or 0)
    if head.turn.has_share and not head.turn.is_claimed:
        return max(since, head.turn.waits_since)
    is_leased = head.turn.token is not None and not head.needs_newer
    return max(since, head.due_at or 0) if is_leased else since

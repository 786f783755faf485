"""Decisions about the turns of one conversation, which run one after the other.

Where an agent keeps a state, each accepted message takes a position at the end of its
conversation's queue, in the transaction that accepts it. The turn at the first position may run.
Every other one is parked when a worker receives it, and is requeued when its position has become
the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, Self

from a2a_serverless.tasks.head import Head

MOST_WAITING: Final = 50
"""Turns that may wait in one conversation behind the one that has it."""


class Position(NamedTuple):
    """One turn's position in the queue of its conversation."""

    task_id: str
    incarnation: str
    turn: int

    @classmethod
    def of(cls, head: Head, turn: int | None = None) -> Self:
        """Return the position of a turn of a task, by default of its current one."""
        return cls(head.task_id, head.incarnation, head.turn.number if turn is None else turn)

    @classmethod
    def stored(cls, text: str) -> Self:
        """Return the position stored as `text`; one that no release writes is of no task."""
        task_id, incarnation, turn = ["", *text.rsplit("#", 2)][-3:]
        return cls(task_id, incarnation, int(turn) if turn.isdecimal() else 0)

    def __str__(self) -> str:
        return f"{self.task_id}#{self.incarnation}#{self.turn}"

    def is_of(self, head: Head) -> bool:
        """Return True if it is a position of this task."""
        return (self.task_id, self.incarnation) == (head.task_id, head.incarnation)


class StartDecision(Enum):
    """The work of a worker that has received a turn of a conversation with a queue."""

    RUN = "run"
    """The turn has the conversation."""
    JOIN = "join"
    """Take a position at the end of the queue: the turn has none, or has lost it."""
    PARK = "park"
    """Park the turn, start the next one, and acknowledge: another turn is first."""


def on_start(head: Head, queue: Sequence[Position]) -> StartDecision:
    """Return the work on the current turn of `head`, given the queue of its conversation.

    The position of a later turn of the task is as good: that turn waits for this one.
    """
    if queue and queue[0].is_of(head) and queue[0].turn >= head.turn.number:
        return StartDecision.RUN
    return StartDecision.PARK if Position.of(head) in queue else StartDecision.JOIN


class FirstDecision(Enum):
    """What becomes of the turn at the first position of a queue."""

    STAYS = "stays"
    """It runs, or is about to: its message is on the queue, or its cancel ends it."""
    REQUEUE = "requeue"
    """It was parked, and its position has become the first: put it on the queue of operations."""
    DROP = "drop"
    """Its position is free: the turn is over, or has not run for too long."""


def on_first(
    head: Head | None,
    position: Position,
    *,
    since: int,
    waiting: int,
    now_ms: int,
    hold_s: float,
) -> FirstDecision:
    """Return what becomes of the first turn of a queue, given HEAD of its task as it is now.

    `since` is when its position became the first, in milliseconds; `waiting` is how many turns wait
    behind it. A turn that does not run keeps the conversation for `hold_s` at most if others wait.
    Its position is gone then, and it takes another one at the end when a worker receives it. One
    that waits for a share of the workers keeps it: it runs when it is its caller's turn.
    """
    if head is None or not position.is_of(head) or head.is_over(position.turn):
        return FirstDecision.DROP
    if head.cancel is not None or head.turn.parked == "share":
        return FirstDecision.STAYS
    if head.turn.parked == "conversation":
        return FirstDecision.REQUEUE
    is_too_long = now_ms - _ran_until(head, since) > hold_s * 1000
    return FirstDecision.DROP if waiting and is_too_long else FirstDecision.STAYS


def _ran_until(head: Head, since: int) -> int:
    """Return until when the first turn of a queue has run, or will run, as far as HEAD tells."""
    if head.turn.released is not None:
        return max(since, head.turn.released.at or 0)
    if head.turn.has_share and not head.turn.is_claimed:
        return max(since, head.turn.waits_since)
    is_leased = head.turn.token is not None and not head.needs_newer
    return max(since, head.due_at or 0) if is_leased else since

"""Decisions on a task that its workers have left, or that the queue has given up.

The sweeper, the consumer of dead letters and the API (a message sent again) decide here: they read
HEAD, ask, and commit the answer on exactly that HEAD.
"""

from __future__ import annotations

from enum import Enum

from a2a_serverless.tasks.attempts import Delivered, RetryPolicy, on_delivery
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.operations import Operation, OperationParams


class DeadLettered(Enum):
    """The work that a dead letter asks for: an operation that was delivered too often."""

    DROP = "drop"
    """Nothing: the task is gone or has ended, or the turn is finished."""
    CANCEL = "cancel"
    """End the task as canceled."""
    RESEND = "resend"
    """Make the current turn due now, so that the sweeper sends it again."""
    LEAVE = "leave"
    """Nothing: no worker of this release can start the turn. The sweeper sends it again; each wait
    is twice as long as the one before."""
    FAIL = "fail"
    """End the task as failed: its turn has had all its attempts."""


def on_dead_letter(
    head: Head | None,
    operation: Operation,
    *,
    retry: RetryPolicy,
    cannot_run: bool = False,
) -> DeadLettered:
    """Return the work to do on a dead letter, given HEAD as it is now.

    `cannot_run`: the log has an entry that this release must not skip, or not the turn's opening.
    So no worker of this release can start the turn: if it were made due at once, it would come back
    as a dead letter again and again. A turn whose attempts are used up fails all the same, and a
    turn that no attempt has claimed is given up by the sweeper.

    The queue counts deliveries, and HEAD counts attempts of the agent. Deliveries also run out
    when no attempt can begin, as in an outage of the storage; no task fails because of that.
    """
    wanted = on_delivery(head, operation, receives=1)
    if head is None or wanted is Delivered.DROP:
        return DeadLettered.DROP
    if wanted is Delivered.CANCEL:
        return DeadLettered.CANCEL
    if wanted is Delivered.GIVE_BACK:
        return DeadLettered.LEAVE if head.turn_is_open else DeadLettered.DROP
    if retry.is_exhausted(head.attempts):
        return DeadLettered.FAIL
    return DeadLettered.LEAVE if cannot_run else DeadLettered.RESEND


def overdue_turn(head: Head | None, *, now_ms: int) -> OperationParams | None:
    """Return the next copy of an overdue turn's operation; None if the turn has moved on.

    A task that is being canceled gets no copy: its cancel ends it.

    The copy has a number of its own, because the queue drops a number that it has seen within its
    5 minutes of deduplication. It may be sent once HEAD was postponed with `sends` = its number.
    """
    if head is None or not head.turn_is_open or head.cancel is not None:
        return None
    if head.due_at is None or head.due_at > now_ms:
        return None
    return OperationParams.of(head, head.turn, head.sends + 1)


def is_given_up(head: Head, *, opened_at: int | None, now_ms: int, give_up_s: float) -> bool:
    """Return True if the open turn fails because no attempt has claimed it for `give_up_s`.

    `opened_at` is when the turn became the current one, in milliseconds: the time of the commit
    `head.turn_base`. A turn whose time is unknown (None) is never given up. A turn that needs a
    newer release is not given up either: it waits for a worker of that release.
    """
    if opened_at is None or not head.turn_is_open or head.needs_newer:
        return False
    was_claimed = head.token is not None or head.attempts > 0
    return not was_claimed and opened_at + int(give_up_s * 1000) <= now_ms


def repeated_turn(head: Head | None, turn: int) -> OperationParams | None:
    """Return the operation of `turn` once more, for a client that repeats its message.

    None if a worker has the turn, or had it: the due index watches such a turn.
    """
    if head is None or head.turn != turn or not head.turn_is_open or head.token is not None:
        return None
    return OperationParams.of(head, turn, head.sends)


def overdue_cancel(head: Head | None, *, now_ms: int) -> bool:
    """Return True if the sweeper cancels the task: from the deadline of its cancel on."""
    if head is None or not head.is_being_canceled:
        return False
    return head.due_at is not None and head.due_at <= now_ms

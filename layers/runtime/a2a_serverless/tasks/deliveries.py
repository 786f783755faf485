"""What a worker does with a delivery, and with a commit that was refused: pure decisions."""

from __future__ import annotations

from enum import Enum

from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.operations import Operation, OperationParams


class Delivered(Enum):
    """What a delivery asks for."""

    DROP = "drop"
    """Nothing: the task is gone or has ended, or the turn is finished. Acknowledge."""
    CANCEL = "cancel"
    """End the task as canceled; its agent must not start."""
    CLAIM = "claim"
    """Own the turn before the agent starts: another attempt may have been at it."""
    START = "start"
    """Start the agent; its first commit claims the turn."""


class Refused(Enum):
    """What a refused commit means for the attempt that wanted it."""

    OVER = "over"
    """The task is gone, has ended, or the turn is finished: stop, acknowledge."""
    FENCED = "fenced"
    """Another attempt owns the turn: stop, write nothing, report the delivery failed."""
    REBASE = "rebase"
    """Somebody else wrote, but not to this turn's harm: commit again on the new HEAD."""


def is_over(head: Head | None, params: OperationParams) -> bool:
    """Whether nothing is left to do for the turn that `params` names.

    An operation of another incarnation is about a task that is gone.
    """
    if head is None or head.incarnation != params.incarnation:
        return True
    return head.is_terminal or head.finished_turn >= params.turn


def on_delivery(
    head: Head | None, operation: Operation, *, receives: int, is_cancelled: bool
) -> Delivered:
    """What to do with a delivery, given HEAD and the cancel flag as they are now.

    `receives` is how often the queue has handed the operation out, this time included. An
    operation of a turn that waits behind the current one works on the current one: were it to wait,
    it would hold up the very copy that the sweeper sends for the current turn.
    """
    params = operation.params
    if head is None or head.incarnation != params.incarnation or head.is_terminal:
        return Delivered.DROP
    if is_cancelled or operation.operation == "cancel":
        return Delivered.CANCEL
    if is_over(head, params) or not head.turn_is_open:
        return Delivered.DROP
    was_claimed = head.token is not None
    return Delivered.CLAIM if was_claimed or receives > 1 else Delivered.START


def on_refusal(head: Head | None, params: OperationParams, *, token: str) -> Refused:
    """What to do after a commit met another HEAD than expected, or the fence.

    An unclaimed turn, and one that is still this attempt's, can be written to again.
    """
    if head is None or is_over(head, params):
        return Refused.OVER
    if head.token not in (None, token):
        return Refused.FENCED
    return Refused.REBASE

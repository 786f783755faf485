"""What a worker does with a delivery, and with a write that was refused: pure decisions."""

from __future__ import annotations

from enum import Enum

from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.operations import Operation, OperationParams
from a2a_serverless.tasks.retry import RetryPolicy


class Delivered(Enum):
    """What a delivery asks for."""

    DROP = "drop"
    """Nothing: the task is gone or has ended, or the turn is finished. Acknowledge."""
    CANCEL = "cancel"
    """End the task as canceled; its agent must not start."""
    CLAIM = "claim"
    """Own the turn before the agent starts: another attempt may be at it, or have been."""
    START = "start"
    """Start the agent; its first commit claims the turn."""


class DeadLettered(Enum):
    """What a dead letter asks for: an operation that was delivered too often."""

    DROP = "drop"
    """Nothing: the task is gone or has ended, or the turn is finished."""
    CANCEL = "cancel"
    """End the task as canceled."""
    RESEND = "resend"
    """Make the current turn due now, so that the sweeper sends it again."""
    FAIL = "fail"
    """End the task as failed: its turn has had all its attempts."""


class Refused(Enum):
    """What a refused write means for whoever wanted it."""

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
    it would hold up the very copy that the sweeper sends for the current turn. A copy claims like a
    redelivery: the attempt of the message before it may run still, and have written nothing.
    """
    params = operation.params
    if head is None or head.incarnation != params.incarnation or head.is_terminal:
        return Delivered.DROP
    if is_cancelled or operation.operation == "cancel":
        return Delivered.CANCEL
    if is_over(head, params) or not head.turn_is_open:
        return Delivered.DROP
    is_first = receives == 1 and params.copy_number == 0
    return Delivered.START if is_first and head.token is None else Delivered.CLAIM


def on_dead_letter(
    head: Head | None, operation: Operation, *, is_cancelled: bool, retry: RetryPolicy
) -> DeadLettered:
    """Return what to do with a dead letter, given HEAD and the cancel flag as they are now.

    The queue counts deliveries, and HEAD counts attempts of the agent. Deliveries also run out
    where no attempt can begin, such as in an outage of the storage: that fails no task.
    """
    wanted = on_delivery(head, operation, receives=1, is_cancelled=is_cancelled)
    if head is None or wanted is Delivered.DROP:
        return DeadLettered.DROP
    if wanted is Delivered.CANCEL:
        return DeadLettered.CANCEL
    return DeadLettered.FAIL if retry.is_exhausted(head.attempts) else DeadLettered.RESEND


def on_current_turn(params: OperationParams, head: Head) -> OperationParams:
    """What a delivery works on: the current turn, whatever later turn its operation names.

    Under the later turn's number it would take the end of the current one for none of its business,
    and write on.
    """
    return params.model_copy(update={"turn": head.turn})


def waits_behind(head: Head, operation: Operation) -> bool:
    """Whether a delivery that is done with the current turn goes on with the one that it names.

    Not behind a turn that is over: the task has ended, and the turn will never come.
    """
    is_later = head.turn < operation.params.turn
    return operation.operation == "run" and head.turn_is_open and is_later


def on_refusal(head: Head | None, params: OperationParams, *, token: str | None) -> Refused:
    """What to do after a commit met another HEAD than expected, or the fence.

    An unclaimed turn, and one that is still this attempt's, can be written to again. `token` None
    is a writer outside of any attempt: it needs no more than a task that has not ended.
    """
    if head is None or head.incarnation != params.incarnation or head.is_terminal:
        return Refused.OVER
    if token is None:
        return Refused.REBASE
    if is_over(head, params):
        return Refused.OVER
    return Refused.REBASE if head.token in (None, token) else Refused.FENCED


def on_lost_claim(head: Head | None, params: OperationParams, retry: RetryPolicy) -> Refused:
    """What to do after a claim met another HEAD than expected.

    A claim takes the turn from whoever has it, as long as the turn has an attempt left.
    """
    if head is None or is_over(head, params):
        return Refused.OVER
    return Refused.FENCED if retry.is_exhausted(head.attempts) else Refused.REBASE


def may_give_up(head: Head, params: OperationParams, *, seen: Head) -> bool:
    """Whether a turn whose attempts were used up in `seen` may still be failed for that.

    Not where somebody has taken it since: that attempt ends it.
    """
    return not is_over(head, params) and head.token == seen.token

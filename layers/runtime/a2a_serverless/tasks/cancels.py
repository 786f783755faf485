"""Cancel flags, and the ways in which a worker ends a canceled task: pure decisions."""

from __future__ import annotations

from enum import Enum

from a2a_serverless.errors import TaskNotFoundError, TaskTerminalStateError
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.tasks.states import state_name


class Canceled(Enum):
    """The way in which a worker ends a task as canceled."""

    ALONE = "alone"
    """No agent has seen the task: end it, from outside of any attempt."""
    PAUSED = "paused"
    """Tell the agent, then end the task from outside of any attempt: no turn is open."""
    WAITING = "waiting"
    """Tell the agent, then end the task with a commit that claims its turn."""
    CLAIMED = "claimed"
    """Claim the turn, so that its attempt stops; tell the agent, then end the task."""


def on_cancel(head: Head, operation: Operation) -> Canceled:
    """Return how to cancel a task that HEAD shows as it was read.

    An agent is told of a task of which it has had a turn; `cancel` asks for it in any case.
    """
    agent_knows_it = head.finished_turn > 0 or head.token is not None
    if not agent_knows_it and operation.operation != "cancel":
        return Canceled.ALONE
    if not head.turn_is_open:
        return Canceled.PAUSED
    return Canceled.WAITING if head.token is None else Canceled.CLAIMED


def check_open(head: Head | None) -> Head:
    """Return HEAD of a task on which a cancel flag may be raised.

    The flag is stored only if this still holds at the moment of the write.

    Raises:
        TaskNotFoundError: there is no such task.
        TaskTerminalStateError: it has ended, and no end would remove the flag.
    """
    if head is None:
        raise TaskNotFoundError
    if head.is_terminal:
        raise TaskTerminalStateError(f"The task is in terminal state: {state_name(head.state)}.")
    return head


def counts_for(flagged: str, incarnation: str | None) -> bool:
    """Return True if a flag raised for `flagged` counts for the task as it is now.

    `incarnation` is that of the task's HEAD, None without one. The flag of an earlier task
    with the same id cancels nothing.
    """
    return flagged == incarnation


def may_remove(flagged: str, incarnation: str | None) -> bool:
    """Return True if the end of the task `incarnation` removes a flag raised for `flagged`.

    A later task with the same id keeps its flag. None: any flag.
    """
    return incarnation in (None, flagged)


def deadline_ms(now_ms: int, timeout_s: float) -> int:
    """Return the time, in milliseconds, at which a cancel requested now has to be over."""
    return now_ms + int(timeout_s * 1000)


def is_overdue(deadline: int, *, now_ms: int) -> bool:
    """Return True if the sweeper ends a cancel with this deadline: from that millisecond on."""
    return deadline <= now_ms

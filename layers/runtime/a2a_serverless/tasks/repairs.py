"""What repairs a task that its workers have left: the decisions, without their reads and writes.

The sweeper, the consumer of the dead letters and a client that repeats itself decide here; they
read HEAD, ask, and put what they are told on exactly that HEAD.
"""

from __future__ import annotations

from a2a.types import TaskState

from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.operations import Operation, OperationParams


def overdue_turn(head: Head | None, *, now_ms: int) -> OperationParams | None:
    """The next copy of an overdue turn's operation; None when the turn has moved on.

    The copy has a number of its own: the queue drops a number that it has seen in the last minutes.
    It may be sent once HEAD was postponed with `sends` = the copy's number.
    """
    if head is None or not head.turn_is_open or head.due_at is None or head.due_at > now_ms:
        return None
    return _copy(head, head.turn, head.sends + 1)


def repeated_turn(head: Head | None, turn: int) -> OperationParams | None:
    """The operation of `turn` once more, for a client that repeats its message.

    None where a worker has the turn, or had it: the due index watches that one.
    """
    if head is None or head.turn != turn or not head.turn_is_open or head.token is not None:
        return None
    return _copy(head, turn, head.sends)


def overdue_cancel(head: Head | None, *, incarnation: str) -> bool:
    """Whether the sweeper cancels a task whose flag, raised for `incarnation`, is overdue.

    A task that has ended, or that only has the id of the one that was to be canceled, stays as it
    is; its flag is removed in any case.
    """
    return head is not None and head.incarnation == incarnation and not head.is_terminal


def dead_letter(head: Head | None, operation: Operation, *, is_cancelled: bool) -> TaskState | None:
    """The state in which a dead letter ends its task; None when it has nothing left to end.

    So it is with a task that is gone or has ended, with one that only has the same id, and with
    the run of a turn that is finished. A cancel is about the task, not about a turn.
    """
    params = operation.params
    if head is None or head.incarnation != params.incarnation or head.is_terminal:
        return None
    if operation.operation == "cancel":
        return TaskState.TASK_STATE_CANCELED
    if head.finished_turn >= params.turn:
        return None
    return TaskState.TASK_STATE_CANCELED if is_cancelled else TaskState.TASK_STATE_FAILED


def _copy(head: Head, turn: int, number: int) -> OperationParams:
    return OperationParams(
        scope=head.scope,
        task_id=head.task_id,
        incarnation=head.incarnation,
        turn=turn,
        copy_number=number,
    )

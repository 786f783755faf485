"""Getting hold of a turn before its agent starts, and giving a turn up for good."""

from __future__ import annotations

import secrets

from a2a.types import TaskState

from a2a_serverless import faults
from a2a_serverless.errors import (
    ConcurrencyError,
    FencedError,
    TaskNotFoundError,
    TaskTerminalStateError,
    TurnFinishedError,
    UnavailableError,
)
from a2a_serverless.storage.log import TaskLog
from a2a_serverless.tasks.deliveries import Refused, may_give_up, on_lost_claim
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.operations import OperationParams
from a2a_serverless.tasks.retry import RetryPolicy
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.endings import FAILED, end_task, ending
from a2a_serverless.worker.ownership import Ownership
from a2a_serverless.worker.writer import MAX_REBASES


async def claim(log: TaskLog, head: Head, own: Ownership, retry: RetryPolicy) -> Head:
    """Make `own` the owner of its turn, whoever owned it before; return the new HEAD.

    Raises:
        TurnFinishedError: the turn is over.
        FencedError: others have used up the turn's attempts meanwhile.
        UnavailableError: too many races were lost.
    """
    for _ in range(MAX_REBASES):
        try:
            claimed = await log.commit(head, Commit(token=own.token, claims=True))
        except (TaskNotFoundError, TaskTerminalStateError) as error:
            raise TurnFinishedError from error
        except ConcurrencyError:
            newer = await log.head(head.task_id)
            met = on_lost_claim(newer, own.params, retry)
            if newer is None or met is Refused.OVER:
                raise TurnFinishedError from None
            if met is Refused.FENCED:
                raise FencedError(current_version=newer.version) from None
            head = newer
        else:
            own.claimed = True
            faults.point("after-claim")
            return claimed
    msg = f"The claim lost {MAX_REBASES} races."
    raise UnavailableError(msg)


async def give_up(log: TaskLog, params: OperationParams, seen: Head) -> str | None:
    """Fail a task whose attempts are used up; the reference in its message, for the log.

    None when there was nothing to fail: the turn is over, or somebody has taken it since `seen`.
    """
    reference = secrets.token_hex(8)

    def decide(head: Head) -> Commit | None:
        if not may_give_up(head, params, seen=seen):
            return None
        text = FAILED.format(correlation_id=reference)
        return ending(head, TaskState.TASK_STATE_FAILED, text)

    return reference if await end_task(log, params.task_id, decide) else None

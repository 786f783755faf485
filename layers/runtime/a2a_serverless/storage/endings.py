"""Ending a task from outside of any attempt: a cancel that ran out of time, a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from a2a_serverless.errors import (
    ConcurrencyError,
    TaskNotFoundError,
    TaskTerminalStateError,
)
from a2a_serverless.storage.log import TaskLog
from a2a_serverless.tasks.endings import canceled
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit

REBASES: Final = 16
"""How often an ending is put on a HEAD that another writer has moved meanwhile."""


async def end_task(log: TaskLog, task_id: str, decide: Callable[[Head], Commit | None]) -> bool:
    """Commit what `decide` makes of HEAD as it is now; again, where another writer was faster.

    True when the commit was made. False when the task is gone or has ended, or `decide` returned
    None: there was nothing to end.

    Raises:
        ConcurrencyError: `REBASES` races were lost.
        UnavailableError: as `TaskLog.commit`.
    """
    for _ in range(REBASES):
        head = await log.head(task_id)
        if head is None or head.is_terminal:
            return False
        commit = decide(head)
        if commit is None:
            return False
        try:
            await log.commit(head, commit)
        except (ConcurrencyError, TaskNotFoundError, TaskTerminalStateError):
            continue
        return True
    msg = f"The task was changed by others {REBASES} times while it was to be ended."
    raise ConcurrencyError(msg)


async def cancel_task(log: TaskLog, seen: Head) -> bool:
    """Cancel the task of `seen` without its agent; what its attempt still writes is refused.

    False when it has ended meanwhile, or another task has its id.

    Raises:
        ConcurrencyError, UnavailableError: as `end_task`.
    """

    def decide(head: Head) -> Commit | None:
        return canceled(head) if head.incarnation == seen.incarnation else None

    return await end_task(log, seen.task_id, decide)

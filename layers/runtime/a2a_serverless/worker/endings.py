"""Ending a task from outside of any attempt: a cancel that ran out of time, a dead letter."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from a2a.types import Message, Part, Role, TaskState, TaskStatus

from a2a_serverless.errors import (
    ConcurrencyError,
    TaskNotFoundError,
    TaskTerminalStateError,
)
from a2a_serverless.storage.log import TaskLog
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit

CANCELED = "The task was canceled."
CANCEL_TIMED_OUT = "The task was canceled after its agent did not stop in time."
FAILED = "The agent could not finish the task. Correlation id: {correlation_id}."

REBASES = 16
"""How often an ending is put on a HEAD that another writer has moved meanwhile."""


def ending(head: Head, state: TaskState, text: str) -> Commit:
    """The commit that ends a task with `text` as its last word; it carries no claim token.

    The message of the status that it replaces goes to the history.
    """
    message = Message(
        message_id=str(uuid.uuid4()),
        role=Role.ROLE_AGENT,
        parts=[Part(text=text)],
        task_id=head.task_id,
        context_id=head.context_id,
    )
    status = TaskStatus(state=state, message=message)
    return Commit(entries=(StatusChanged(status, archive=True),))


async def end_task(log: TaskLog, task_id: str, decide: Callable[[Head], Commit | None]) -> bool:
    """Commit what `decide` makes of HEAD as it is now; again, where somebody else was faster.

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

"""Ending a task: the commits, their sentences for the client, and storing them in spite of races.

An attempt commits such an end itself. `end_task` ends a task from outside of any attempt: after a
cancel that ran out of time, for a dead letter.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from a2a.types import Message, Part, Role, TaskState, TaskStatus

from a2a_serverless.errors import (
    ConcurrencyError,
    TaskNotFoundError,
    TaskTerminalStateError,
)
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import FailedBy, Head
from a2a_serverless.tasks.rules import Commit, left_by

_CANCELED: Final = "The task was canceled."
FAILED: Final = "The agent could not finish the task."
_REFERENCE: Final = "Correlation id: {correlation_id}."
NEVER_STARTED: Final = (
    "The agent could not be started within {hours}, so the task has failed."
    " Send the message again in a new task."
)

REBASES: Final = 16
"""How often an ending is tried again because another writer has moved HEAD meanwhile."""


def canceled(head: Head) -> Commit:
    """Return the commit that cancels a task, for any process and any reason.

    The API, the worker and the sweeper race for the end of a cancel: the client gets the same
    sentence from each.
    """
    return ending(head, TaskState.TASK_STATE_CANCELED, _CANCELED)


def gave_up(
    head: Head, reference: str, why: str = "", *, failed_by: FailedBy = FailedBy.USED_UP
) -> Commit:
    """Return the commit that fails a task whose agent gets no further attempt.

    `why` is what the client may read of the reason. `reference` leads from the client's sentence to
    the line of the log that has the reason. The commit keeps how the turn's last attempt has ended.
    """
    text = f"{why or FAILED} {_REFERENCE.format(correlation_id=reference)}"
    end = ending(head, TaskState.TASK_STATE_FAILED, text)
    return replace(end, failed=left_by(head), failed_by=failed_by, reference=reference)


def never_started(head: Head, give_up_s: float) -> Commit:
    """Return the commit that fails a task whose turn no attempt could claim within `give_up_s`."""
    hours = give_up_s / 3600
    text = NEVER_STARTED.format(hours=f"{hours:g} hour" if hours == 1 else f"{hours:g} hours")
    end = ending(head, TaskState.TASK_STATE_FAILED, text)
    return replace(end, failed_by=FailedBy.NEVER_STARTED)


def ending(head: Head, state: TaskState, text: str) -> Commit:
    """Return the commit that ends a task with `text` as its last word; it has no claim token.

    The message of the status that it replaces goes to the history.
    """
    return Commit(entries=(StatusChanged(stated(head, state, text), archive=True),))


def stated(head: Head, state: TaskState, text: str) -> TaskStatus:
    """Return a status of the task whose message is the runtime's own `text`."""
    message = Message(
        message_id=str(uuid.uuid4()),
        role=Role.ROLE_AGENT,
        parts=[Part(text=text)],
        task_id=head.task_id,
        context_id=head.context_id,
    )
    return TaskStatus(state=state, message=message)


async def end_task(
    log: DurableStorage, task_id: str, decide: Callable[[Head], Commit | None]
) -> bool:
    """Commit what `decide` makes of HEAD as it is now; try again if another writer was faster.

    Return True when the commit was made. False when the task is gone or has ended, or `decide`
    returned None: there was nothing to end.

    Raises:
        ConcurrencyError: `REBASES` races were lost.
        UnavailableError: as `DurableStorage.commit`.
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
            # HEAD, read anew, says what has come in between.
            continue
        return True
    msg = f"The task was changed by others {REBASES} times while it was to be ended."
    raise ConcurrencyError(msg)


async def cancel_task(log: DurableStorage, seen: Head) -> bool:
    """Cancel the task of `seen` without its agent; what its attempt still writes is refused.

    False when it has ended meanwhile, or another task has its id.

    Raises:
        ConcurrencyError, UnavailableError: as `end_task`.
    """

    def decide(head: Head) -> Commit | None:
        return canceled(head) if head.incarnation == seen.incarnation else None

    return await end_task(log, seen.task_id, decide)

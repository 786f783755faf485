"""The commits that end a task with a sentence for the client, and the sentences."""

from __future__ import annotations

import uuid
from typing import Final

from a2a.types import Message, Part, Role, TaskState, TaskStatus

from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit

CANCELED: Final = "The task was canceled."
FAILED: Final = "The agent could not finish the task. Correlation id: {correlation_id}."
NEVER_STARTED: Final = (
    "The agent could not be started within {hours}, so the task has failed."
    " Send the message again in a new task."
)


def canceled(head: Head) -> Commit:
    """Return the commit that cancels a task, for any process and any reason.

    The API, the worker and the sweeper race for the end of a cancel: the client gets the same
    sentence from each.
    """
    return ending(head, TaskState.TASK_STATE_CANCELED, CANCELED)


def never_started(head: Head, give_up_s: float) -> Commit:
    """Return the commit that fails a task whose turn no attempt could claim within `give_up_s`."""
    hours = give_up_s / 3600
    text = NEVER_STARTED.format(hours=f"{hours:g} hour" if hours == 1 else f"{hours:g} hours")
    return ending(head, TaskState.TASK_STATE_FAILED, text)


def ending(head: Head, state: TaskState, text: str) -> Commit:
    """Return the commit that ends a task with `text` as its last word; it has no claim token.

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

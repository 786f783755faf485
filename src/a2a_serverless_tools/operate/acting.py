"""What an operator may do with a task, and the message of a task that is tried again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from a2a.types import SendMessageRequest, TaskState

from a2a_serverless.tasks.entries import TurnOpened, copied
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import ASLEEP, FORMAT, Head, plain_state
from a2a_serverless.tasks.identity import Scope, digest, keyed_task_id
from a2a_serverless.tasks.push import Push
from a2a_serverless_tools.operate.timeline import InLine
from a2a_serverless_tools.operate.wording import in_line, iso, left_at_record

Act: TypeAlias = Literal["cancel", "resend", "retry", "redeliver", "delete"]

ACTS: Final[Mapping[Act, str]] = {
    "cancel": "cancel",
    "resend": "send again the turn of",
    "retry": "try again",
    "redeliver": "redeliver the notifications of",
    "delete": "delete for good",
}
"""What each does with a task, for sentences and questions."""


def refused(act: Act, head: Head, *, now_ms: int, waits: InLine | None = None) -> str:
    """Return why HEAD does not allow an act, as a sentence; empty: it does.

    `waits` is the place of the open turn in a line; None: it stands in none.
    """
    if head.needs_newer:
        return (
            f"A newer release wrote it, and it needs more than format {FORMAT}, which this release"
            " knows: act with the newest release that has run here."
        )
    if act == "cancel" and head.is_terminal:
        return "It has ended: nothing is left to cancel."
    if act == "retry" and head.state != TaskState.TASK_STATE_FAILED:
        return f"It is {plain_state(head.state)}: only what has failed is tried again."
    return _not_sent(head, now_ms, waits) if act == "resend" else ""


def _not_sent(head: Head, now_ms: int, waits: InLine | None) -> str:
    if not head.turn_is_open:
        return "It has no open turn: there is nothing to send."
    if waits is not None and waits.place != 1:
        return (
            "The turn has no message to send: it stands in line, and starts when its place"
            f" comes ({in_line(waits)})."
        )
    released = head.released
    if released is None or released.until <= now_ms:
        return ""
    if head.left == ASLEEP:
        return f"The turn is {left_at_record(ASLEEP, released.until)}, and goes on then."
    if head.was_released:
        return (
            f"The turn waits until {iso(released.until)} for {released.reason}: its message is"
            " in the queue, and starts it then."
        )
    return ""


def retry_key(head: Head) -> str:
    """Return the idempotency key of the new task of a failed one; a client's never equals it.

    It follows from the failed task alone, so that a repeated retry finds the first one's task.
    """
    return digest("retry-key", head.scope, head.task_id, head.incarnation)


def retry_id(head: Head) -> str:
    """Return the id of the task in which a failed one is tried again."""
    return keyed_task_id(Scope(head.scope), head.context_id, retry_key(head))


def retried(head: Head, opening: TurnOpened) -> SendMessageRequest:
    """Return the request that opens the new task of a failed one.

    It is the failed task's first one, with an id of its own, in the same context, and names the
    failed task in `referenceTaskIds`. It has no push configuration: none is stored with a message.
    """
    request = copied(opening.request)
    message = request.message
    message.message_id = f"retry-{retry_key(head)}"
    message.task_id, message.context_id = "", head.context_id
    if head.task_id not in message.reference_task_ids:
        message.reference_task_ids.append(head.task_id)
    return request


def opening_of(records: Iterable[Record]) -> TurnOpened | None:
    """Return the first message of a task; None if it cannot be read."""
    entries = (entry for record in records for entry in record.entries)
    return next((entry for entry in entries if isinstance(entry, TurnOpened)), None)


def undelivered(pushes: Iterable[Push], config_id: str = "") -> list[Push]:
    """Return the webhooks that can be told again: all, or the one with this id."""
    return [p for p in pushes if p.may_redeliver and config_id in ("", p.config.id)]

"""The updates of HEAD, each with the condition under which it is stored.

The explorer in tests/model drives these values: what a process wrote late, or without having read
what others did, is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from a2a_serverless.storage.codec import head_item
from a2a_serverless.storage.layout import head_key
from a2a_serverless.storage.table import Check, Update, are
from a2a_serverless.tasks.head import TERMINAL, Head, state_name

NO_CANCEL: Final = Check("cancel_at", "absent")
"""No cancel was requested: once one was, its deadline is the due time, and only an end moves it."""


def committed(before: Head, after: Head) -> Update:
    """Return the update of a commit: only what changes is sent.

    The state is part of the condition, so that no transition leaves a terminal state, even if HEAD
    was written without counting its version up. A request to cancel is part of it too, because it
    does not move the version (as in `is_still`).
    """
    old, new = head_item(before), head_item(after)
    changed = {name: value for name, value in new.items() if name not in old or old[name] != value}
    when: list[Check] = are(**{name: old[name] for name in ("incarnation", "version", "state")})
    if before.cancel is None:
        when.append(NO_CANCEL)
    return Update(
        key=head_key(before.scope, before.task_id),
        values=changed,
        remove=[name for name in old if name not in new],
        when=when,
    )


def canceled(marked: Head) -> Update:
    """Return the update that requests a cancel: refused once there is a request, or an end."""
    item = head_item(marked)
    is_open = [Check("state", "<>", state_name(state)) for state in TERMINAL]
    return Update(
        key=head_key(marked.scope, marked.task_id),
        values={name: item[name] for name in _CANCELED if name in item},
        when=[*are(incarnation=marked.incarnation), *is_open, NO_CANCEL],
    )


def postponed(head: Head, *, due_at: int, sends: int) -> Update:
    """Return the update of the due time by a process outside of any attempt."""
    has_sends = [Check("sends", "=", head.sends)]
    if head.sends == 0:  # a HEAD that was stored in part may lack it, and is read with 0
        has_sends.append(Check("sends", "absent"))
    is_same = are(incarnation=head.incarnation, version=head.version, due_at=head.due_at)
    return Update(
        key=head_key(head.scope, head.task_id),
        values={"due_at": due_at, "sends": sends},
        when=[*is_same, has_sends, NO_CANCEL],
    )


def noted(head: Head, token: str, values: Mapping[str, Any]) -> Update:
    """Return an update by the attempt with `token`: refused when it does not own the open turn.

    Otherwise a renewal that comes late would put a finished turn back into the due index, or
    postpone the turn of another attempt.
    """
    when = are(incarnation=head.incarnation, token=token)
    return Update(key=head_key(head.scope, head.task_id), values=values, when=when)


def unless_canceled(update: Update) -> Update:
    """Return an update that is refused once a cancel was requested."""
    return replace(update, when=[*update.when, NO_CANCEL])


_CANCELED: Final = ("cancel_at", "cancel_by", "due_key", "due_at")

"""A backend's decisions: what may be stored, what was stored, and what a reader may use.

Each backend makes them in one atomic step with the write; DynamoDB has them as conditions.
"""

from __future__ import annotations

from collections.abc import Sequence

from a2a_serverless.errors import (
    ConcurrencyError,
    TaskNotFoundError,
)
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import check_writable, terminal_error

# -- commits ---------------------------------------------------------------------------------


def is_still(current: Head | None, seen: Head) -> bool:
    """Return True if HEAD is the one that a commit was made on: same incarnation and version.

    A request to cancel that the writer has not read makes HEAD another one. So a writer commits
    after the request only if it has read it.
    """
    if current is None or current.incarnation != seen.incarnation:
        return False
    has_heard = current.cancel is None or seen.cancel is not None
    return current.version == seen.version and has_heard


def is_applied(stored_id: str | None, commit_id: str) -> bool:
    """Return True if a refused commit was stored by an earlier request whose answer was lost.

    `stored_id` is the id of the commit that the log has at the refused commit's version; None if
    it has none. HEAD cannot tell: others may have committed since.
    """
    return stored_id == commit_id


def conflict(current: Head | None, seen: Head) -> TaskNotFoundError | ConcurrencyError:
    """Return the error for a commit on `seen` that was neither stored now nor before.

    The task is gone (a later one may have its id), or another writer has committed.
    """
    if current is None or current.incarnation != seen.incarnation:
        return TaskNotFoundError()
    return ConcurrencyError(current_version=current.version)


def belonging_to(head: Head, records: Sequence[Record], reached: int) -> tuple[Record, ...] | None:
    """Return the commits that lead up to HEAD; None: some are missing, so read on after `reached`.

    `records` are complete commits in unbroken order. `reached` is the version of the last one; if
    there are none, the version after which the read began. Commits beyond HEAD were made during the
    read: the next read returns them, with their HEAD.
    """
    if reached < head.version:
        return None
    return tuple(record for record in records if record.version <= head.version)


# -- cancels ---------------------------------------------------------------------------------


def check_open(head: Head | None) -> Head:
    """Return HEAD of a task whose cancel may be requested.

    Raises:
        TaskNotFoundError: there is no such task.
        TaskTerminalStateError: it has ended.
        NewerReleaseError: only a newer release may change it.
    """
    if head is None:
        raise TaskNotFoundError
    if head.is_terminal:
        raise terminal_error(head)
    check_writable(head)
    return head

"""Tests of a commit: may it be stored, was it stored, what refused it, which may a reader take.

Backends make the first test atomic with the write; DynamoDB has it as a condition.
"""

from __future__ import annotations

from collections.abc import Sequence

from a2a_serverless.errors import ConcurrencyError, TaskNotFoundError
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head


def is_still(current: Head | None, seen: Head) -> bool:
    """Return True if HEAD is the one that a commit was made on: same incarnation and version."""
    if current is None or current.incarnation != seen.incarnation:
        return False
    return current.version == seen.version


def is_applied(stored_id: str | None, commit_id: str) -> bool:
    """Return True if a refused commit was stored by an earlier request without an answer.

    `stored_id` is the id of the commit that the log has at the refused one's version, None without
    one. HEAD cannot tell: others may have committed since.
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

    `records` are complete commits in unbroken order, and `reached` is the version of the last one,
    or without any the version after which the read began. Commits beyond HEAD were made during the
    read: the next read returns them, with their HEAD.
    """
    if reached < head.version:
        return None
    return tuple(record for record in records if record.version <= head.version)

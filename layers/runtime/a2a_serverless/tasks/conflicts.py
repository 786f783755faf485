"""When a commit may be stored, and what one has met that may not: pure decisions.

Backends make the first one atomic with the write. A condition of DynamoDB's says the same.
"""

from __future__ import annotations

from a2a_serverless.errors import ConcurrencyError, TaskNotFoundError
from a2a_serverless.tasks.head import Head


def is_still(current: Head | None, seen: Head) -> bool:
    """Whether HEAD is the one that a commit was made on: same incarnation, same version."""
    if current is None or current.incarnation != seen.incarnation:
        return False
    return current.version == seen.version


def is_applied(stored_id: str | None, commit_id: str) -> bool:
    """Whether a refused commit was stored by an earlier request of its own, without an answer.

    `stored_id` is the id of the commit that the log has at the refused one's version, None without
    one. HEAD does not tell: others may have committed since.
    """
    return stored_id == commit_id


def conflict(current: Head | None, seen: Head) -> TaskNotFoundError | ConcurrencyError:
    """The error for a commit on `seen` that was neither stored now nor before.

    The task is gone, also where a later one has its id; or somebody else has committed.
    """
    if current is None or current.incarnation != seen.incarnation:
        return TaskNotFoundError()
    return ConcurrencyError(current_version=current.version)

"""The lease of a claimed turn: how long the sweeper leaves it alone, and who may renew it."""

from __future__ import annotations

from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Timing


def lease_end(now_ms: int, timing: Timing) -> int:
    """Return the due time of a turn that is claimed, or whose lease is renewed, at `now_ms`."""
    return now_ms + int(timing.lease_s * 1000)


def renewal_at(head: Head, timing: Timing) -> int | None:
    """Return when the lease of the claimed turn has to be renewed, in milliseconds.

    None where there is no lease: the turn is over, or was never claimed.
    """
    if head.token is None or head.due_at is None:
        return None
    return head.due_at - int(timing.renew_before_s * 1000)


def is_short(head: Head, *, now_ms: int, timing: Timing) -> bool:
    """Return True when the lease of the claimed turn has to be renewed now."""
    at = renewal_at(head, timing)
    return at is not None and at <= now_ms


def may_renew(head: Head | None, *, incarnation: str, token: str) -> bool:
    """Return True when the attempt with `token` still owns the open turn.

    Without this condition a renewal that comes late would put a finished turn back into the due
    index, or postpone the turn of another attempt.
    """
    return head is not None and head.incarnation == incarnation and head.token == token

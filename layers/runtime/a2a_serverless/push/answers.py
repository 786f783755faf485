"""The outcome of one attempt to deliver, and its meaning for the next one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

MAX_RETRY_AFTER_S: Final = 3600.0
"""A receiver that asks for a longer pause is tried after an hour."""

_PASSING: Final = frozenset({408, 425, 429})
"""Request Timeout, Too Early and Too Many Requests: the same request may be sent again later
(RFC 9110, 15.5.9; RFC 8470, 5.2; RFC 6585, 4)."""


class Meaning(Enum):
    """The meaning of an attempt for the deliverer."""

    DELIVERED = "delivered"
    AGAIN = "again"
    """The same request may succeed later."""
    NEVER = "never"
    """The same request will fail every time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One attempt. `reason` is for logs and dead letters, without any text of the receiver."""

    meaning: Meaning
    reason: str
    status: int | None = None
    """The answer's status; None: there was none."""
    pause_s: float = 0
    """The pause that the receiver asked for, at most `MAX_RETRY_AFTER_S`."""


def no_answer(reason: str) -> Outcome:
    """Return the outcome without an answer: the receiver was not reached, or was too slow."""
    return Outcome(meaning=Meaning.AGAIN, reason=reason)


def not_sent(reason: str) -> Outcome:
    """Return the outcome of a request that may not, or cannot, be sent at all."""
    return Outcome(meaning=Meaning.NEVER, reason=reason)


def outcome_of(status: int, retry_after: str | None, *, now_ms: int) -> Outcome:
    """Return the outcome of an answer (A2A 1.0.1, section 4.3.3, leaves it to the agent).

    Success is 2xx alone. A redirect is not followed: the receiver that was registered and checked
    is the one that gets the notification. 408, 425, 429 and 5xx are temporary, all else is final.
    """
    is_success = 200 <= status < 300  # noqa: PLR2004 - the classes of RFC 9110
    is_temporary = status in _PASSING or 500 <= status < 600  # noqa: PLR2004 - as above
    reason = f"status {status}"
    if is_success:
        return Outcome(meaning=Meaning.DELIVERED, reason=reason, status=status)
    if is_temporary:
        pause_s = pause_of(retry_after, now_ms=now_ms)
        return Outcome(meaning=Meaning.AGAIN, reason=reason, status=status, pause_s=pause_s)
    return Outcome(meaning=Meaning.NEVER, reason=reason, status=status)


def pause_of(retry_after: str | None, *, now_ms: int) -> float:
    """Return the seconds of `Retry-After` (RFC 9110, 10.2.3: a number or a date); 0 without."""
    text = (retry_after or "").strip()
    if text.isdecimal() and text.isascii():
        return float(min(int(text[:9]), MAX_RETRY_AFTER_S))
    try:
        date = parsedate_to_datetime(text)
        at = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0  # not valid: a receiver may send anything
    return min(max(0.0, at - now_ms / 1000), MAX_RETRY_AFTER_S)

"""Words that lists, acts and the rows of a task share: lengths of time, times, waits. Pure.

The sentences contain texts of clients and agents as they are: the caller has to escape them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from a2a_serverless.storage.deletion import Amounts
from a2a_serverless.tasks.head import ASLEEP, HANDOVER, Trouble
from a2a_serverless.tasks.head import Wait as Reason

if TYPE_CHECKING:
    from a2a_serverless_tools.operate.timeline import InLine

NO_REASON: Final = "none"
"""How a filter says that no reason is known: the agent has said so itself."""
UNCOUNTED: Final = "one that is still tried again is not counted; its task shows the next try"
"""What the number of webhooks given up leaves out: to count the others takes four more queries."""
IN_LINE: Final[Mapping[str, str]] = {
    "share": "in line for a place of the workers",
    "conversation": "waits for another turn of its conversation",
}
"""What a turn that is left waits for."""
ATTENTION: Final[Mapping[Trouble | Reason, str]] = {
    "failed": "failed",
    "rejected": "rejected",
    "untold": "webhook given up",
    "again": "sent again",
    "asleep": "asleep",
    "conversation": "behind its conversation",
    "owed": "webhook that fails",
    "retry": "the next try",
    "share": "a slot of the workers",
}
"""What a task needs attention for."""
_SECOND_MS: Final = 1_000
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400


def left_at_record(reason: str, until: int | None) -> str:
    """Return how an attempt has left its turn at a record; empty: it has not."""
    if reason == ASLEEP:
        return f"asleep until {iso(until) or 'an unknown time'}"
    return "handed over to the next process" if reason == HANDOVER else ""


def in_line(waits: InLine) -> str:
    """Return what a turn stands in line for, and how many are before it, if that is known."""
    if waits.reason == "share":
        before = "" if waits.before is None else f": {number(waits.before, 'turn')}"
        return IN_LINE["share"] + (before and f"{before} of this caller before it")
    if waits.place == 1:
        return "the first of its conversation: about to be requeued"
    if not waits.first:
        return IN_LINE["conversation"]
    ordinal = {2: "2nd", 3: "3rd"}.get(waits.place, f"{waits.place}th")
    of = f" ({ordinal} of {waits.places})" if waits.place else ""
    return f"waits until task {waits.first} of its conversation has ended{of}"


def act_ended(outcome: str) -> str:
    """Return how an act of an operator has ended, in words."""
    return outcome or "its end was not noted: look at the task"


def amounts(of: Amounts) -> str:
    """Return how much data a caller has: `1 task, 2 contexts with a state, no webhooks and ...`."""
    return (
        f"{number(of.tasks, 'task')}, {number(of.contexts, 'context')} with a state,"
        f" {number(of.webhooks, 'webhook')} and {number(of.uploads, 'upload')}"
    )


def times(count: int) -> str:
    """Return how often something was done: `once`, `2 times`."""
    return "once" if count == 1 else f"{count} times"


def number(count: int, of: str) -> str:
    """Return a number of things: `no turns`, `1 turn`, `1,200 turns`."""
    return f"{count:,} {of}" if count == 1 else f"{format(count, ',') if count else 'no'} {of}s"


def duration(ms: int) -> str:
    """Return a length of time in the two units that matter, such as `2.5 s` or `3 h 5 min`."""
    seconds = ms // _SECOND_MS
    if seconds < _MINUTE_S:
        return f"{ms} ms" if ms < _SECOND_MS else f"{ms / _SECOND_MS:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S} min {seconds % _MINUTE_S} s"
    if seconds < _DAY_S:
        return f"{seconds // _HOUR_S} h {seconds % _HOUR_S // _MINUTE_S} min"
    return f"{seconds // _DAY_S} d {seconds % _DAY_S // _HOUR_S} h"


def age(ms: int) -> str:
    """Return a length of time in the unit that matters, such as `35 min`."""
    if ms < _MINUTE_S * _SECOND_MS:
        return f"{ms // _SECOND_MS} s"
    return " ".join(duration(ms).split()[:2])


def iso(at_ms: int | None) -> str | None:
    """Return a time in UTC, as the stored number if no calendar has it; None if it is None."""
    if at_ms is None:
        return None
    try:
        at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

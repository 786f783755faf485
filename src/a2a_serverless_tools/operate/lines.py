"""Lines of the log, by the attempt that has written them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from a2a_serverless.tasks.turns import Attempt, Turn

_SLACK_MS: Final = 1_000
"""How much later than its claim an attempt's first line may be: a clock may have been set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a function's log about a task."""

    at: int
    """Milliseconds since the epoch."""
    level: str
    action: str
    message: str
    fields: Mapping[str, Any]


_Owners: TypeAlias = dict[str, dict[int, Attempt]]
"""By correlation id the attempt at each turn, by the turn's version."""


def by_attempt(
    turns: Iterable[Turn], lines: Iterable[LogLine]
) -> Mapping[int, tuple[LogLine, ...]]:
    """Return a task's lines by the version of their attempt's claim; 0: of no attempt.

    A delivery has a correlation id, which an attempt that has failed has stored. Of another attempt
    it is that of the last delivery which began one at this turn before its claim.
    """
    listed = sorted(lines, key=lambda line: line.at)
    owners: _Owners = {}
    for turn in turns:
        _find(turn, listed, owners)
    found: dict[int, list[LogLine]] = {}
    for line in listed:
        found.setdefault(_claim_of(line, owners), []).append(line)
    return {version: tuple(own) for version, own in found.items()}


def _claim_of(line: LogLine, owners: _Owners) -> int:
    own = owners.get(_work_of(line), {})
    turn = line.fields.get("turn")
    fitting = [one for version, one in own.items() if turn in (None, version)]
    return fitting[0].first if len(fitting) == 1 else 0


def _find(turn: Turn, lines: Sequence[LogLine], owners: _Owners) -> None:
    """Note whose delivery each attempt at a turn was, as far as the lines tell."""
    known = {one.correlation_id: one for one in turn.attempts if one.correlation_id}
    for work, one in known.items():
        owners.setdefault(work, {})[turn.version] = one
    begun = [
        (line.at, _work_of(line))
        for line in lines
        if line.action == "attempt" and line.fields.get("turn") == turn.version
    ]
    since = 0
    for attempt in turn.attempts:
        at = attempt.started_at
        if at is None:
            continue
        times = range(since - _SLACK_MS, at + _SLACK_MS + 1)
        fitting = [work for begun_at, work in begun if begun_at in times and work not in known]
        if fitting and not attempt.correlation_id:
            owners.setdefault(fitting[-1], {}).setdefault(turn.version, attempt)
        since = at


def _work_of(line: LogLine) -> str:
    return str(line.fields.get("correlation_id", ""))

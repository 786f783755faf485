"""The turns of a task and the attempts at each, as its log tells them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, TypeAlias

from a2a_serverless.tasks.entries import StatusChanged, TurnEnded, TurnOpened
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import LOST, AttemptEnd, Head, is_terminal

Outcome: TypeAlias = Literal[
    "running",  # it has the claim; whether its process lives is not known
    "ended the turn",
    "gave back",  # with a reason; another attempt may follow
    "lost",  # it said nothing: its process died, or was cut off
    "failed",  # it, or a writer for it, has ended the task as failed
    "cut short",  # another writer has ended the task, such as a cancel
    "unknown",  # a release that does not say
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the agent on a turn. Times are milliseconds since the epoch; None: unknown."""

    number: int
    """From 1, within its turn."""
    worker: str
    """Its process; empty: its release does not name the process."""
    started_at: int | None
    """The time of its claim."""
    versions: tuple[int, ...]
    """Its commits: the first one is its claim."""
    last_at: int | None
    over_at: int | None
    """The time of its end; of a lost one, that of the commit that shows it. None: it has the turn,
    or the time is unknown."""
    outcome: Outcome
    reason: str = ""
    correlation_id: str = ""
    """Leads to the line of the worker's log that says why it ended; empty: unknown."""
    waited_ms: int | None = None
    """The milliseconds since the end of the attempt before it; None: that is not known, or there
    was none."""

    @property
    def first(self) -> int:
        """Return the version of its claim."""
        return self.versions[0]

    @property
    def last(self) -> int:
        """Return the version of its last commit."""
        return self.versions[-1]

    @property
    def took_ms(self) -> int | None:
        """Return the milliseconds from its claim to its end; None: it has the turn, or unknown."""
        if self.outcome in ("lost", "unknown") or self.started_at is None or self.over_at is None:
            return None
        return max(0, self.over_at - self.started_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One user message and the agent's work on it. Times as in `Attempt`."""

    number: int
    """The version at which its message was accepted; 0: that commit is missing."""
    by: str
    """The user who sent the message; empty if unknown."""
    opened_at: int | None
    began_at: int | None
    """The time at which it became the current turn; None also if it still waits for another one."""
    ended_at: int | None
    ended: int | None
    """The version that ended it; None: it is open."""
    attempts: tuple[Attempt, ...]

    @property
    def waited_ms(self) -> int | None:
        """Return the milliseconds until its first attempt; None: no attempt, or an unknown time."""
        start = self.attempts[0].started_at if self.attempts else None
        return None if start is None or self.began_at is None else start - self.began_at


@dataclass(slots=True, kw_only=True)
class _Attempt:
    token: str
    records: list[Record]
    worker: str
    over_at: int | None = None
    outcome: Outcome = "running"
    end: AttemptEnd | None = None

    def close(self, outcome: Outcome, at: int | None, end: AttemptEnd | None = None) -> None:
        self.outcome, self.over_at, self.end = outcome, at, end

    def give_back(self, end: AttemptEnd) -> None:
        """End as the attempt has said; a time before its claim is not of this end.

        The commit that gives the turn back may be the attempt's last.
        """
        claimed, last = self.records[0].at or 0, self.records[-1].at or 0
        is_its_own = end.at is not None and end.at >= claimed
        self.close("gave back", max(end.at or 0, last) if is_its_own else None, end)

    def frozen(self, number: int) -> Attempt:
        end = self.end
        return Attempt(
            number=number,
            worker=self.worker,
            started_at=self.records[0].at,
            versions=tuple(record.version for record in self.records),
            last_at=self.records[-1].at,
            over_at=self.over_at,
            outcome=self.outcome,
            reason=end.reason if end else "",
            correlation_id=end.correlation_id if end else "",
        )


@dataclass(slots=True, kw_only=True)
class _Turn:
    number: int = 0
    by: str = ""
    opened_at: int | None = None
    began_at: int | None = None
    ended_at: int | None = None
    ended: int | None = None
    attempts: list[_Attempt] = field(default_factory=list)

    @property
    def running(self) -> _Attempt | None:
        return self.attempts[-1] if self.attempts else None

    def frozen(self) -> Turn:
        attempts = [one.frozen(number) for number, one in enumerate(self.attempts, 1)]
        for place, (before, one) in enumerate(pairwise(attempts), 1):
            if before.took_ms is not None and before.over_at is not None and one.started_at:
                waited_ms = max(0, one.started_at - before.over_at)
                attempts[place] = replace(one, waited_ms=waited_ms)
        return Turn(
            number=self.number,
            by=self.by,
            opened_at=self.opened_at,
            began_at=self.began_at,
            ended_at=self.ended_at,
            ended=self.ended,
            attempts=tuple(attempts),
        )


def turns_of(head: Head, records: Iterable[Record]) -> tuple[Turn, ...]:
    """Return the turns in the order of their messages.

    Args:
        head: the task's HEAD; it says whether the last attempt has given its turn back.
        records: the commits in order; some may be missing.
    """
    walk = _Walk()
    for record in records:
        walk.add(record)
    last = walk.current.running if walk.current is not None else None
    if last is not None and last.outcome == "running" and head.was_released:
        released = head.released
        if released is not None and released.token == last.token:
            last.give_back(released)
    return tuple(turn.frozen() for turn in walk.turns)


class _Walk:
    """Follows the log, and knows at each commit which turn is the current one, as the rules do."""

    def __init__(self) -> None:
        self.turns: list[_Turn] = []
        self.current: _Turn | None = None
        self._waiting: _Turn | None = None

    def add(self, record: Record) -> None:
        if record.token is not None:
            self._written_by(record.token, record)
        for entry in record.entries:
            if isinstance(entry, TurnOpened):
                self._opened(record, entry.caller.user)
            elif isinstance(entry, TurnEnded):
                self._ended(record)

    def _opened(self, record: Record, by: str) -> None:
        turn = _Turn(number=record.version, by=by, opened_at=record.at)
        self.turns.append(turn)
        if self.current is not None and self.current.ended is None:
            self._waiting = turn
        else:
            turn.began_at = record.at
            self.current = turn

    def _written_by(self, token: str, record: Record) -> None:
        turn = self._open_turn()
        running = turn.running
        if running is not None and running.token == token:
            running.records.append(record)
            return
        if running is not None and running.outcome == "running":
            _replace(running, record)
        turn.attempts.append(_Attempt(token=token, records=[record], worker=record.worker))

    def _open_turn(self) -> _Turn:
        """Return the current turn; a new one if the commit that opened it is missing."""
        if self.current is None or self.current.ended is not None:
            self.current = _Turn()
            self.turns.append(self.current)
        return self.current

    def _ended(self, record: Record) -> None:
        turn = self._open_turn()
        turn.ended, turn.ended_at = record.version, record.at
        running = turn.running
        if running is not None and running.outcome == "running":
            running.close(*_over(running, record))
        if self._waiting is not None and not _is_end(record.entries):
            self.current, self._waiting = self._waiting, None
            self.current.began_at = record.at


_End: TypeAlias = tuple[Outcome, int | None, AttemptEnd | None]


def _replace(before: _Attempt, claim: Record) -> None:
    """End the attempt from which `claim` has taken the turn."""
    end = claim.ended
    if end is None or end.token != before.token:
        before.close("unknown", claim.at)
    elif end.reason == LOST:
        before.close("lost", claim.at, end)
    else:
        before.give_back(end)


def _over(running: _Attempt, record: Record) -> _End:
    """Return the end of the last attempt of a turn; `record` ended the turn."""
    if record.ended is not None and record.ended.token == running.token:
        return ("lost" if record.ended.reason == LOST else "failed"), record.at, record.ended
    return ("ended the turn" if record.token == running.token else "cut short"), record.at, None


def _is_end(entries: Sequence[object]) -> bool:
    states = [entry.status.state for entry in entries if isinstance(entry, StatusChanged)]
    return bool(states) and is_terminal(states[-1])

"""The turns of a task and the attempts at each, as its log tells them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from a2a_serverless.tasks.entries import (
    ModelsUsed,
    Recorded,
    Restarted,
    StatusChanged,
    StepId,
    TurnEnded,
    TurnOpened,
)
from a2a_serverless.tasks.fold import Log, Record
from a2a_serverless.tasks.head import (
    ASLEEP,
    HANDOVER,
    LOST,
    SHUTDOWN,
    AttemptEnd,
    Head,
    is_terminal,
)
from a2a_serverless.tasks.rules import left_by
from a2a_serverless.tasks.usage import Used, summed

Outcome: TypeAlias = Literal[
    "running",  # it has the claim; whether its process lives is not known
    "ended the turn",
    "gave back",  # with a reason; another attempt may follow
    "lost",  # it said nothing: its process died, or was cut off
    "failed",  # it, or a writer for it, has ended the task as failed
    "cut short",  # another writer has ended the task, such as a cancel
    "unknown",  # its record is damaged
]

_FIXED: Final = frozenset({ASLEEP, HANDOVER, LOST, SHUTDOWN})


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One start of the agent on a turn. Times are milliseconds since the epoch; None: unknown."""

    number: int
    """From 1, within its turn."""
    worker: str
    """Its process; empty: it is lost."""
    waited_ms: int | None = None
    """The milliseconds since the end of the attempt before it; None: that is not known, or there
    was none."""
    started_at: int | None
    """The time of its claim."""
    last_at: int | None
    """The time of its last commit."""
    over_at: int | None = None
    """The time of its end; of a lost one, that of the commit that shows it. None: it has the turn,
    or the time is unknown."""
    versions: list[int]
    """Its commits: the first one is its claim."""
    outcome: Outcome = "running"
    reason: str = ""
    correlation_id: str = ""
    """Leads to the line of the worker's log that says why it ended; empty: unknown."""
    until: int | None = None
    """The time until which the turn waits or sleeps after it; None: it does not."""
    kept: int = 0
    """The records of earlier attempts with which it has begun."""
    after: StepId | None = None
    """The last of them."""
    recorded: dict[StepId, int] = field(default_factory=dict)
    """What it has recorded itself, in order, and the version of each."""
    recorded_at: int | None = None
    """The time of its last record."""
    usage: Used = ()
    """What its models have used, as far as it has committed it."""

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


@dataclass(slots=True, kw_only=True)
class Turn:
    """One user message and the agent's work on it. Times as in `Attempt`."""

    number: int = 0
    """From 1, in order; 0: the commit that has accepted its message is missing."""
    version: int = 0
    """The version at which its message was accepted; 0: that commit is missing."""
    by: str = ""
    """The user who sent the message; empty if unknown."""
    opened_at: int | None = None
    began_at: int | None = None
    """The time at which it became the current turn; None also if it still waits for another one."""
    ended_at: int | None = None
    ended: int | None = None
    """The version that ended it; None: it is open."""
    attempts: list[Attempt] = field(default_factory=list)
    records: dict[StepId, int] = field(default_factory=dict)
    """Its records that were not taken back, in order, and the version of each."""

    @property
    def waited_ms(self) -> int | None:
        """Return the milliseconds until its first attempt; None: no attempt, or an unknown time."""
        return self._until_first(self.began_at)

    @property
    def queued_ms(self) -> int | None:
        """Return the milliseconds from its message to its first attempt; None: as `waited_ms`."""
        return self._until_first(self.opened_at)

    @property
    def running_ms(self) -> int | None:
        """Return the sum of its attempts; None: one is lost, or runs, or a time is unknown."""
        return _sum(attempt.took_ms for attempt in self.attempts)

    @property
    def paused_ms(self) -> int | None:
        """Return the sum of the waits between its attempts; None: the end of one is unknown."""
        return _sum(attempt.waited_ms for attempt in self.attempts[1:])

    @property
    def waits(self) -> dict[str, int]:
        """Return how many attempts came before the last one, by what came between.

        Errors and waits for services are `retry`; the other keys are fixed reasons of `AttemptEnd`.
        """
        ends = (attempt.reason or LOST for attempt in self.attempts[:-1])
        return dict(Counter(end if end in _FIXED else "retry" for end in ends))

    def _until_first(self, since: int | None) -> int | None:
        start = self.attempts[0].started_at if self.attempts else None
        return None if start is None or since is None else max(0, start - since)


def _sum(times: Iterable[int | None]) -> int | None:
    known = [*times]
    return None if None in known else sum(each or 0 for each in known)


def ended_turn(log: Log, end: Record, began_at: int | None) -> Turn:
    """Return the open turn of a log after the commit that ends it.

    Args:
        log: as it was read, from its beginning, before the last attempt or without one.
        end: the commit, some time later.
        began_at: the time at which the writer's own attempt began; None: it has made none.
    """
    head, records = log.head, list(log.of_turn())
    if began_at is not None and end.token is not None:
        # What it has committed since says nothing more about the attempts.
        version = head.version + 1
        records.append(
            Record(version=version, entries=(), token=end.token, at=began_at, ended=left_by(head))
        )
    turns = turns_of(head, (*records, end))
    return next((turn for turn in turns if turn.ended == end.version), turns[0])


def turns_of(head: Head, records: Iterable[Record]) -> tuple[Turn, ...]:
    """Return the turns in the order of their messages.

    Args:
        head: the task's HEAD; it says whether the last attempt has given its turn back.
        records: the commits in order; some may be missing.
    """
    walk = _Walk()
    for record in records:
        walk.add(record)
    last = _running(walk.current)
    released = head.released if head.was_released else None
    if last is not None and released is not None and released.token == walk.token:
        _give_back(last, released)
    return tuple(walk.turns)


class _Walk:
    """Follows the log, and knows at each commit which turn is the current one, as the rules do."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.current: Turn | None = None
        self.token: str | None = None
        """The token of the last attempt at the current turn."""
        self._waiting: Turn | None = None

    def add(self, record: Record) -> None:
        if record.token is not None:
            self._written_by(record.token, record)
        for entry in record.entries:
            if isinstance(entry, TurnOpened):
                self._opened(record, entry.caller.user)
            elif isinstance(entry, Recorded):
                self._recorded(record, entry.id)
            elif isinstance(entry, ModelsUsed):
                self._used(record, entry.usage)
            elif isinstance(entry, TurnEnded):
                self._ended(record)

    def _opened(self, record: Record, by: str) -> None:
        turn = self._add(Turn(version=record.version, by=by, opened_at=record.at))
        if self.current is not None and self.current.ended is None:
            self._waiting = turn
        else:
            turn.began_at = record.at
            self.current = turn

    def _written_by(self, token: str, record: Record) -> None:
        turn = self._open_turn()
        if turn.attempts and token == self.token:
            turn.attempts[-1].versions.append(record.version)
            turn.attempts[-1].last_at = record.at
            return
        self._take_over(turn, record)
        self.token = token

    def _take_over(self, turn: Turn, claim: Record) -> None:
        """Begin the next attempt at a turn; end the one from which `claim` has taken it."""
        if (running := _running(turn)) is not None:
            end = claim.ended
            if end is None or end.token != self.token:
                _close(running, "unknown", claim.at)
            elif end.reason == LOST:
                _close(running, "lost", claim.at, end)
            else:
                _give_back(running, end)
        before = turn.attempts[-1] if turn.attempts else None
        attempt = Attempt(
            number=len(turn.attempts) + 1,
            worker=claim.worker,
            started_at=claim.at,
            last_at=claim.at,
            versions=[claim.version],
        )
        if before is not None and before.took_ms is not None and claim.at:
            attempt.waited_ms = max(0, claim.at - (before.over_at or 0))
        for entry in claim.entries:
            if isinstance(entry, Restarted):
                kept = {step: at for step, at in turn.records.items() if at <= entry.base}
                turn.records = kept
        attempt.kept = len(turn.records)
        attempt.after = max(turn.records, key=turn.records.__getitem__, default=None)
        turn.attempts.append(attempt)

    def _recorded(self, record: Record, step: StepId) -> None:
        turn = self._open_turn()
        turn.records[step] = record.version
        if turn.attempts and record.token == self.token:
            turn.attempts[-1].recorded[step] = record.version
            turn.attempts[-1].recorded_at = record.at

    def _used(self, record: Record, usage: Used) -> None:
        turn = self._open_turn()
        if turn.attempts and record.token == self.token:
            turn.attempts[-1].usage = summed((*turn.attempts[-1].usage, *usage))

    def _open_turn(self) -> Turn:
        """Return the current turn; a new one if the commit that opened it is missing."""
        if self.current is None or self.current.ended is not None:
            self.current = self._add(Turn())
        return self.current

    def _add(self, turn: Turn) -> Turn:
        self.turns.append(turn)
        turn.number = len(self.turns) if turn.version else 0
        return turn

    def _ended(self, record: Record) -> None:
        turn = self._open_turn()
        turn.ended, turn.ended_at = record.version, record.at
        if (running := _running(turn)) is not None:
            end = record.ended
            if end is not None and end.token == self.token:
                _close(running, "lost" if end.reason == LOST else "failed", record.at, end)
            else:
                own = record.token == self.token
                _close(running, "ended the turn" if own else "cut short", record.at)
        if self._waiting is not None and not _is_end(record.entries):
            self.current, self._waiting = self._waiting, None
            self.current.began_at = record.at


def _running(turn: Turn | None) -> Attempt | None:
    last = turn.attempts[-1] if turn is not None and turn.attempts else None
    return last if last is not None and last.outcome == "running" else None


def _close(
    attempt: Attempt, outcome: Outcome, at: int | None, end: AttemptEnd | None = None
) -> None:
    attempt.outcome, attempt.over_at = outcome, at
    if end is not None:
        attempt.reason, attempt.correlation_id = end.reason, end.correlation_id
        attempt.until = end.until or None


def _give_back(attempt: Attempt, end: AttemptEnd) -> None:
    """End an attempt as it has said; a time before its claim is not of this end.

    The commit that gives the turn back may be the attempt's last.
    """
    is_its_own = end.at is not None and end.at >= (attempt.started_at or 0)
    at = max(end.at or 0, attempt.last_at or 0) if is_its_own else None
    _close(attempt, "gave back", at, end)


def _is_end(entries: Sequence[object]) -> bool:
    states = [entry.status.state for entry in entries if isinstance(entry, StatusChanged)]
    return bool(states) and is_terminal(states[-1])

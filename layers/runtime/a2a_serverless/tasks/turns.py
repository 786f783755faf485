"""The turns of a task and the attempts at each, as its log tells them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Final, Literal, TypeAlias

from a2a_serverless.tasks.entries import (
    ModelsUsed,
    Recorded,
    Restarted,
    StatusChanged,
    StepId,
    TurnEnded,
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
from a2a_serverless.tasks.identity import code_version
from a2a_serverless.tasks.rules import left_by
from a2a_serverless.tasks.usage import Used, summed
from a2a_serverless.values import dataclass

Outcome: TypeAlias = Literal[
    "running",  # it has the claim; whether its process lives is not known
    "ended the turn",
    "gave back",  # with a reason; another attempt may follow
    "lost",  # it said nothing: its process died, or was cut off
    "failed",  # it, or a writer for it, has ended the task as failed
    "cut short",  # another writer has ended the task, such as a cancel
    "unknown",  # its record is damaged
]

WaitsFor: TypeAlias = Literal[
    "turn",  # the end of the turn before it, and then a worker
    "line",  # its place in the line of its caller or its conversation, and then a worker
    "worker",
    "retry",  # the next try, after an error
    "asleep",  # the end of its sleep
    "handover",  # the process to which it was handed over
    "shutdown",  # another worker, as its own was told to stop
    "lost",  # its message, which comes again after its process has said nothing
    "unknown",  # the record of the attempt before is damaged
]

_FIXED: Final = frozenset({ASLEEP, HANDOVER, LOST, SHUTDOWN})
_BEFORE_ALL: Final = frozenset({"turn", "line", "worker"})
_AFTER: Final[Mapping[str, WaitsFor]] = {
    ASLEEP: "asleep",
    HANDOVER: "handover",
    SHUTDOWN: "shutdown",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A time in which no attempt had an open turn. Times are milliseconds since the epoch."""

    what: WaitsFor
    reason: str = ""
    """Why the attempt before has ended."""
    since: int | None
    """The end of the attempt before; of a lost one its last commit. None: it is not known."""
    until: int | None = None
    """The time before which the next attempt could not start; None: it could at once."""
    over_at: int | None = None
    """The time of the next attempt or of the turn's end. None: the turn waits, or unknown."""
    is_open: bool = False
    """True: the turn waits."""

    @property
    def is_exact(self) -> bool:
        """Return False if the attempt before may have worked for a part of it."""
        return self.what not in ("lost", "unknown")

    def took_ms(self, now_ms: int | None = None) -> int | None:
        """Return its milliseconds; of an open one until now. None: a time is not known."""
        return _length(self.since, now_ms if self.is_open else self.over_at)

    def late_ms(self, now_ms: int) -> int:
        """Return the milliseconds of it in which the next attempt could have started."""
        return _length(self.until, now_ms if self.is_open else self.over_at) or 0


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One start of the agent on a turn. Times are milliseconds since the epoch; None: unknown."""

    number: int
    """From 1, within its turn; 0: unknown, as commits before it are missing."""
    worker: str
    """Its process; empty: it is lost."""
    wait: Wait
    """The wait before it."""
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
    place: str = ""
    """`FILE, line N, in FUNCTION` from which its error came; empty: unknown, or no error."""
    message: str = ""
    """The beginning of its error's text; empty: it was not kept."""
    trace: str | None = None
    """The trace context of its claim, as it is stored."""
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
    def is_on_lambda(self) -> bool:
        """Return True if its process is a function."""
        return code_version(self.worker) is not None

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
        is_known = self.outcome not in ("lost", "unknown")
        return _length(self.started_at, self.over_at) if is_known else None

    @property
    def waited_ms(self) -> int | None:
        """Return the milliseconds since the end of the attempt before it.

        None: that is not known, or there was none.
        """
        is_first = self.wait.what in _BEFORE_ALL
        return None if is_first or not self.wait.is_exact else self.wait.took_ms()


@dataclass(slots=True, kw_only=True)
class Turn:
    """A message, or the end of the time for one, and the agent's work. Times as in `Attempt`."""

    number: int = 0
    """From 1, in order; 0: the commit that has accepted its message is missing."""
    version: int = 0
    """The version at which its message was accepted; 0: that commit is missing."""
    by: str = ""
    """The user who sent the message, or the last one, if it has none; empty if unknown."""
    opened_at: int | None = None
    began_at: int | None = None
    """The time at which it became the current turn; None also if it still waits for another one."""
    ended_at: int | None = None
    ended: int | None = None
    """The version that ended it; None: it is open."""
    attempts: list[Attempt] = field(default_factory=list)
    records: dict[StepId, int] = field(default_factory=dict)
    """Its records that were not taken back, in order, and the version of each."""
    wait: Wait | None = None
    """The wait after its last attempt, or without any; None: there is none."""

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
        """Return the sum of the waits after its attempts; None: the end of one is unknown."""
        last = [self.wait.took_ms()] if self.wait is not None and self.attempts else []
        return _sum([*(attempt.waited_ms for attempt in self.attempts[1:]), *last])

    @property
    def waits(self) -> dict[str, int]:
        """Return how many attempts came before the last one, by what came between.

        Errors and waits for services are `retry`; the other keys are fixed reasons of `AttemptEnd`.
        """
        ends = (attempt.reason or LOST for attempt in self.attempts[:-1])
        return dict(Counter(end if end in _FIXED else "retry" for end in ends))

    def _until_first(self, since: int | None) -> int | None:
        return _length(since, self.attempts[0].started_at if self.attempts else None)


def _length(since: int | None, until: int | None) -> int | None:
    """Return the milliseconds between two times, at least 0, as clocks differ; None: unknown."""
    return None if since is None or until is None else max(0, until - since)


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
    current, released = walk.current, head.turn.released
    if released is not None and released.token == walk.token and current and current.attempts:
        last = current.attempts[-1]
        if last.outcome in ("running", "cut short"):  # a cancel may have come while it waited
            _give_back(last, released)
    for turn in walk.turns:
        turn.wait = _wait_of(turn, is_over=head.is_terminal, is_behind=turn is walk.waiting)
    if current is not None and current.version == head.turn.number:
        _mark_line(head, current)
    return tuple(walk.turns)


def _wait_of(turn: Turn, *, is_over: bool, is_behind: bool) -> Wait | None:
    """Return the wait of a turn after its last attempt, or without any; None: there is none."""
    last = turn.attempts[-1] if turn.attempts else None
    is_open = turn.ended is None and not is_over
    is_idle = last is None or last.outcome == "gave back" or last.over_at != turn.ended_at
    has_gone = last is not None and last.outcome in ("running", "lost", "unknown")
    if has_gone or not is_idle or (last is None and not turn.version):
        return None
    wait = replace(_wait_after(turn, last, turn.ended_at), is_open=is_open)
    return replace(wait, what="turn") if is_behind else wait


def _wait_after(turn: Turn, before: Attempt | None, at: int | None) -> Wait:
    """Return the wait after an attempt, or for the first one, until `at`."""
    made = partial(Wait, over_at=at)
    if before is None:
        began = None if turn.began_at == turn.opened_at else turn.began_at
        what: WaitsFor = "worker" if began is None else "turn"
        return made(what=what, since=turn.opened_at, until=began)
    if before.outcome in ("lost", "unknown"):
        return made(what=before.outcome, since=before.last_at)
    since = before.over_at
    return made(
        what="unknown" if since is None else _AFTER.get(before.reason, "retry"),
        reason=before.reason,
        since=before.last_at if since is None else since,
        until=before.until,
    )


def _mark_line(head: Head, turn: Turn) -> None:
    """Say of the first wait of the current turn that it was in line, as far as HEAD shows it."""
    wait = turn.attempts[0].wait if turn.attempts else turn.wait
    is_parked = not turn.attempts and head.turn.parked != ""
    was_requeued = len(turn.attempts) <= 1 and not turn.records and head.turn.requeued > 0
    slept = any(one.reason in _FIXED for one in turn.attempts)
    if wait is None or not (is_parked or (was_requeued and not slept)):
        return
    marked = replace(wait, what="line")
    if turn.attempts:
        turn.attempts[0].wait = marked
    else:
        turn.wait = marked


class _Walk:
    """Follows the log, and knows at each commit which turn is the current one, as the rules do."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.current: Turn | None = None
        self.token: str | None = None
        """The token of the last attempt at the current turn."""
        self.waiting: Turn | None = None
        """The turn that waits for the end of the current one."""
        self.newest = 0
        self.is_torn = False
        """Commits are missing in which another attempt at the current turn may have begun."""

    def add(self, record: Record) -> None:
        self.is_torn = self.is_torn or record.version != self.newest + 1
        self.newest = record.version
        if record.token is not None:
            self._written_by(record.token, record)
        if record.opens_turn:
            by = record.opening.caller.user if record.opening else self.turns[-1].by
            self._opened(record, by)
        for entry in record.entries:
            if isinstance(entry, Recorded):
                self._recorded(record, entry.id)
            elif isinstance(entry, ModelsUsed):
                self._used(record, entry.usage)
            elif isinstance(entry, TurnEnded):
                self._ended(record)

    def _opened(self, record: Record, by: str) -> None:
        turn = self._add(Turn(version=record.version, by=by, opened_at=record.at))
        if self.current is not None and self.current.ended is None:
            self.waiting = turn
        else:
            turn.began_at = record.at
            self.current, self.is_torn = turn, False

    def _written_by(self, token: str, record: Record) -> None:
        turn = self._open_turn()
        if turn.attempts and token == self.token:
            turn.attempts[-1].versions.append(record.version)
            turn.attempts[-1].last_at = record.at
        else:
            self._take_over(turn, record)
        self.token, self.is_torn = token, False

    def _take_over(self, turn: Turn, claim: Record) -> None:
        """Begin the next attempt at a turn; end the one from which `claim` has taken it."""
        end = claim.ended
        is_next = end is not None and end.token == self.token
        if (running := _running(turn)) is not None:
            if end is None or not is_next:
                _close(running, "unknown", claim.at)
            elif end.reason == LOST:
                _close(running, "lost", claim.at, end)
            else:
                _give_back(running, end)
        before = turn.attempts[-1] if turn.attempts else None
        is_torn = self.is_torn and not is_next
        is_claim = not is_torn or bool(claim.worker)
        is_counted = not is_torn and (before is None or before.number > 0)
        unknown = Wait(what="unknown", since=None, over_at=claim.at)
        attempt = Attempt(
            number=len(turn.attempts) + 1 if is_counted else 0,
            worker=claim.worker,
            wait=unknown if is_torn else _wait_after(turn, before, claim.at),
            trace=claim.trace,
            started_at=claim.at if is_claim else None,
            last_at=claim.at,
            versions=[claim.version],
        )
        for entry in claim.entries:
            if isinstance(entry, Restarted):
                kept = {step: at for step, at in turn.records.items() if at <= entry.base}
                turn.records = kept
        attempt.kept = len(turn.records)
        attempt.after = max(turn.records, key=turn.records.__getitem__, default=None)
        turn.attempts.append(attempt)

    def _recorded(self, record: Record, step: StepId) -> None:
        # What came from outside may have come while the client was asked.
        turn = self.current if record.token is None and self.current else self._open_turn()
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
            own = record.token == self.token
            if end is not None and end.token == self.token:
                at = record.at if own or end.at is None else end.at
                _close(running, "lost" if end.reason == LOST else "failed", at, end)
            else:
                _close(running, "ended the turn" if own else "cut short", record.at)
        if self.waiting is not None and not _is_end(record.entries):
            self.current, self.waiting = self.waiting, None
            self.current.began_at, self.is_torn = record.at, False


def _running(turn: Turn | None) -> Attempt | None:
    last = turn.attempts[-1] if turn is not None and turn.attempts else None
    return last if last is not None and last.outcome == "running" else None


def _close(
    attempt: Attempt, outcome: Outcome, at: int | None, end: AttemptEnd | None = None
) -> None:
    attempt.outcome, attempt.over_at = outcome, at
    if end is not None:
        attempt.reason, attempt.correlation_id = end.reason, end.correlation_id
        attempt.place, attempt.message = end.place, end.message
        attempt.until = end.until or None


def _give_back(attempt: Attempt, end: AttemptEnd) -> None:
    """End an attempt as it has said; a time up to the end of the one before is not of this end.

    The commit that gives the turn back may be the attempt's last, and also its claim. The end's
    time is taken before that commit.
    """
    earliest, since = attempt.started_at or 0, attempt.wait.since
    if since is not None:
        earliest = min(earliest, since + 1)
    is_its_own = end.at is not None and end.at >= earliest
    at = max(end.at or 0, attempt.last_at or 0) if is_its_own else None
    _close(attempt, "gave back", at, end)


def _is_end(entries: Sequence[object]) -> bool:
    states = [entry.status.state for entry in entries if isinstance(entry, StatusChanged)]
    return bool(states) and is_terminal(states[-1])

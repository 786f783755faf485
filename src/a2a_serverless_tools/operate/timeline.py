"""A task's life as HEAD and log tell it: which worker has it, and what each version did. Pure.

Contents are left out: messages, parts and metadata are only named, and their bytes counted. Only
what is stored is told: a process that died without a trace in the log, for example between a commit
and the acknowledgement of its message, does not appear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeAlias

from a2a.types import TaskState

from a2a_serverless.tasks.blobs import blob_of
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Entry,
    MessageAppended,
    MetadataMerged,
    ModelsUsed,
    Recorded,
    Replied,
    Restarted,
    StatusChanged,
    TurnEnded,
    TurnOpened,
    Unknown,
    content_of,
    encode_entries,
    parts_of,
)
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import (
    ASLEEP,
    HANDOVER,
    INTERRUPTED,
    MAX_INLINE_BYTES,
    TERMINAL,
    AttemptEnd,
    CancelMark,
    Failure,
    Head,
    Reason,
    Spared,
    plain_state,
)
from a2a_serverless.tasks.pace import commit_units
from a2a_serverless.tasks.progress import Progress, progress_in
from a2a_serverless.tasks.push import GivenUp, PushEvents
from a2a_serverless.tasks.turns import Attempt, Turn, Wait, turns_of
from a2a_serverless.tasks.usage import Used
from a2a_serverless_tools.operate.lines import LogLine, by_attempt
from a2a_serverless_tools.operate.survey import Survey
from a2a_serverless_tools.operate.webhooks import Webhook, webhooks_of, with_deliveries
from a2a_serverless_tools.operate.words import Asked, asked_in, step_text, usage_text

_ChangeName: TypeAlias = Literal[
    "message",
    "status",
    "artifact",
    "chunk",
    "metadata",
    "restart",
    "turn ended",
    "reply",
    "record",
    "usage",
    "unknown",
]


_INDEXES: Final = 5
"""Index entries that a creation puts: four of HEAD, and that of the first commit in by-id."""
_MOVED: Final = 2
"""Units for removing an entry of an index and putting the next one."""

_DISCARDED: Final = (
    *(StatusChanged, ArtifactWritten, MetadataMerged, MessageAppended),
    *(Replied, Recorded),
)
"""Entries of an attempt that a restart takes back."""

_ENDS: Final = frozenset(map(plain_state, TERMINAL))
_What: TypeAlias = Literal[
    "accepted",  # a message, which opened a turn
    "waited for its turn",  # ... and became the current turn later
    "woken",  # after it was left, as it had to wait for others
    "sent again",  # by the sweeper, as it was due
    "started",  # the first attempt of a turn
    "recorded",  # results of steps, and sleeps, by an attempt
    "lost",  # an attempt, without a word
    "gave back",  # an attempt, with a reason
    "took over",  # the next attempt, from the one before
    "went on",  # the next attempt, at a record
    "cancel asked",
    "reached",  # a state that ends or interrupts the task, by an attempt
    "reached without an attempt",  # ... by the API or the sweeper
    "given up",  # a notification, at last
    "unknown entry",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happened. Fields that do not apply are 0, None or empty."""

    what: _What
    at: int | None = None
    """Milliseconds since the epoch; None: unknown."""
    version: int = 0
    """The commit that tells it; 0: HEAD tells it."""
    turn: int = 0
    attempt: Attempt | None = None
    """None: it is about no attempt."""
    after_ms: int | None = None
    """The time since the message was accepted; of a takeover, since the end of the attempt before,
    or since its last commit if its end is not known."""
    of: int = 0
    """The records so far of a turn that goes on."""
    by: str = ""
    """The user who has asked; of what was given up, the receiver."""
    given_up: GivenUp | None = None
    state: str = ""
    kind: str = ""
    """Of an unknown entry."""
    discards: tuple[int, ...] = ()
    """Versions whose changes were taken back."""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry of a commit, without its content."""

    name: _ChangeName
    subject: str = ""
    """The id of a message or artifact, a state, a step, the kind of an unknown entry."""
    by: str = ""
    """The user who sent a message; empty if unknown."""
    size: int
    """The bytes of the entry as it is stored."""
    is_last: bool = False
    """True if it is the last chunk of its artifact."""
    is_critical: bool = False
    """True if a reader that does not know the entry cannot understand the task."""
    base: int | None = None
    """The version that a restart goes back to."""
    discards: tuple[int, ...] = ()
    """Versions whose changes a restart takes back."""
    references: int = 0
    """Parts whose content, or records whose value, is stored elsewhere."""
    progress: Progress | None = None
    """The progress that a status tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """One committed version."""

    version: int
    at: int | None
    """Milliseconds since the epoch; None: lost."""
    worker: str
    """The process whose attempt wrote it; empty outside of attempts, or if it is not named."""
    ended: AttemptEnd | None
    """The attempt that ended with this version: the one before, or the one that wrote it."""
    ended_itself: bool
    """True if `ended` is the attempt that wrote this version."""
    units: int
    """Write units of DynamoDB, computed from its size."""
    changes: tuple[Change, ...]

    @property
    def size(self) -> int:
        """Return the bytes of its entries."""
        return sum(change.size for change in self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holder:
    """The attempt that has claimed the open turn; whether its process lives is not known.

    Times are milliseconds since the epoch.
    """

    worker: str
    """Its process; empty: it is lost."""
    since: int | None
    """The time of its claim."""
    seen_at: int | None = None
    """The time of its newest commit, or of the renewal of its lease that is known, the later."""
    lease_until: int | None = None
    """The end of its lease. None: unknown, as the sweeper has sent the turn again or a cancel was
    asked for; both have moved the due time by which a lease is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InLine:
    """What an open turn waits for without a message on the queue, and its place in that line."""

    reason: Reason
    before: int | None = None
    """For a share: turns of its caller before it. None: too many to count, or not looked at."""
    first: str = ""
    """For its conversation: the task whose turn has it; empty: unknown."""
    place: int = 0
    """For its conversation: its own place, from 1 on; 0: unknown."""
    places: int = 0
    """For its conversation: the length of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A task and its committed versions. Times are milliseconds since the epoch.

    If a field's docstring does not say otherwise, None means that the value could not be read.
    """

    task_id: str
    scope: str
    looked_at: int
    """The time at which it was read: lengths of what goes on count until then."""
    asked: Asked
    """Who has asked for what."""
    context_id: str | None
    state: str | None
    """The state's name as in logs and metrics, such as `working`."""
    failure: Failure
    """Why it has failed or was rejected."""
    created_at: int | None
    changed_at: int | None
    """The time of the newest commit."""
    expires_at: int | None
    version: int | None
    turn: int | None
    turn_version: int
    """The version that has opened the current turn."""
    turn_is_open: bool
    progress: Progress | None
    """The progress in the last status of the open turn; None: it has none, or no turn is open."""
    attempts: int | None
    """Attempts started on the turn since its last record, without those that are spared."""
    records: int
    """The records of the turn that were not taken back."""
    spared: Spared
    """The starts on the turn that use up no attempt."""
    holder: _Holder | None
    """None: no attempt has claimed the open turn, or the last one has given it back."""
    given_back: AttemptEnd | None
    """The attempt that has given back the open turn; None: there is none, or another took over."""
    in_line: InLine | None
    """What the open turn stands in line for; None: it does not."""
    asleep_until: int | None
    """The time until which the open turn sleeps; None: it does not."""
    due_at: int | None
    """The time at which the sweeper looks at the task; None also if it does not have to."""
    sends: int
    """Copies of the current turn that the sweeper has sent since its last record."""
    wakes: int
    """All other copies of the current turn: it was woken, or handed over."""
    size: int | None
    units: int
    """The write units of all commits that could be read."""
    usage: Used
    """What the task's models have used, in all attempts."""
    cancel: CancelMark | None
    """The request to cancel the task; None also if there is none."""
    story: tuple[Happening, ...]
    """What happened, in order."""
    turns: tuple[Turn, ...]
    webhooks: tuple[Webhook, ...]
    commits: tuple[Committed, ...]
    unreadable: tuple[str, ...]
    """What could not be read, as clauses."""
    lines: Mapping[int, tuple[LogLine, ...]]
    """Lines of the log by the claim of their attempt; 0: of none."""

    @property
    def has_ended(self) -> bool:
        """Return True if nothing more happens to it."""
        return self.state in _ENDS

    @property
    def took_ms(self) -> int | None:
        """Return the milliseconds to its end, or so far; None: a time could not be read."""
        until = self.changed_at if self.has_ended else self.looked_at
        if self.created_at is None or until is None:
            return None
        return max(0, until - self.created_at)

    @property
    def last(self) -> Attempt | None:
        """Return the newest attempt; None: there is none."""
        return next((turn.attempts[-1] for turn in reversed(self.turns) if turn.attempts), None)

    @property
    def wait(self) -> Wait | None:
        """Return the wait of the open turn; None: an attempt has it, or no turn is open."""
        waits = (turn.wait for turn in self.turns if turn.version == self.turn_version)
        return next((one for one in waits if one is not None and one.is_open), None)


def timeline(
    seen: Survey,
    *,
    now_ms: int,
    lease_s: float | None = None,
    in_line: InLine | None = None,
    push_events: PushEvents = "ends",
) -> Timeline:
    """Return the timeline of a task.

    Args:
        seen: what can be read of it.
        now_ms: the time at which it was read.
        lease_s: the seconds of a lease; None: unknown, and so is its last renewal.
        in_line: the place of a turn that is left; None: it was not looked at.
        push_events: which events its webhooks are told of.
    """
    head, records = seen.head, seen.records
    left = head.left if head.turn_is_open else ""
    discards, turns = discards_of(records), turns_of(head, records)
    commits = tuple(_commits(records, discards))
    webhooks = webhooks_of(seen.pushes, head, records, push_events)
    released = head.released if head.turn_is_open and head.was_released else None
    times = [record.at for record in records if record.at is not None]
    return Timeline(
        task_id=head.task_id,
        scope=head.scope,
        looked_at=now_ms,
        lines={},
        asked=asked_in(entry for record in records for entry in record.entries),
        failure=head.failure,
        turn_version=head.turn,
        state=plain_state(head.state),
        changed_at=times[-1] if times else head.status_at,
        turn_is_open=head.turn_is_open,
        progress=_progress(records) if head.turn_is_open else None,
        records=sum(len(one.records) for one in turns if one.version == head.turn),
        spared=head.spared,
        holder=None if released or left else _holder(head, records, lease_s),
        in_line=(in_line or InLine(reason=left)) if left and left != ASLEEP else None,
        asleep_until=(released.until if released else head.due_at) if left == ASLEEP else None,
        given_back=released,
        due_at=head.due_at,
        sends=head.resends,
        wakes=head.wakes,
        units=sum(commit.units for commit in commits),
        usage=head.usage,
        cancel=head.cancel,
        story=_story(head, records, turns, discards, webhooks),
        turns=turns,
        webhooks=webhooks,
        commits=commits,
        unreadable=tuple(_unreadable(head, records)),
        context_id=head.context_id,
        created_at=head.created_at,
        expires_at=head.expires_at,
        version=head.version,
        turn=next((one.number for one in turns if one.version == head.turn), None),
        attempts=head.attempts,
        size=head.size,
    )


def with_logs(shown: Timeline, lines: Iterable[LogLine]) -> Timeline:
    """Return a timeline with the lines of each attempt, and each delivery to its webhooks."""
    listed = [*lines]
    told = with_deliveries(shown.webhooks, listed)
    return replace(shown, webhooks=told, lines=by_attempt(shown.turns, listed))


def _holder(head: Head, records: Iterable[Record], lease_s: float | None) -> _Holder | None:
    if head.token is None or not head.turn_is_open:
        return None
    of_attempt = [record for record in records if record.token == head.token]
    claim = next((record for record in of_attempt if record.worker), None)
    first = claim or next(iter(of_attempt), None)
    until = head.due_at if head.resends == 0 and head.cancel is None else None
    seen = [record.at for record in of_attempt if record.at is not None]
    if seen and until is not None and lease_s is not None:
        seen.append(until - int(lease_s * 1000))
    return _Holder(
        worker=claim.worker if claim else "",
        since=first.at if first else None,
        seen_at=max(seen, default=None),
        lease_until=until,
    )


def _progress(records: Iterable[Record]) -> Progress | None:
    """Return the progress in the last status; None after a restart, where the work begins anew."""
    told: Progress | None = None
    for record in records:
        for entry in record.entries:
            if isinstance(entry, StatusChanged):
                told = progress_in(entry.metadata)
            elif isinstance(entry, Restarted):
                told = None
    return told


def _commits(
    records: Iterable[Record], discards: Mapping[int, tuple[int, ...]]
) -> Iterator[Committed]:
    workers: dict[str, str] = {}
    for record in records:
        is_claim = record.token is not None and record.token not in workers
        if record.token is not None and (is_claim or record.worker):
            workers[record.token] = record.worker
        discarded = discards.get(record.version, ())
        change = partial(_change, discards=discarded)
        yield Committed(
            version=record.version,
            at=record.at,
            worker=workers.get(record.token or "", record.worker),
            ended=record.ended,
            ended_itself=record.ended is not None and record.ended.token == record.token,
            units=_write_units(record, is_claim=is_claim),
            changes=tuple(map(change, record.entries)),
        )


def discards_of(records: Iterable[Record]) -> dict[int, tuple[int, ...]]:
    """Return, by the version of a restart, the versions of attempts whose changes it takes back."""
    standing: list[int] = []
    found: dict[int, tuple[int, ...]] = {}
    for record in records:
        for entry in record.entries:
            if isinstance(entry, Restarted):
                found[record.version] = tuple(v for v in standing if v > entry.base)
                standing = [v for v in standing if v <= entry.base]
        if record.token is not None and any(isinstance(e, _DISCARDED) for e in record.entries):
            standing.append(record.version)
    return found


def _change(entry: Entry, *, discards: tuple[int, ...]) -> Change:
    """Return an entry without its content.

    Args:
        entry: the entry.
        discards: the versions that a restart takes back.
    """
    references = sum(blob_of(part) is not None for part in parts_of(content_of(entry)))
    change = partial(Change, size=len(encode_entries((entry,))), references=references)
    name: _ChangeName
    match entry:
        case TurnOpened(request, caller):
            return change(name="message", subject=request.message.message_id, by=caller.user)
        case MessageAppended(message) | Replied(message):
            name = "reply" if isinstance(entry, Replied) else "message"
            return change(name=name, subject=message.message_id)
        case StatusChanged(status, metadata):
            state = _state(status.state)
            return change(name="status", subject=state, progress=progress_in(metadata))
        case ArtifactWritten(artifact, append, last_chunk):
            name = "chunk" if append else "artifact"
            return change(name=name, subject=artifact.artifact_id, is_last=last_chunk)
        case MetadataMerged():
            return change(name="metadata")
        case Restarted(base):
            return change(name="restart", base=base, discards=discards)
        case Recorded(step):
            subject = step_text(step)
            return change(name="record", subject=subject, references=int(entry.is_apart))
        case ModelsUsed(used):
            return change(name="usage", subject=usage_text(used))
        case Unknown(kind):
            subject = kind_name(kind)
            return change(name="unknown", subject=subject, is_critical=entry.is_critical)
        case _:
            return change(name="turn ended")


def _state(state: TaskState) -> str:
    """Return a state's name; its number if only a newer release knows it."""
    return plain_state(state) if state in TaskState.values() else str(int(state))


def _unreadable(head: Head, records: Iterable[Record]) -> Iterator[str]:
    if head.needs_newer:
        yield "a newer release has written HEAD"
    for record in records:
        for entry in record.entries:
            if isinstance(entry, Unknown) and entry.is_critical:
                kind = kind_name(entry.kind)
                yield f"version {record.version} has an unknown entry of kind {kind!r}"


def _story(
    head: Head,
    records: tuple[Record, ...],
    turns: Iterable[Turn],
    discards: dict[int, tuple[int, ...]],
    webhooks: Iterable[Webhook],
) -> tuple[Happening, ...]:
    """Return what happened, in the order of the log; `discards` as `discards_of` returns it."""
    told = [one for turn in turns for one in _of_turn(head, turn, discards)]
    told += _of_entries(records)
    told.sort(key=lambda one: one.version)  # stable: those of one version keep their order
    if head.cancel is not None:
        at, by = head.cancel.at, head.cancel.by
        told.insert(_place(told, at), Happening(what="cancel asked", at=at or None, by=by))
    for one in webhooks:
        if (lost := one.given_up) is not None:
            happened = Happening(what="given up", at=lost.at, by=one.receiver, given_up=lost)
            told.insert(_place(told, lost.at), happened)
    return tuple(told)


def _of_turn(head: Head, turn: Turn, discards: dict[int, tuple[int, ...]]) -> Iterator[Happening]:
    of_turn = partial(Happening, turn=turn.number)
    if turn.version:
        yield of_turn(what="accepted", at=turn.opened_at, version=turn.version, by=turn.by)
    if turn.began_at is not None and turn.began_at != turn.opened_at:
        yield of_turn(what="waited for its turn", at=turn.began_at, version=turn.version)
    if turn.version == head.turn:  # of the whole turn: the times are not known
        first = turn.attempts[0].first if turn.attempts else turn.version
        left = sum(one.reason in (ASLEEP, HANDOVER) for one in turn.attempts)
        wakes = head.wakes - left + (head.left == ASLEEP)
        if wakes > 0:  # sleeps and hand-overs are told by themselves
            yield of_turn(what="woken", version=first, count=wakes, of=len(turn.records))
        if head.resends:
            yield of_turn(what="sent again", version=first, count=head.resends)
    before: Attempt | None = None
    for attempt in turn.attempts:
        if before is not None:
            yield _end_of(turn, before, attempt.first)
        is_first = before is None and attempt.first not in discards
        yield of_turn(
            what="started" if is_first else "went on" if attempt.kept else "took over",
            at=attempt.started_at,
            version=attempt.first,
            attempt=attempt,
            after_ms=_since(before, attempt) if before else turn.waited_ms if is_first else None,
            discards=discards.get(attempt.first, ()),
            of=len(turn.records),
        )
        if attempt.recorded:
            at, version = attempt.recorded_at, max(attempt.recorded.values())
            yield of_turn(what="recorded", at=at, version=version, attempt=attempt)
        before = attempt
    if before is not None and before.outcome in ("lost", "gave back", "failed"):
        yield _end_of(turn, before, turn.ended or before.last)


def _end_of(turn: Turn, attempt: Attempt, version: int) -> Happening:
    is_lost = attempt.outcome == "lost"
    what: _What = "lost" if is_lost else "gave back"
    at = attempt.last_at if is_lost else attempt.over_at
    return Happening(what=what, at=at, version=version, turn=turn.number, attempt=attempt)


def _since(before: Attempt, attempt: Attempt) -> int | None:
    if attempt.waited_ms is not None:
        return attempt.waited_ms
    last, at = before.last_at, attempt.started_at
    return None if last is None or at is None else at - last


def _of_entries(records: Iterable[Record]) -> Iterator[Happening]:
    for record in records:
        of_entry = partial(Happening, at=record.at, version=record.version)
        for entry in record.entries:
            if isinstance(entry, StatusChanged) and entry.status.state in TERMINAL | INTERRUPTED:
                what: _What = (
                    "reached" if record.token is not None else "reached without an attempt"
                )
                yield of_entry(what=what, state=plain_state(entry.status.state))
            elif isinstance(entry, Unknown):
                yield of_entry(what="unknown entry", kind=kind_name(entry.kind))


def _place(told: list[Happening], at: int) -> int:
    """Return the place in `told` after everything that happened until `at`."""
    return next(
        (place for place, one in enumerate(told) if one.at is not None and one.at > at), len(told)
    )


def unknown_entry(version: int, kind: bytes) -> str:
    """Return a clause about an entry of a newer release, and the commit that has it."""
    of_kind = f"version {version} has an entry of kind {kind_name(kind)!r}"
    return f"{of_kind}, which this release cannot read"


def kind_name(kind: bytes) -> str:
    """Return the kind of an entry as a character, or as `0x…` if it is not ASCII."""
    return kind.decode() if kind.isascii() else f"0x{kind.hex()}"


def _write_units(record: Record, *, is_claim: bool) -> int:
    """Return the write units of DynamoDB that a commit has cost, computed from its size.

    An entry of an index costs one unit when it is put and one when it is removed. Renewed leases,
    cancels, webhooks and reads are not included, because the log does not have them.
    The page `cost-drivers` has the measured numbers.

    Args:
        record: the commit.
        is_claim: True if it is the first commit of its attempt, which moves the turn's due time.
    """
    units = commit_units(len(encode_entries(record.entries)), _status_bytes(record.entries))
    return units + (_INDEXES if record.version == 1 else _of_indexes(record, is_claim=is_claim))


def _of_indexes(record: Record, *, is_claim: bool) -> int:
    kinds = set(map(type, record.entries))
    of_due = 1 if kinds & {TurnOpened, TurnEnded} else _MOVED * is_claim
    return _MOVED * (StatusChanged in kinds) + of_due


def _status_bytes(entries: Sequence[Entry]) -> int:
    """Return the bytes of the status that HEAD keeps; a larger one stays in the log."""
    sizes = [entry.status.ByteSize() for entry in entries if isinstance(entry, StatusChanged)]
    return sizes[-1] if sizes and sizes[-1] <= MAX_INLINE_BYTES else 0

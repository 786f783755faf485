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

from a2a_serverless.tasks.blobs import blob_of, raw_bytes
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
from a2a_serverless.tasks.fold import Fold, Log, Record, incarnation_tag
from a2a_serverless.tasks.head import (
    ASLEEP,
    INTERRUPTED,
    MAX_INLINE_BYTES,
    AttemptEnd,
    Head,
    Reason,
    plain_state,
)
from a2a_serverless.tasks.pace import commit_units
from a2a_serverless.tasks.progress import Progress, progress_in
from a2a_serverless.tasks.push import PushEvents
from a2a_serverless.tasks.turns import Attempt, Turn, Wait, turns_of
from a2a_serverless_tools.operate.details import TaskDetails
from a2a_serverless_tools.operate.lines import LogLine, by_attempt
from a2a_serverless_tools.operate.lists import TaskRow
from a2a_serverless_tools.operate.steps import Awaited, Step, awaited_of, steps_of
from a2a_serverless_tools.operate.webhooks import Webhook, webhooks_of, with_deliveries
from a2a_serverless_tools.operate.words import (
    MOST_OF_A_LINE,
    TaskRequest,
    asked_in,
    question_line,
    step_text,
    usage_text,
)

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
class _File:
    """A file of an artifact, without its content."""

    name: str
    size: int
    """In bytes."""
    artifact_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A task with what its log says of it. Times are milliseconds since the epoch."""

    head: Head
    records: tuple[Record, ...]
    looked_at: int
    """The time at which it was read: lengths of what goes on count until then."""
    asked: TaskRequest
    """Who has asked for what."""
    question: str
    """The first line of what a task asks that waits for an answer of its caller; else empty."""
    changed_at: int
    """The time of the newest commit."""
    progress: Progress | None
    """The progress in the last status of the open turn; None: it has none, or no turn is open."""
    holder: _Holder | None
    """None: no attempt has claimed the open turn, or the last one has given it back."""
    given_back: AttemptEnd | None
    """The attempt that has given back the open turn; None: there is none, or another took over."""
    in_line: InLine | None
    """What the open turn stands in line for; None: it does not."""
    asleep_until: int | None
    """The time until which the open turn sleeps; None: it does not."""
    awaited: tuple[Awaited, ...]
    """What its code waits for beside its client and sleeps."""
    turns: tuple[Turn, ...]
    steps: tuple[Step, ...]
    webhooks: tuple[Webhook, ...]
    commits: tuple[Committed, ...]
    files: tuple[_File, ...]
    """Of its artifacts, as they are now."""
    lines: Mapping[int, tuple[LogLine, ...]]
    """Lines of the log by the claim of their attempt; 0: of none."""

    @property
    def tag(self) -> str:
        """Return what its cursors end with."""
        return incarnation_tag(self.head.incarnation)

    def fold(self) -> Fold:
        """Return a fold of the task to which no record was added yet."""
        return Fold(self.head.task_id, self.head.context_id)

    @property
    def state(self) -> str:
        """Return the state's name as in logs and metrics, such as `working`."""
        return plain_state(self.head.state)

    @property
    def units(self) -> int:
        """Return the write units of all commits."""
        return sum(commit.units for commit in self.commits)

    @property
    def row(self) -> TaskRow:
        """Return what a list shows of the task."""
        holder = self.holder.worker if self.holder else ""
        return TaskRow(head=self.head, why=self.head.attention, asked=self.asked, holder=holder)

    @property
    def turn(self) -> Turn | None:
        """Return the current turn; None: the commit that opened it is missing."""
        return next((one for one in self.turns if one.version == self.head.turn.number), None)

    @property
    def last(self) -> Attempt | None:
        """Return the newest attempt; None: there is none."""
        return next((turn.attempts[-1] for turn in reversed(self.turns) if turn.attempts), None)

    @property
    def wait(self) -> Wait | None:
        """Return the wait of the open turn; None: an attempt has it, or no turn is open."""
        wait = self.turn.wait if self.turn else None
        return wait if wait is not None and wait.is_open else None

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Return what a newer release has written, and this one cannot read, as clauses."""
        found = ["a newer release has written HEAD"] if self.head.needs_newer else []
        for commit in self.commits:
            kinds = [change.subject for change in commit.changes if change.is_critical]
            found += [f"version {commit.version} has an unknown entry of kind {k!r}" for k in kinds]
        return tuple(found)


def timeline(
    seen: TaskDetails,
    *,
    now_ms: int,
    lease_s: float | None = None,
    in_line: InLine | None = None,
    push_events: PushEvents = "ends",
) -> Timeline:
    """Return the timeline of a task.

    Args:
        seen: what is stored of it.
        now_ms: the time at which it was read.
        lease_s: the seconds of a lease; None: unknown, and so is its last renewal.
        in_line: the place of a turn that is left; None: it was not looked at.
        push_events: which events its webhooks are told of.
    """
    head, records = seen.head, seen.records
    left = head.turn.parked if head.turn.is_open else ""
    discards, turns = discards_of(records), turns_of(head, records)
    released = head.turn.released
    times = [record.at for record in records if record.at is not None]
    return Timeline(
        head=head,
        records=records,
        looked_at=now_ms,
        asked=asked_in(entry for record in records for entry in record.entries),
        question=_question(records) if head.state in INTERRUPTED else "",
        changed_at=times[-1] if times else head.status_at,
        progress=_progress(records) if head.turn.is_open else None,
        holder=None if released or left else _holder(head, records, lease_s),
        given_back=released,
        in_line=(in_line or InLine(reason=left)) if left and left != ASLEEP else None,
        asleep_until=(released.until if released else head.due_at) if left == ASLEEP else None,
        awaited=awaited_of(Log(head=head, records=records)),
        turns=turns,
        steps=steps_of(turns, records, discards),
        webhooks=webhooks_of(seen.pushes, head, records, push_events),
        commits=tuple(_commits(records, discards)),
        files=tuple(_files(records, discards)),
        lines={},
    )


def with_logs(shown: Timeline, lines: Iterable[LogLine]) -> Timeline:
    """Return a timeline with the lines of each attempt, and each delivery to its webhooks."""
    listed = [*lines]
    told = with_deliveries(shown.webhooks, listed)
    return replace(shown, webhooks=told, lines=by_attempt(shown.turns, listed))


def _holder(head: Head, records: Iterable[Record], lease_s: float | None) -> _Holder | None:
    if head.turn.token is None or not head.turn.is_open:
        return None
    of_attempt = [record for record in records if record.token == head.turn.token]
    claim = next((record for record in of_attempt if record.worker), None)
    first = claim or next(iter(of_attempt), None)
    until = head.due_at if head.turn.resends == 0 and head.cancel is None else None
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


def _question(records: Iterable[Record]) -> str:
    """Return what the last status says, in a line."""
    entries = [entry for record in records for entry in record.entries]
    statuses = [entry.status for entry in entries if isinstance(entry, StatusChanged)]
    return question_line(statuses[-1].message) if statuses else ""


def _files(records: Iterable[Record], discards: Mapping[int, tuple[int, ...]]) -> Iterator[_File]:
    """Return the files of the artifacts as they are now."""
    gone = {version for versions in discards.values() for version in versions}
    files: dict[str, list[_File]] = {}
    for record in records:
        for entry in record.entries:
            if not isinstance(entry, ArtifactWritten) or record.version in gone:
                continue
            own = files.setdefault(name := entry.artifact.artifact_id, [])
            if not entry.append:
                own.clear()
            own += (
                _File(
                    name=(part.filename or part.media_type or "file")[:MOST_OF_A_LINE],
                    size=size,
                    artifact_id=name,
                )
                for part in entry.artifact.parts
                if (size := raw_bytes(part)) or part.WhichOneof("content") == "raw"
            )
    return (file for own in files.values() for file in own)


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
            return change(name="record", subject=subject, references=int(entry.is_offloaded))
        case ModelsUsed(used):
            return change(name="usage", subject=usage_text(used))
        case Unknown(kind):
            subject = _kind_name(kind)
            return change(name="unknown", subject=subject, is_critical=entry.is_critical)
        case _:
            return change(name="turn ended")


def _state(state: TaskState) -> str:
    """Return a state's name; its number if only a newer release knows it."""
    return plain_state(state) if state in TaskState.values() else str(int(state))


def unknown_entry(version: int, kind: bytes) -> str:
    """Return a clause about an entry of a newer release, and the commit that has it."""
    of_kind = f"version {version} has an entry of kind {_kind_name(kind)!r}"
    return f"{of_kind}, which this release cannot read"


def _kind_name(kind: bytes) -> str:
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

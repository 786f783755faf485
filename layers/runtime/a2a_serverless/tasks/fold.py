"""The log of a task, and folding it into what a client sees: the Task, and the events."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Literal, TypeVar

from a2a.types import (
    Artifact,
    Message,
    Part,
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import InvalidArgumentError, NewerReleaseError
from a2a_serverless.tasks.blobs import blob_of, is_text, joining
from a2a_serverless.tasks.entries import (
    LATE,
    NOT_FINITE,
    ArtifactWritten,
    Caller,
    Entry,
    MessageAppended,
    MetadataMerged,
    Recorded,
    Replied,
    Restarted,
    StatusChanged,
    TurnEnded,
    TurnOpened,
    Unknown,
    content_of,
    copied,
    has_time,
    is_finite,
    is_plain,
)
from a2a_serverless.tasks.head import TERMINAL, AttemptEnd, Head
from a2a_serverless.tasks.identity import digest
from a2a_serverless.tasks.rules import Step, merge_metadata
from a2a_serverless.values import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One complete commit as it stands in the log."""

    version: int
    entries: tuple[Entry, ...]
    token: str | None = None
    commit_id: str = ""
    at: int | None = None
    """The time of the commit, in milliseconds since the epoch; None: damaged."""
    worker: str = ""
    """The process that has claimed the turn with this commit."""
    ended: AttemptEnd | None = None
    """The attempt that ended with this commit: the one a claim takes over from, or the writer's."""
    trace: str | None = None
    """The writer's trace context, see `observability.spans.stored`."""

    @property
    def opening(self) -> TurnOpened | None:
        """Return the entry with the message that was accepted with the commit, if there is one."""
        return next((entry for entry in self.entries if isinstance(entry, TurnOpened)), None)

    @property
    def opens_turn(self) -> bool:
        """Return True if the commit opens a turn: by a message, or as a question's time is over."""
        return self.opening is not None or any(_is_late(entry) for entry in self.entries)

    @classmethod
    def of(cls, step: Step) -> Record:
        """Return the record that a stored step leaves in the log; it shares the step's entries."""
        return cls(
            version=step.head.version,
            entries=step.entries,
            token=step.token,
            commit_id=step.commit_id,
            at=step.at,
            worker=step.worker,
            ended=step.ended,
            trace=step.trace,
        )


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A task as the log up to a version has made it, in the place of that log.

    No turn was open then, so that no later restart goes back behind it. Where the code of a turn
    goes on behind a question, its commits are kept as they are: they have its records.
    """

    version: int
    turn: int
    """The newest turn up to there."""
    shown: int
    """How many events the commit of that version has shown."""
    history: tuple[Message, ...] = ()
    others: tuple[Entry, ...] = ()
    """What makes a new task the same, with the messages of the history."""
    is_plain: bool = True
    """True: no content up to its version is large, or has a URL."""
    kept: tuple[Record, ...] = ()
    """The commits that follow on it, while the code of a turn goes on behind a question."""

    @property
    def last(self) -> int:
        """Return the version of the last commit that it stands for."""
        return self.kept[-1].version if self.kept else self.version

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return all that makes a new task the same."""
        return (*map(MessageAppended, self.history), *self.others)


_Undo = Callable[[], object]
"""Takes back one change of a fold, as long as every later one was taken back before."""


@dataclass(slots=True)
class Fold:
    """The state of one incarnation of a task after the records added so far.

    Records come in unbroken version order, from 1. The fold can take back every change that still
    counts: a restart takes back all changes since the turn began, then applies those again that
    were not made by attempts. No restart is applied twice, so that the work grows with the log's
    length and not with the number of restarts.
    """

    task_id: str
    context_id: str
    version: int = 0
    """That of the newest record, or of the snapshot before the first."""
    newest: Record | None = None
    """The record that was added last."""
    status: TaskStatus = field(default_factory=TaskStatus)
    metadata: Struct = field(default_factory=Struct)
    history: list[Message] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    reply: Message | None = None
    since: Snapshot | None = None
    """What the fold began with, in the place of the records up to there."""
    _restored: list[tuple[Artifact, list[int]]] = field(default_factory=list)
    """The artifacts as the last restart left them, each with the seams that no reader sees."""
    _shared: set[str] = field(default_factory=set)
    """The ids of the artifacts that `_restored` shares with `artifacts`."""
    _seams: dict[str, list[int]] = field(default_factory=dict)
    """The numbers of the parts with which the later chunks of each artifact begin."""
    _ended: dict[str, int] = field(default_factory=dict)
    """How many seams of each artifact are those of chunks that belong together: it has ended."""
    _opened: dict[int, TurnOpened] = field(default_factory=dict)
    _changes: list[tuple[Record, _Undo]] = field(default_factory=list)
    """Every change that no restart has taken back, in the order in which it was made."""

    def begin_with(self, since: Snapshot) -> None:
        """Put what a snapshot stands for in the place of the first records."""
        self.since, self.version = since, since.version
        record = Record(version=since.version, entries=since.others)
        self.history.extend(since.history)  # nothing takes them back
        for entry in since.others:
            self._change(entry, record)
        self._changes.clear()

    @property
    def shown(self) -> int:
        """Return how many events the newest record shows."""
        if self.newest is None:
            return self.since.shown if self.since else 0
        return len([*events_of(self.newest, self)])

    def snapshot(self) -> Snapshot | None:
        """Return what takes the place of the records so far; None: the next ones may need them.

        No turn is open. Text that came in chunks is one part in it, as for every reader by then.
        """
        if any(self._ended[each] < len(seams) for each, seams in self._seams.items()):
            return None
        others: list[Entry] = [
            StatusChanged(self.status),
            MetadataMerged(copied(self.metadata)),
            *(ArtifactWritten(joined(*each), last_chunk=True) for each in self._artifacts()),
        ]
        if self.reply is not None:
            others.append(Replied(self.reply))
        since = self.since or Snapshot(version=0, turn=0, shown=0)
        new = [*self.history[len(since.history) :], *map(content_of, others)]
        return Snapshot(
            version=self.version,
            turn=self.turn_at(self.version),
            shown=self.shown,
            history=tuple(self.history),
            others=tuple(others),
            is_plain=since.is_plain and all(map(is_plain, new)),
        )

    def add(self, record: Record, *, skips: bool = False) -> None:
        """Apply the next record; with `skips` a later one, as those between cannot be had.

        Raises:
            ValueError: `record` does not follow on the newest one.
        """
        if record.version != self.version + 1 and not skips:
            raise ValueError(f"record {record.version} does not follow version {self.version}")
        for entry in record.entries:
            self.apply(entry, record)
        self.newest, self.version = record, record.version

    def apply(self, entry: Entry, record: Record) -> int:
        """Apply one entry of `record`, for a reader that stops inside a commit.

        Return how many events it shows.
        """
        if isinstance(entry, Restarted):
            self._restart(entry.base)
            return len(self._restored)
        self._change(entry, record)
        return isinstance(entry, StatusChanged | ArtifactWritten)

    def opening(self, turn: int) -> tuple[SendMessageRequest, Caller]:
        """Return the request that opened `turn`, and its sender.

        Raises:
            NewerReleaseError: this release cannot read the entry that opened it.
        """
        opened = self._opened.get(turn)
        if opened is None:
            raise NewerReleaseError
        return opened.request, opened.caller

    def turn_at(self, version: int) -> int:
        """Return the newest turn that was opened up to `version`."""
        before = self.since.turn if self.since else version
        return max((turn for turn in self._opened if turn <= version), default=before)

    def task(self, history_length: int | None = None, *, include_artifacts: bool = True) -> Task:
        """Return the Task, as new objects that belong to the caller.

        Text that came in chunks is one part once its artifact has ended: with its last chunk, or
        with its turn. `history_length`: None = all, 0 = none, n = the last n messages.
        """
        task = Task(id=self.task_id, context_id=self.context_id, status=self.status)
        check_history_length(history_length)
        limit = len(self.history) if history_length is None else history_length
        task.history.extend(self.history[max(0, len(self.history) - limit) :])
        if include_artifacts:
            task.artifacts.extend([joined(*each) for each in self._artifacts()])
        if self.metadata.fields:
            task.metadata.CopyFrom(self.metadata)
        return task

    @property
    def restored(self) -> list[Artifact]:
        """Return the artifacts as a reader saw them after the last restart, as new objects."""
        return [joined(*each) for each in self._restored]

    def _artifacts(self) -> Iterator[tuple[Artifact, list[int]]]:
        """Yield each artifact with the seams that no reader sees: those until it has ended."""
        for artifact_id, artifact in self.artifacts.items():
            yield artifact, self._seams[artifact_id][: self._ended[artifact_id]]

    def _restart(self, base: int) -> None:
        for record in self._taken_back(base):
            for entry in record.entries:
                self._change(entry, record)
        self._restored = list(self._artifacts())
        self._shared = set(self.artifacts)

    def _taken_back(self, base: int) -> list[Record]:
        """Undo all changes after version `base`; return the records that no attempt wrote."""
        others: dict[int, Record] = {}
        while self._changes and self._changes[-1][0].version > base:
            record, undo = self._changes.pop()
            undo()
            # A message that came meanwhile stays: a restart takes back what attempts have written.
            if record.token is None:
                others[record.version] = record
        return [others[version] for version in sorted(others)]

    def _change(self, entry: Entry, record: Record) -> None:
        if isinstance(entry, Recorded) and entry.form == LATE and self._opened:
            # A turn without a message: that of the sender of the last one.
            self._opened[record.version] = self._opened[max(self._opened)]
        for undo in self._changed_by(entry, record):
            self._changes.append((record, undo))

    def _changed_by(self, entry: Entry, record: Record) -> Iterator[_Undo]:
        """Make the changes of an entry; after each, yield the function that takes it back."""
        match entry:
            case TurnOpened(request, _):
                self._opened[record.version] = entry
                yield from self._archive_status_message()
                self.history.append(bound(request.message, self.task_id, self.context_id))
                yield self.history.pop
            case MessageAppended(message):
                self.history.append(message)
                yield self.history.pop
            case StatusChanged(status, metadata, archive):
                if archive:
                    yield from self._archive_status_message()
                yield self._set("status", status)
                if metadata is not None:
                    yield _merge(self.metadata, metadata)
                if status.state in TERMINAL:
                    yield from self._end_artifacts(*self.artifacts)
            case TurnEnded():
                yield from self._end_artifacts(*self.artifacts)
            case ArtifactWritten(artifact):
                yield from self._write_artifact(entry)
                if entry.last_chunk:
                    yield from self._end_artifacts(artifact.artifact_id)
            case MetadataMerged(metadata):
                yield _merge(self.metadata, metadata)
            case Replied(message):
                yield self._set("reply", message)
            case _:
                pass

    def _set(self, name: Literal["status", "reply"], value: TaskStatus | Message) -> _Undo:
        before = getattr(self, name)
        setattr(self, name, value)
        return partial(setattr, self, name, before)

    def _archive_status_message(self) -> Iterator[_Undo]:
        if self.status.HasField("message"):
            self.history.append(self.status.message)
            yield self.history.pop
            without = copied(self.status)
            without.ClearField("message")
            yield self._set("status", without)

    def _write_artifact(self, write: ArtifactWritten) -> Iterator[_Undo]:
        artifact_id = write.artifact.artifact_id
        known = self.artifacts.get(artifact_id)
        is_shared = artifact_id in self._shared
        self._shared.discard(artifact_id)
        if known is None or not write.append:
            yield _put(self._seams, artifact_id, [])
            yield _put(self._ended, artifact_id, 0)
            yield _put(self.artifacts, artifact_id, copied(write.artifact))
            return
        if is_shared:  # `_restored` shows it as it was
            known = copied(known)
            yield _put(self.artifacts, artifact_id, known)
        seams = self._seams[artifact_id]
        seams.append(len(known.parts))
        yield seams.pop
        yield _extend(known, write.artifact)
        if write.artifact.HasField("metadata"):
            had_none = not known.HasField("metadata")
            undo = _merge(known.metadata, write.artifact.metadata)
            yield partial(known.ClearField, "metadata") if had_none else undo

    def _end_artifacts(self, *artifact_ids: str) -> Iterator[_Undo]:
        for artifact_id in artifact_ids:
            seams = len(self._seams[artifact_id])
            if self._ended[artifact_id] < seams:
                yield _put(self._ended, artifact_id, seams)


def joined(artifact: Artifact, seams: Collection[int] | None = None) -> Artifact:
    """Return a copy in which text parts that differ in nothing but their text are one part.

    A part is joined to the one before it if its number is in `seams`; None: wherever it can be.
    """
    copy = copied(artifact)
    places = range(1, len(copy.parts)) if seams is None else set(seams)
    if not places:
        return copy
    texts: list[list[str]] = []
    del copy.parts[:]
    for number, part in enumerate(artifact.parts):
        if number in places and copy.parts and _go_together(copy.parts[-1], part):
            if blob_of(part) is None and not joining(copy.parts[-1], ">"):
                texts[-1].append(part.text)
                continue
            copy.parts.append(part)
            joining(copy.parts[-1], "<")
            texts.append([part.text])
        else:
            copy.parts.append(part)
            texts.append([part.text])
    for part, pieces in zip(copy.parts, texts, strict=True):
        if len(pieces) > 1:
            part.text = "".join(pieces)
    return copy


def _go_together(part: Part, following: Part) -> bool:
    """Return True if two parts have text, and like metadata, media type and file name.

    What is stored beside the log is joined when it is shown.
    """
    return (
        is_text(part)
        and is_text(following)
        and (part.media_type, part.filename) == (following.media_type, following.filename)
        and part.HasField("metadata") == following.HasField("metadata")
        and part.metadata == following.metadata
    )


def _put(values: dict[str, T], key: str, value: T) -> _Undo:
    before = values.get(key)
    values[key] = value
    if before is None:
        return partial(values.pop, key)
    return partial(values.__setitem__, key, before)


def _extend(artifact: Artifact, chunk: Artifact) -> _Undo:
    before = len(artifact.parts)
    artifact.parts.extend(chunk.parts)
    return partial(artifact.parts.__delitem__, slice(before, None))


def _merge(metadata: Struct, update: Struct) -> _Undo:
    before = Struct()
    for key in update.fields:
        if key in metadata.fields:
            before.fields[key].CopyFrom(metadata.fields[key])
    merge_metadata(metadata, update)
    return partial(_unmerge, metadata, update, before)


def _unmerge(metadata: Struct, update: Struct, before: Struct) -> None:
    for key in update.fields:
        del metadata.fields[key]
    merge_metadata(metadata, before)


def check_history_length(length: object) -> None:
    """Refuse a length that is neither None nor a whole number of messages.

    The last ones are shown, the oldest first (A2A 1.0.1, section 3.2.4).
    """
    if length is None:
        return
    if isinstance(length, bool) or not isinstance(length, int) or length < 0:
        raise InvalidArgumentError("history_length must be a whole number, 0 or more.")


def bound(message: Message, task_id: str, context_id: str) -> Message:
    """Return a copy of `message` that names its task and context; never mutate the input."""
    copy = copied(message)
    copy.task_id, copy.context_id = task_id, context_id
    return copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """HEAD and the complete commits after a version, unbroken up to HEAD's version.

    A log "from its beginning" has all commits, or a snapshot in the place of the first ones.
    """

    head: Head
    records: tuple[Record, ...]
    since: Snapshot | None = None
    """What stands for the commits before `records`; None: the first one follows on the version
    after which the log was read."""

    def between(self, after: int, last: int) -> tuple[Record, ...]:
        """Return the commits after a version, up to another one."""
        first = self.records[0].version if self.records else 0
        return self.records[max(0, after + 1 - first) : max(0, last + 1 - first)]

    def at(self, version: int) -> Record:
        """Return the commit of a version."""
        (record,) = self.between(version - 1, version)
        return record

    def of_turn(self) -> tuple[Record, ...]:
        """Return the commit that has accepted the current turn's message, and those of the turn."""
        opened, last = self.head.turn.number, self.head.version
        return (*self.between(opened - 1, opened), *self.between(self.head.turn.base, last))

    @property
    def needs_newer(self) -> bool:
        """Return True if only a newer release may run or write the task."""
        entries = [entry for record in self.records for entry in record.entries]
        unknown = [entry for entry in entries if isinstance(entry, Unknown) and entry.is_critical]
        return self.head.needs_newer or bool(unknown)

    @property
    def cannot_run(self) -> bool:
        """Return True if no worker of this release can run the open turn.

        The task needs a newer release, or the message that opened the turn cannot be read. For a
        log read from its beginning.
        """
        return self.needs_newer or (self.head.turn.is_open and self.opening is None)

    @property
    def opening(self) -> TurnOpened | None:
        """Return the entry with the message with which the current turn's code begins.

        None: this release cannot read it. The log was read from its beginning.
        """
        number = self.head.turn.began_with
        for record in self.between(number - 1, number):
            for entry in record.entries:
                if isinstance(entry, TurnOpened):
                    return entry
        return None

    @property
    def caller(self) -> Caller:
        """Return the sender of that message; the log was read from its beginning."""
        opening = self.opening
        return Caller() if opening is None else opening.caller

    def restarted(self) -> Fold:
        """Return the fold after the restart with which a claim begins another attempt.

        The log was read from its beginning.
        """
        fold = self.fold()
        claim = Record(version=self.head.version + 1, entries=())
        fold.apply(Restarted(self.head.turn.restart_base), claim)
        return fold

    def replayed(self) -> list[Record]:
        """Return the commits of the agent's code that the next claim does not take back.

        They are those of attempts on the open turn, and on the turns before it at whose ends the
        code has asked its client; and, from outside, what has ended a wait or a question's time.
        The log was read from its beginning.
        """
        kept: list[Record] = []
        turn = self.head.turn
        for record in self.between(turn.begun_base or turn.base, self.head.version):
            for entry in record.entries:
                if isinstance(entry, Restarted):
                    kept = [each for each in kept if _stays(each, entry.base)]
            if record.token is not None or _has_records(record):
                kept.append(record)
        if not kept:
            return kept
        goes_on = turn.is_open or not turn.begun
        newest = turn.restart_base if goes_on else self.head.version
        return [record for record in kept if _stays(record, newest)]

    def beginnings(self) -> int:
        """Return how often the open turn has begun: again each time that records were taken back.

        The log was read from its beginning.
        """
        number, newest = 1, self.head.turn.base
        for record in self.between(newest, self.head.version):
            for entry in record.entries:
                if isinstance(entry, Restarted) and entry.base < newest:
                    number, newest = number + 1, entry.base
                elif isinstance(entry, Recorded) and record.token is not None:
                    newest = record.version
        return number

    def snapshot(self) -> Snapshot | None:
        """Return what takes the place of the log, which was read from its beginning; None: nothing.

        No turn is open.
        """
        if self.head.turn.begun:
            none = Snapshot(version=0, turn=0, shown=0)
            return replace(self.since or none, kept=self.records)
        return self.fold().snapshot()

    def behind(self, since: Snapshot) -> Log:
        """Return the log with a snapshot in the place of the commits before its own."""
        return replace(
            self, since=since if since.version else None, records=(*since.kept, *self.records)
        )

    def fold(self, version: int | None = None) -> Fold:
        """Return the fold of a log that was read from its beginning; up to a version, or HEAD's."""
        last = self.head.version if version is None else version
        fold = Fold(self.head.task_id, self.head.context_id)
        if self.since is not None:
            fold.begin_with(self.since)
        return extend(fold, self.between(fold.version, last))


def _stays(record: Record, base: int) -> bool:
    """Return True if a restart that goes back to a version leaves what a record says of steps."""
    return record.version <= base or record.token is None


def _has_records(record: Record) -> bool:
    return any(isinstance(entry, Recorded) for entry in record.entries)


def _is_late(entry: Entry) -> bool:
    return isinstance(entry, Recorded) and entry.form == LATE


def extend(fold: Fold, records: tuple[Record, ...]) -> Fold:
    """Add the records that follow to a fold, and return it."""
    for record in records:
        fold.add(record)
    return fold


def task_of_head(head: Head) -> Task | None:
    """Return the Task without history and artifacts; None when HEAD alone does not know it.

    None also if HEAD's copy of status or metadata is damaged, or cannot be shown in an answer: the
    log has both.
    """
    if head.status is None or head.metadata is None:
        return None
    task = Task(id=head.task_id, context_id=head.context_id)
    try:
        task.status.ParseFromString(head.status)
        if head.metadata:
            task.metadata.ParseFromString(head.metadata)
    except DecodeError:
        return None
    is_shown = not NOT_FINITE.search(head.status + head.metadata) or is_finite(task)
    return task if has_time(task.status) and is_shown else None


Event = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent

LAST = 1_000_000_000
"""An index beyond every event of a commit: the cursor of a whole version."""

_CURSOR = re.compile(r"(\d{1,12})\.(\d{1,10})\.([A-Za-z0-9_-]{6})")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The last event a subscriber has: `index` counts the events of commit `version`."""

    version: int
    index: int
    tag: str

    def __str__(self) -> str:
        """Return the SSE `id:`."""
        return f"{self.version}.{self.index}.{self.tag}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """Return the cursor in a `Last-Event-ID`; None if no cursor has this form."""
        match = _CURSOR.fullmatch(text)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None


def incarnation_tag(incarnation: str) -> str:
    """Return six characters that identify an incarnation in a cursor without revealing it."""
    return digest("cursor", incarnation)[:6]


def events_of(record: Record, after: Fold) -> Iterator[Event]:
    """Yield the events of one commit in order; `after` is the fold that includes the commit.

    A restart yields the artifacts as they were when the turn began. They replace what the
    subscriber has, and so take back the additions of dead attempts.
    """
    for entry in record.entries:
        match entry:
            case StatusChanged(status, metadata, _):
                yield TaskStatusUpdateEvent(
                    task_id=after.task_id,
                    context_id=after.context_id,
                    status=status,
                    metadata=metadata,
                )
            case ArtifactWritten(artifact, append, last_chunk, metadata):
                yield TaskArtifactUpdateEvent(
                    task_id=after.task_id,
                    context_id=after.context_id,
                    artifact=artifact,
                    append=append,
                    last_chunk=last_chunk,
                    metadata=metadata,
                )
            case Restarted():
                for artifact in after.restored:
                    yield TaskArtifactUpdateEvent(
                        task_id=after.task_id, context_id=after.context_id, artifact=artifact
                    )
            case _:
                pass


def belonging_to(head: Head, records: Sequence[Record], reached: int) -> tuple[Record, ...] | None:
    """Return the commits that lead up to HEAD; None: some are missing, so read on after `reached`.

    `records` are complete commits in unbroken order. `reached` is the version of the last one; if
    there are none, the version after which the read began. Commits beyond HEAD were made during the
    read: the next read returns them, with their HEAD.
    """
    if reached < head.version:
        return None
    return tuple(records[: len(records) - (reached - head.version)])

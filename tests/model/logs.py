"""Random logs, made with the rules themselves, and what they have to fold to."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from a2a.types import Artifact, Message, Part, Role, SendMessageRequest, Task, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Struct
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from a2a_serverless.errors import A2AServerlessError
from a2a_serverless.storage import snapshots
from a2a_serverless.tasks.entries import (
    LATE,
    ArtifactWritten,
    Entry,
    MessageAppended,
    MetadataMerged,
    Recorded,
    Replied,
    Restarted,
    StatusChanged,
    StepId,
    TurnOpened,
)
from a2a_serverless.tasks.fold import Fold, Log, Record, events_of
from a2a_serverless.tasks.head import HANDOVER, MAX_INLINE_BYTES, AttemptEnd, Head
from a2a_serverless.tasks.questions import ASK, Asked
from a2a_serverless.tasks.rules import Commit, NewTask, Step, Timing, advance, open_task
from a2a_serverless.tasks.waits import Signal
from tests.model import reference
from tests.support.heads import with_fields
from tests.support.present import present

TASK, CONTEXT = "t", "c"
_COMPLETED = TaskState.TASK_STATE_COMPLETED


class Act(NamedTuple):
    """One thing that happens to a task: a commit, by the kind of its writer and of its entries."""

    writer: str
    entries: tuple[tuple[str, int], ...] = ()
    """Kinds of `_ENTRIES`, each with a number that varies it."""


@dataclass(slots=True)
class History:
    """A log while it is written, and HEAD after each of its records."""

    records: list[Record] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)

    def keep(self, step: Step, token: str | None) -> None:
        version, entries = step.head.version, step.entries
        self.records.append(Record(version=version, entries=entries, token=token))
        self.heads.append(step.head)

    def log(self, version: int) -> Log:
        """Return what a reader finds when the log has this version."""
        return Log(head=self.heads[version - 1], records=tuple(self.records[:version]))


def history_of(acts: Sequence[Act]) -> History:
    """Return the log that the acts leave; what the rules refuse has not happened."""
    history = History()
    history.keep(opening(), None)
    for number, act in enumerate(acts, start=1):
        head = history.heads[-1]
        if act.writer == "start over" and head.turn.token is not None:
            # Its attempt gives the turn back, and none of its records counts any more.
            end = AttemptEnd(token=head.turn.token, reason="NonDeterminismError")
            head = history.heads[-1] = with_fields(head, checkpoint=0, released=end)
        commit = commit_of(act, head, number)
        try:
            step = advance(head, commit, now_ms=number, timing=Timing())
        except A2AServerlessError:
            continue
        history.keep(step, commit.token)
    return history


def opening() -> Step:
    """Return the first commit of a log."""
    new = NewTask(
        scope="s", task_id=TASK, context_id=CONTEXT, incarnation="i", request=_request("0")
    )
    return open_task(new, now_ms=0, timing=Timing())


def check(history: History) -> bool:
    """Compare the fold of a log with the reference, and HEAD and the events with the fold.

    Return True if the log went on behind a snapshot.
    """
    fold = Fold(TASK, CONTEXT)
    short: Fold | None = None
    """As `fold`, of a log whose beginning was replaced by a snapshot."""
    subscribers: list[Task] = []
    for record, head in zip(history.records, history.heads, strict=True):
        fold.add(record)
        seen = list(events_of(record, fold))
        restarts = any(isinstance(entry, Restarted) for entry in record.entries)
        for task in subscribers:
            reference.watched(task, seen, restored=len(fold.restored) if restarts else None)
            assert by_id(task.artifacts) == by_id(fold.artifacts.values())
        subscribers.append(fold.task())
        _check_turn(fold, history.log(record.version))
        if short is not None:
            short.add(record)
            assert list(events_of(record, short)) == seen
            _check_same(short, fold)
        if head.turn.asks:
            _check_kept(history.log(record.version))
        is_over = not (head.turn.is_open or head.turn.begun)
        if is_over and (made := fold.snapshot()) is not None:
            short = Fold(TASK, CONTEXT)  # of a reader of a snapshot, encoded as it is stored
            short.begin_with(present(snapshots._read(snapshots._written(made))))
            _check_same(short, fold)
        _check_head(fold, head)
        if restarts:
            _check_fold(fold, history.records[: record.version])
            restored = reference.restored_by(TASK, CONTEXT, history.records[: record.version])
            assert fold.restored == restored
    _check_fold(fold, history.records)
    return short is not None and short.newest is not None


def _check_kept(log: Log) -> None:
    """Compare a log with what a reader makes of its snapshot while its code waits."""
    made = present(log.snapshot())
    read = snapshots._read(snapshots._written(made))
    assert read == made
    assert Log(head=log.head, records=()).behind(read) == log


def _check_same(short: Fold, fold: Fold) -> None:
    assert short.task() == fold.task()
    assert (short.version, short.shown, short.reply) == (fold.version, fold.shown, fold.reply)
    assert short.turn_at(short.version) == fold.turn_at(fold.version)


def _check_turn(fold: Fold, log: Log) -> None:
    """Compare what another attempt finds, and what its claim leaves, with the reference."""
    head, records = log.head, log.records
    if not head.turn.is_open:
        return
    has_records = reference.recorded_at(records, head.turn.base) > head.turn.base
    left = head.turn.released
    is_started_over = left is not None and left.reason == "NonDeterminismError"
    assert (head.turn.checkpoint > 0) == (has_records and not is_started_over)
    found = [entry for record in log.replayed() for entry in record.entries]
    last = reference.recorded_at(records, head.turn.base) if head.turn.checkpoint > 0 else 0
    last = max(last, head.turn.base)  # what was recorded before a question is kept for good
    expected = reference.journal(records, head.turn.begun_base or head.turn.base, last)
    assert [entry for entry in found if reference.of_journal(entry)] == expected
    assert log.beginnings() == reference.beginnings(records, head.turn.base)
    if head.turn.checkpoint == 0:
        return
    base = reference.recorded_at(records, head.turn.base)
    restart = Record(version=head.version + 1, entries=(Restarted(base),), token="next")
    restarted = log.restarted()
    restored = reference.restored_by(TASK, CONTEXT, [*records, restart])
    assert restarted.restored == restored
    if head.is_at_record:  # a claim writes nothing, as there is nothing to take back
        assert restarted.task() == fold.task()
        assert restarted.reply == fold.reply


def by_id(artifacts: Iterable[Artifact]) -> dict[str, Artifact]:
    """Return artifacts without regard to how their text is cut into parts."""
    return {artifact.artifact_id: artifact for artifact in reference.flat(artifacts)}


def _check_fold(fold: Fold, records: Sequence[Record]) -> None:
    expected = reference.shown(TASK, CONTEXT, records)
    if not expected.task.metadata.fields:
        expected.task.ClearField("metadata")
    assert fold.task() == expected.task
    assert fold.reply == expected.reply


def _check_head(fold: Fold, head: Head) -> None:
    assert head.version == fold.version
    assert head.state == fold.status.state
    assert head.status is None or TaskStatus.FromString(head.status) == fold.status
    assert head.metadata is None or Struct.FromString(head.metadata) == fold.metadata
    assert head.replied == (fold.reply is not None)


# -- commits ---------------------------------------------------------------------------------


def commit_of(act: Act, head: Head, number: int) -> Commit:
    """The commit of an act, whose texts are found in no other."""
    entries = tuple(
        _ENTRIES[kind](f"{number}.{place}", variant)
        for place, (kind, variant) in enumerate(act.entries)
    )
    owner, is_first = head.turn.token or f"a{number}", head.turn.token is None
    match act.writer:
        case "claim" | "start over":
            return Commit(entries=entries, token=f"a{number}", claims=True)
        case "leave":
            leaves = AttemptEnd(token=owner, reason=HANDOVER, until=number % 2)
            return Commit(entries=entries, token=owner, claims=is_first, parks=leaves)
        case "claim again":
            return Commit(entries=entries, token=owner, claims=True)
        case "attempt":
            return Commit(entries=entries, token=owner, claims=is_first)
        case "return":
            return Commit(entries=entries, token=owner, claims=is_first, ends_turn=True)
        case "late":
            return Commit(entries=entries, token="late")
        case "answer":
            reply = _message(f"{number}")
            ended = StatusChanged(TaskStatus(state=_COMPLETED, message=reply), archive=True)
            answer = (*entries, Replied(reply), ended)
            return Commit(entries=answer, token=owner, claims=is_first)
        case "ask":
            asked = Asked(number % 2).record(StepId(ASK, "", number % 3))
            status = _status(TaskState.TASK_STATE_INPUT_REQUIRED)(f"{number}", number)
            asks = (*entries, asked, status)
            return Commit(entries=asks, token=owner, claims=is_first, asks=number % 2)
        case "message" | "go on":
            return _next_turn(number, is_late=act.writer == "go on")
        case _:
            if act.writer == "signal":
                entries = (Signal(str(number).encode()).record(StepId("step", "", number % 4)),)
            return Commit(entries=entries)


def _next_turn(number: int, *, is_late: bool) -> Commit:
    """The commit that opens a turn: with a message, or as a question has had no answer."""
    late = Recorded(StepId(ASK, "", number % 3), LATE, b"")
    entry = late if is_late else TurnOpened(_request(f"{number}"))
    return Commit(entries=(entry,), goes_on=is_late)


def _request(text: str) -> SendMessageRequest:
    return SendMessageRequest(message=_message(text, Role.ROLE_USER))


def _message(text: str, role: Role = Role.ROLE_AGENT) -> Message:
    return Message(message_id=text, role=role, parts=[Part(text=text)])


def _metadata(text: str, variant: int) -> Struct:
    metadata = Struct()
    metadata.fields["xy"[variant % 2]].string_value = text
    if variant % 8 == 0:
        metadata.fields["z"].string_value = text * MAX_INLINE_BYTES
    return metadata


def _status(state: TaskState) -> Callable[[str, int], Entry]:
    def changed(text: str, variant: int) -> Entry:
        """Vary the message (none, short, too large for HEAD), its archiving, and metadata."""
        said = {0: None, 1: _message(text * MAX_INLINE_BYTES)}.get(variant % 4, _message(text))
        metadata = _metadata(text, variant) if variant % 3 == 0 else None
        return StatusChanged(TaskStatus(state=state, message=said), metadata, variant % 5 > 0)

    return changed


def _artifact(text: str, variant: int) -> Entry:
    metadata = _metadata(text, variant) if variant % 3 == 0 else None
    artifact = Artifact(artifact_id="ab"[variant % 2], parts=[Part(text=text)], metadata=metadata)
    append, told, is_last = variant % 4 > 0, variant % 5 > 1, variant % 7 == 0
    return ArtifactWritten(artifact, append=append, outside_steps=told, last_chunk=is_last)


_ENTRIES: dict[str, Callable[[str, int], Entry]] = {
    "artifact": _artifact,
    "record": lambda text, at: Recorded(StepId("step", "", at % 4), "json", text.encode()),
    "message": lambda text, _: MessageAppended(_message(text)),
    "metadata": lambda text, variant: MetadataMerged(_metadata(text, variant)),
    "working": _status(TaskState.TASK_STATE_WORKING),
    "input": _status(TaskState.TASK_STATE_INPUT_REQUIRED),
    "auth": _status(TaskState.TASK_STATE_AUTH_REQUIRED),
    "canceled": _status(TaskState.TASK_STATE_CANCELED),
    "completed": _status(_COMPLETED),
}

_CONTENT = ("artifact",) * 4 + ("message", "metadata", "working")
_RECORDS = ("record", "artifact")
_PAUSES = ("input",) * 3 + ("auth",) * 2
_WRITERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("late", _CONTENT),
    *(("claim", _CONTENT),) * 6,
    ("claim again", _CONTENT),
    *(("attempt", _CONTENT),) * 4,
    *(("attempt", _PAUSES),) * 6,
    *(("message", ()),) * 6,
    *(("ask", _CONTENT),) * 3,
    ("go on", ()),
    *(("signal", ()),) * 2,
    *(("attempt", _RECORDS),) * 4,
    *(("claim", ()),) * 2,
    ("claim", _RECORDS),
    ("leave", ("record",)),
    ("start over", ()),
    *(("return", _CONTENT),) * 2,
    ("answer", ("artifact",)),
    *(("somebody", _CONTENT),) * 2,
    ("somebody", (*_PAUSES * 2, "canceled", "completed")),
)
"""Who writes, and which kinds of entries: as often as each is listed.

The first one is always fenced, so that what a shorter counterexample does without does nothing.
"""

_CHOICES = 6
SIZE = 40 * _CHOICES
"""Bytes that choose one act: its writer, how many entries, and of two of them kind and variant."""


def acts_of(choices: bytes) -> list[Act]:
    """Return the acts that the bytes choose."""
    begins = range(0, len(choices) - _CHOICES + 1, _CHOICES)
    return [_act(*choices[at : at + _CHOICES]) for at in begins]


def _act(writer: int, size: int, *choices: int) -> Act:
    name, kinds = _WRITERS[writer % len(_WRITERS)]
    chosen = zip(choices[::2], choices[1::2], strict=True)
    entries = tuple((kinds[kind % len(kinds)], variant) for kind, variant in chosen if kinds)
    return Act(name, entries[: (1, 1, 2, 0)[size % 4]])


def check_logs(examples: int) -> Counter[str]:
    """Fold random legal logs; return what they were made of.

    The logs, those that went on behind a snapshot, those in which attempts were restarted in more
    than one turn; and all restarts that went back to a record of their turn.

    Raises:
        AssertionError: a log folds to something else; the shortest one found is printed.
    """
    tally = Counter[str]()

    def checked(choices: bytes) -> None:
        history = history_of(acts_of(choices))
        note(history)
        bases = [e.base for r in history.records for e in r.entries if isinstance(e, Restarted)]
        turns = {head.turn.base for head in history.heads}
        tally["logs"] += 1
        tally["to records"] += sum(base not in turns for base in bases)
        tally["in several turns"] += len(set(bases)) > 1
        tally["snapshots"] += check(history)

    settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=examples < 1000,  # few have to be of every kind in each run
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(given(st.binary(min_size=SIZE, max_size=SIZE))(checked))()
    return tally

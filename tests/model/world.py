"""The rules applied to the model's states: each distinct question is asked once and remembered."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, cast
from unittest import mock

from a2a import types

from a2a_serverless import errors
from a2a_serverless.storage import codec
from a2a_serverless.storage.codec import event_items
from a2a_serverless.storage.table import Item
from a2a_serverless.tasks import waits
from a2a_serverless.tasks.entries import (
    LATE,
    QUESTION,
    TIMEOUT,
    UNTIL,
    ArtifactWritten,
    Entry,
    Recorded,
    Restarted,
    StatusChanged,
    StepId,
    TurnEnded,
    TurnOpened,
    encode_entries,
)
from a2a_serverless.tasks.fold import Fold, Log, Record, events_of
from a2a_serverless.tasks.head import (
    ASKED,
    ASLEEP,
    AttemptEnd,
    Head,
    Operation,
    OperationParams,
    state_name,
)
from a2a_serverless.tasks.questions import ASK, Asked, questions_of
from a2a_serverless.tasks.rules import Commit, NewTask, Step, Timing, advance, open_task, postponing
from a2a_serverless.worker.projection import Projection
from a2a_serverless.worker.steps import Journal
from tests.model import reference
from tests.model.state import Kind, Op, Seen, Stored, Write

NOW_MS = 0
LATE_MS = 10**15
"""A time at which everything is due: that a deadline has passed is a step like any other."""
TIMING = Timing()
WAKE_MS = NOW_MS + 3_600_000
"""The end of every sleep, and of the time of a question that has one."""
TOLD = "~"
"""The mark of a chunk that is said outside of steps."""
POSTPONED_MS = NOW_MS + 120_000
"""The due time of a turn that the sweeper has sent again."""
GIVE_UP_S = 24 * 3600
SENDS = 4
"""Copies of a turn that the sweeper sends at most: more would show that none of them helps."""

_NAMES = {"input": "INPUT_REQUIRED", "auth": "AUTH_REQUIRED"}
_NAMES |= {name: name.upper() for name in ("working", "completed", "canceled", "failed")}
STATES: dict[str, types.TaskState] = {
    name: getattr(types.TaskState, f"TASK_STATE_{it}") for name, it in _NAMES.items()
}


class Looks(NamedTuple):
    """What a log folds to, as far as the checks are concerned."""

    state: types.TaskState
    texts: tuple[str, ...]
    """The parts of the artifact."""
    shown: tuple[str, ...]
    """The parts of the artifact that a subscriber has put together from the events."""
    history: tuple[str, ...]
    """The texts of the history's messages."""
    answered: tuple[tuple[str, str], ...]
    """Questions that have ended a turn, each with the message that was accepted next."""
    turns: tuple[int, ...]
    """The versions at which messages were accepted."""
    answers: frozenset[int]
    """Those of messages that answer a question in the middle of the agent's code."""
    endings: int
    """How many commits moved the task to a terminal state."""
    recorded: tuple[tuple[int, str, tuple[str, ...]], ...]
    """The records that count, in order: the turns that have ended before, the step, and the parts
    of the artifact at the record."""
    is_settled: bool
    """A claim takes nothing back: no attempt has written anything since the turn's last record."""
    ended: int
    """How many turns have ended, and the agent's code with them."""
    fault: str
    """What is wrong with what the log says of its events and attempts."""


class Refusal(Enum):
    """Why a commit was not made."""

    RACE = "lost the race"
    FENCED = "fenced"
    OVER = "all is over"
    BUSY = "the task is busy"


class Turn(NamedTuple):
    """The agent's script for one turn: chunks of one artifact, maybe in steps, then an end."""

    plan: str = "c"
    """`c` is a chunk, `[` and `]` are a step's beginning and end, `z` is a sleep, `w` a wait for a
    signal, `q` a question in the middle of the code, `t` one with a time-out, and with `a` the
    agent asks for credentials and goes on."""
    end: str = "completed"

    @property
    def size(self) -> int:
        """How many chunks the artifact has from this turn."""
        return self.plan.count("c")


class World:
    """All HEADs, commits and logs met so far."""

    def __init__(self, turns: tuple[Turn, ...], attempts: int) -> None:
        self.turns = turns
        self.attempts = attempts
        self._seen: dict[Head, Seen] = {}
        self._stored: dict[tuple[object, ...], Stored] = {}
        self._steps: dict[tuple[Seen, Write, str], tuple[Seen, Stored] | Refusal] = {}
        self._looks: dict[tuple[Stored, ...], Looks] = {}
        self.verdicts: dict[tuple[Seen, tuple[Stored, ...]], str] = {}
        """What is wrong with a HEAD and its log; see `store.checked`."""
        self._scripts: dict[tuple[object, ...], tuple[str, ...]] = {}
        self._parts: dict[tuple[Seen, Stored], tuple[Item, ...]] = {}
        self._written: dict[tuple[object, ...], Seen | None] = {}

    # -- writing -------------------------------------------------------------------------------

    def seen(self, head: Head) -> Seen:
        found = self._seen.get(head)
        if found is None:
            found = self._seen[head] = Seen(head)
        return found

    def open_task(self, inc: int) -> tuple[Seen, Stored]:
        """HEAD and first commit of an incarnation."""
        request = types.SendMessageRequest(message=_message(f"{inc}.1"))
        ids: dict[str, Any] = {"scope": "s", "task_id": "t", "context_id": "c"}
        new = NewTask(**ids, incarnation=mark_of(inc), request=request, idempotency_key="k")
        step = open_task(new, now_ms=NOW_MS, timing=TIMING)
        return self._kept(step, "", "api")

    def advance(self, seen: Seen, write: Write, writer: str) -> tuple[Seen, Stored] | Refusal:
        """What the rules make of a write on a HEAD."""
        key = (seen, write, writer)
        if key not in self._steps:
            commit = Commit(
                entries=tuple(self.entry(name) for name in write.entries),
                token=write.token or None,
                claims=write.claims,
                ends_turn=write.ends,
                parks=None if write.leaves == ASKED else _left(write),
                asks=_asks(write),
                seen=write.seen,
                goes_on=any(name[0] == "L" for name in write.entries),
                commit_id=writer,
            )
            try:
                step = advance(seen.head, commit, now_ms=NOW_MS, timing=TIMING)
            except errors.FencedError:
                self._steps[key] = Refusal.FENCED
            except (errors.TaskTerminalStateError, errors.TurnFinishedError):
                self._steps[key] = Refusal.OVER
            except errors.TaskNotAcceptingMessagesError:
                self._steps[key] = Refusal.BUSY
            else:
                self._steps[key] = self._kept(step, write.token, writer)
        return self._steps[key]

    def committed(self, current: Seen | None, before: Seen, after: Seen) -> Seen | None:
        """HEAD after a commit on `before`; None: another write has come in between."""
        if current is None or current.head != before.head:
            return None
        return after

    def changed(
        self, current: Seen | None, seen: Seen, decide: Callable[..., Head | None], **about: Any
    ) -> Seen | None:
        """HEAD after `DurableStorage.change` by a process that has read `seen`; None: none.

        Its tries are one step here: what counts is the HEAD on which the last one is made.
        """
        if current is None or current.head.incarnation != seen.head.incarnation:
            return None
        key = (decide, current, *about.values())
        if key not in self._written:
            try:
                after = decide(current.head, **about)
            except errors.TaskTerminalStateError:
                after = None
            self._written[key] = None if after is None else self.seen(after)
        return self._written[key]

    def once(
        self, current: Seen | None, seen: Seen, decide: Callable[..., Head | None], **about: Any
    ) -> Seen | None:
        """HEAD after a change that is made only on the HEAD that was read; None: none."""
        if current is None or current.head != seen.head:
            return None
        return self.changed(seen, seen, decide, **about)

    def postponed(
        self, current: Seen | None, seen: Seen, *, due_at: int | None, sends: int
    ) -> Seen | None:
        """HEAD after a process outside of any attempt has moved the due time; None: refused."""
        return self.once(current, seen, postponing, due_at=due_at, sends=sends)

    def entry(self, name: str) -> Entry:
        """`+1.2.3` and `=1.2.3` are chunks, `?1.2` is a message, all others are states.

        `input:1.2` is a state with a question, `*1` an artifact from outside of any attempt. `J1`
        is a step's record, `Z1` that of a sleep, `Q1` that of a question, `T1` of one with a
        time-out, and `L1` the end of that. `W1@3` is the record of a wait by an attempt that knows
        the log up to version 3, `X1` that its time is over, and `E1` the signal that ends it. A
        chunk or state with `~` is said outside of steps.
        """
        if name[0].isupper():
            return _record(name)
        if name[0] == "?":
            return TurnOpened(types.SendMessageRequest(message=_message(name[1:])))
        if name[0] in "+=*":
            artifact_id = f"note{name}" if name[0] == "*" else "answer"
            text, is_told = name[1:].removesuffix(TOLD), name.endswith(TOLD)
            artifact = types.Artifact(artifact_id=artifact_id, parts=[types.Part(text=text)])
            return ArtifactWritten(artifact, append=name[0] == "+", outside_steps=is_told)
        about = name.partition(":")[2]
        question = _message(f"what of {about}?", types.Role.ROLE_AGENT) if about else None
        status = types.TaskStatus(state=state_of(name.removesuffix(TOLD)), message=question)
        return StatusChanged(status, archive=True, outside_steps=name.endswith(TOLD))

    def _kept(self, step: Step, token: str, writer: str) -> tuple[Seen, Stored]:
        body = encode_entries(step.entries)
        key = (step.head.version, body, token, writer, step.ended)
        if key not in self._stored:
            shared: dict[str, Any] = {"entries": step.entries, "at": 0, "ended": step.ended}
            shared |= {"version": step.head.version, "token": token or None}
            record = Record(commit_id=writer, **shared)
            self._stored[key] = Stored(record, body)
        return self.seen(step.head), self._stored[key]

    # -- reading -------------------------------------------------------------------------------

    def looks(self, log: tuple[Stored, ...]) -> Looks:
        """What a log folds to, and what its events show to a subscriber."""
        found = self._looks.get(log)
        if found is None:
            found = self._looks[log] = self._folded(log)
        return found

    def script(self, seen: Seen, log: tuple[Stored, ...]) -> tuple[str, ...]:
        """What the agent emits on the current turn, as entries: chunks and records, then the end.

        That is a question, if the code asks one. It appends every chunk; what the attempt's view of
        the turn makes of it counts. What its journal finds in the log is left out.
        """
        head = seen.head
        turn = head.turn
        known = log if turn.checkpoint or turn.signaled else log[: turn.base]
        key = known, turn.number, turn.begun, turn.restart_base
        if key not in self._scripts:
            first = head.turn.begun or head.turn.number
            ordinal = sum(turn <= first for turn in self.looks(log).turns)
            act = self.turns[min(ordinal, len(self.turns)) - 1]
            whole = _log_of(seen, log)
            kept = whole.replayed()
            fold = whole.restarted() if kept else whole.fold(head.turn.base)
            journal = Journal(kept, questions_of(whole))
            told = f"{inc_of(head)}.{ordinal}"
            emits = (*self._emitted(act, told, journal, fold, waits.kept_of(whole)),)
            end = f"{act.end}:{inc_of(head)}.{ordinal}" if act.end in _ASKS else act.end
            self._scripts[key] = emits if emits and emits[-1][0] in "QT" else (*emits, end)
        return self._scripts[key]

    def loses_signal(self, seen: Seen, log: tuple[Stored, ...]) -> bool:
        """Whether the code finds no signal where the log has one."""
        kept = waits.kept_of(_log_of(seen, log)).records
        return any(not (each.id in kept and kept[each.id].is_signal) for each in signals_in(log))

    def on_signal(self, seen: Seen, log: tuple[Stored, ...], inc: int) -> waits.SignalDecision:
        """What becomes of a signal for the first wait of the first code of an incarnation."""
        found = _log_of(seen, log) if inc_of(seen.head) == inc else None
        return waits.on_signal(found, 1, step_id_of("W1"))

    def _emitted(
        self, act: Turn, turn: str, journal: Journal, fold: Fold, kept: waits.Kept
    ) -> Iterator[str]:
        """Run the agent's code: a step that is recorded does nothing, nor what is told already."""
        view = Projection(fold, None)
        number, counts = 0, Counter[str]()
        is_found, is_in_step = False, False
        for step in act.plan:
            if step == "[":
                counts["J"] += 1
                is_in_step = True
                is_found = journal.found(step_id_of(f"J{counts['J']}")) is not None
            elif step == "]":
                if not is_found:
                    yield f"J{counts['J']}"
                is_found, is_in_step = False, False
            elif step in _AWAITED:
                counts[_AWAITED[step]] += 1
                name = f"{step.upper()}{counts[_AWAITED[step]]}"
                if missing := _missing(name, journal, kept):
                    yield missing
                if missing and step in "qt":
                    return
            elif step == "a":
                if not journal.is_emitted(None):
                    yield f"auth{TOLD}"
            else:
                number += 1
                parts = [types.Part(text=f"{turn}.{number}")]
                chunk = types.Artifact(artifact_id="answer", parts=parts)
                if is_found or (not is_in_step and journal.is_emitted(chunk)):
                    continue
                event = types.TaskArtifactUpdateEvent(task_id="t", artifact=chunk, append=True)
                (entry,) = view.entries_of(event)
                how = "+" if cast("ArtifactWritten", entry).append else "="
                yield f"{how}{turn}.{number}{'' if is_in_step else TOLD}"

    def items(self, head: Seen, stored: Stored) -> tuple[Item, ...]:
        """The items of a commit: two, as if it were larger than one may be."""
        key = (head, stored)
        if key not in self._parts:
            record = stored.record
            names = ("entries", "token", "commit_id", "ended")
            same: dict[str, Any] = {name: getattr(record, name) for name in names}
            step = Step(head=replace(head.head, version=record.version), at=0, **same)
            half = max(1, -(-len(stored.body) // 2))
            with mock.patch.object(codec, "PART_BYTES", half):
                self._parts[key] = tuple(event_items(step, stored.body))
        return self._parts[key]

    def _folded(self, log: tuple[Stored, ...]) -> Looks:
        fold = Fold("t", "c")
        shown, turns, answered = list[str](), list[int](), list[tuple[str, str]]()
        answers, faults, endings, asks = set[int](), list[str](), 0, False
        status = types.TaskStatus()
        owner: str | None = None
        for stored in log:
            record, ended = stored.record, stored.record.ended
            is_its_own = ended is None or ended.token == owner
            if not is_its_own or (ended and ended.correlation_id not in ("", owner)):
                faults.append("an attempt's end is told of another attempt")
            fold.add(record)
            is_over = any(isinstance(entry, TurnEnded) for entry in record.entries)
            owner = None if is_over else record.token or owner
            for entry in record.entries:
                if isinstance(entry, TurnOpened):
                    turns.append(record.version)
                    answers |= {record.version} if asks else set()
                    if status.state == types.TaskState.TASK_STATE_INPUT_REQUIRED:
                        answered.append((_text(status.message), _text(entry.request.message)))
                elif isinstance(entry, StatusChanged):
                    status = entry.status
                    endings += state_name(entry.status.state)[11:].lower() in _ENDS
            if not signals_in((stored,)):  # the task still waits for its client
                asks = record.token is not None and _asks_in(record)
            for event in events_of(record, fold):
                if isinstance(event, types.TaskArtifactUpdateEvent) and _is_answer(event.artifact):
                    texts = [part.text for part in event.artifact.parts]
                    shown = [*shown, *texts] if event.append else texts
        answer = fold.artifacts.get("answer", types.Artifact())
        records = [stored.record for stored in log]
        recorded = tuple(_recorded(records))
        if len({step[:2] for step in recorded}) < len(recorded):
            faults.append("a recorded step has run again")
        parts = tuple(part.text for part in answer.parts)
        told = tuple(_text(message) for message in fold.history)
        said = parts, tuple(shown), told, tuple(answered), tuple(turns), frozenset(answers)
        kept = endings, recorded, _is_settled(records), sum(map(_ends_code, records))
        return Looks(fold.status.state, *said, *kept, faults[0] if faults else "")


def _is_answer(artifact: types.Artifact) -> bool:
    """Whether it is the agent's artifact, not one from outside."""
    return bool(artifact.artifact_id == "answer")


def _log_of(seen: Seen, log: tuple[Stored, ...]) -> Log:
    return Log(head=seen.head, records=tuple(stored.record for stored in log))


def _recorded(records: Sequence[Record]) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield the records that no restart takes back, by the plain reference."""
    ended = 0
    texts: tuple[str, ...] = ()
    for record in reference.counting(records):
        for entry in record.entries:
            if isinstance(entry, ArtifactWritten) and _is_answer(entry.artifact):
                texts = (*(texts if entry.append else ()), entry.artifact.parts[0].text)
            elif isinstance(entry, Recorded) and not entry.is_signal:
                yield ended, _name_of(entry), texts
        ended += _ends_code(record)


def _asks_in(record: Record) -> bool:
    """Whether a commit asks in the middle of the agent's code."""
    return any(isinstance(each, Recorded) and each.form == QUESTION for each in record.entries)


def _ends_code(record: Record) -> bool:
    """Whether the agent's code is over with a commit, and not only its turn."""
    return any(isinstance(each, TurnEnded) for each in record.entries) and not _asks_in(record)


def _is_settled(records: Sequence[Record]) -> bool:
    """Whether the open turn stands at a record, or at a claim that has gone back to one."""
    has_records = is_settled = False
    for record in records:
        kinds = {type(entry) for entry in record.entries}
        if TurnEnded in kinds:
            has_records = is_settled = False
        elif record.token is not None and Recorded in kinds:
            has_records = is_settled = True
        elif record.token is not None and kinds:
            is_settled = has_records and kinds == {Restarted, StatusChanged}
    return is_settled


def _left(write: Write) -> AttemptEnd | None:
    """How a commit leaves its turn; its end has the attempt's name, so that it can be told."""
    if not write.leaves:
        return None
    until = WAKE_MS if write.leaves == ASLEEP else 0
    token = write.token
    return AttemptEnd(token=token, reason=write.leaves, correlation_id=token, until=until)


def _asks(write: Write) -> int | None:
    """The time at which the code goes on without an answer to what a commit asks."""
    if write.leaves != ASKED:
        return None
    return WAKE_MS if any(name[0] == "T" for name in write.entries) else 0


@cache
def step_id_of(name: str) -> StepId:
    """The identity of the step, sleep or wait whose record has this name."""
    named = {"J": "step", "Z": waits.SLEEP} | dict.fromkeys(_OF_WAITS, "wait")
    return StepId(named.get(name[0], ASK), "", int(name[1:].partition("@")[0]))


def _missing(name: str, journal: Journal, kept: waits.Kept) -> str:
    """What the code emits where it waits; nothing, if the wait is over."""
    step_id = step_id_of(name)
    if name[0] == "W":
        wait = kept.records.get(step_id)
        return name if wait is None else name.replace("W", "X") if wait.form == UNTIL else ""
    found = journal.found(step_id)
    if name[0] == "Z":
        return "" if found else name
    is_over = found is not None and found.form == LATE
    return "" if is_over or step_id in journal.questions.answers else name


def _record(name: str) -> Recorded:
    step_id, kind = step_id_of(name), name[0]
    forms = {"J": ("json", b"1"), "L": (LATE, b""), "X": (TIMEOUT, b"")}
    match kind:
        case "Q" | "T":
            return Asked(WAKE_MS if kind == "T" else 0).record(step_id)
        case "Z" | "W":
            return waits.Until(WAKE_MS, seen=int(name.partition("@")[2] or 0)).record(step_id)
        case "E":
            return waits.Signal(b"").record(step_id)
    return Recorded(step_id, *forms[kind])


def signals_in(log: tuple[Stored, ...]) -> list[Recorded]:
    """The signals from outside in a log."""
    entries = [entry for stored in log for entry in stored.record.entries]
    return [entry for entry in entries if isinstance(entry, Recorded) and entry.is_signal]


def _name_of(entry: Recorded) -> str:
    names = {"step": "J", waits.SLEEP: "Z", ASK: "L" if entry.form == LATE else "Q"}
    names["wait"] = "W" if entry.form == UNTIL else "X"
    if entry.form == QUESTION and Asked.of(entry).until:
        names[ASK] = "T"
    return f"{names[entry.id.name]}{entry.id.number}"


_AWAITED = {"z": "Z", "w": "W", "q": "Q", "t": "Q"}
"""What the code waits for: its letter in a plan, and in the names of records."""
_OF_WAITS = "WXE"
"""The first letters of what the log has of a wait for a signal."""
_ENDS = {"completed", "canceled", "failed", "rejected"}
_ASKS = {"input", "auth"}


def state_of(name: str) -> types.TaskState:
    return STATES[name.partition(":")[0]]


def _text(message: types.Message) -> str:
    return message.parts[0].text if message.parts else ""


@cache
def params_of(op: Op) -> OperationParams:
    """The parameters of an operation as the rules know them."""
    return OperationParams.model_construct(
        scope="s", task_id="t", incarnation=mark_of(op.inc), turn=op.turn, copy_number=op.copy
    )


@cache
def operation_of(op: Op) -> Operation:
    return Operation.model_construct(operation=op.kind, params=params_of(op))


def op_of(kind: Kind, params: OperationParams) -> Op:
    """The model's name for an operation."""
    return Op(kind, int(params.incarnation[1:]), params.turn, params.copy_number)


def mark_of(inc: int) -> str:
    return f"i{inc}"


def inc_of(head: Head) -> int:
    return int(head.incarnation[1:])


def summary(seen: Seen | None) -> str:
    """HEAD in half a line."""
    if seen is None:
        return "no task"
    head = seen.head
    state = state_name(head.state)[11:].lower().replace("_", "-")
    turn = f"turn {head.turn.number} {'open' if head.turn.is_open else 'finished'}"
    queued = f", next {head.next_turn}" if head.next_turn else ""
    owner = f", owner {head.turn.token}" if head.turn.token else ""
    due = "" if head.due_at is None else f", due at {head.due_at / 1000:g} s"
    due += ", to be canceled" if head.is_being_canceled else ""
    return f"{head.incarnation} v{head.version} {state}, {turn}{queued}{owner}{due}"


def _message(text: str, role: types.Role = types.Role.ROLE_USER) -> types.Message:
    return types.Message(message_id=text, role=role, parts=[types.Part(text=text)])

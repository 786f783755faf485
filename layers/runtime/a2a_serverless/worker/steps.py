"""The steps of a turn: what is recorded, what is under way, and what is said once more.

A step's result is an entry of the log. When the code of a turn runs again, in another attempt, each
step that is recorded returns its result instead of running. What the code says outside of steps is
the same in each attempt, so that the log keeps it and it is not said again. What a step says
belongs to the step: it is kept with its record.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from a2a.types import Artifact, TaskArtifactUpdateEvent
from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError

from a2a_serverless.errors import A2AServerlessError
from a2a_serverless.storage.contexts import key_twice
from a2a_serverless.tasks.blobs import comparable
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Recorded,
    StatusChanged,
    StepId,
    copied,
)
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.identity import digest, unicode_of
from a2a_serverless.tasks.questions import ASK, Questions, id_on_parts
from a2a_serverless.tasks.waits import SLEEP, Kept, Until
from a2a_serverless.values import dataclass
from a2a_serverless.worker.failures import (
    RecordTooLargeError,
    RetryLater,
    WrongCallError,
    expect,
    is_final,
    is_seconds,
    json_instead,
)

MAX_RESULT_BYTES: Final = 1_000_000
"""The longest result of a step without a store of blobs; a commit takes 4 MB."""
MAX_OFFLOADED_BYTES: Final = 50_000_000
"""The longest result of a step with one."""
MAX_NAME: Final = 200
"""The most characters of a step's name, and of its key."""
PARK_S: Final = 60.0
"""Seconds of a wait from which on no process waits. The sweeper wakes the turn, once a minute."""
HAND_OVER_S: Final = 60.0
"""Seconds before the end of an attempt's time from which on it leaves its turn at a record."""
MAX_HAND_OVER_SHARE: Final = 0.2
"""These seconds are at most this share of the attempt's time."""
CANCELLED: Final = "cancelled"
"""The form of the record of a step that the agent has cancelled after clients had seen of it."""
IN_TASK: Final = "in a task"
"""The key of those without one in the tasks that the agent has started."""
STATE: Final = "ctx.load_context"
"""The name of the record of the conversation's state."""
PAUSE: Final = "ctx.pause"
"""The name of the record of what a framework's run goes on with behind a question."""

RANDOM: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
"""The id of an artifact that the SDK has named."""


class TurnParked(BaseException):
    """The turn leaves this process, and goes on in another one: no cancel, and no failure.

    Calls of `ctx` raise it when the turn falls asleep or is handed over. `finally` and `async with`
    run; `except Exception` and `except asyncio.CancelledError` do not see it. Let it pass: each
    further call of `ctx` raises it again, and a second later what still runs is cancelled. What
    another service does for the task goes on meanwhile; `Worker.cancel` is where it is stopped.

    >>> try:
    ...     await ctx.sleep(3600)
    ... except TurnParked:
    ...     connection.close()
    ...     raise
    """


ENDINGS: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit, TurnParked)
"""What ends a step's caller. Anything else that a step raises is a failure of the step, also what a
framework does not derive from Exception."""


class StepError(Exception):
    """A step has failed, now or in an earlier attempt: the same error in both.

    In the attempt in which the step has run, the cause is the exception that it has raised.

    >>> try:
    ...     await ctx.step("pay", pay, 12.5)
    ... except StepError as error:
    ...     await ctx.fail(f"It was not paid: {error.kind}")
    """

    def __init__(self, name: str, kind: str, text: str) -> None:
        super().__init__(f"step {name!r} failed with {kind}: {text}")
        self.name = name
        self.kind = kind
        """The class of the exception, such as `ValueError`."""
        self.text = text

    @classmethod
    def of(cls, step_id: StepId, error: BaseException) -> StepError:
        """Return the error of a step that has raised."""
        try:
            text = str(error)[:MAX_NAME]
        except Exception:  # noqa: BLE001 - of the agent's own class
            text = "(its text cannot be read)"
        return cls(step_id.name, type(error).__name__, text)

    def record(self, step_id: StepId) -> Recorded:
        """Return the record of a step that has failed with it."""
        return Recorded(step_id, "error", json.dumps([self.kind, self.text]).encode())


class ParkedError(Exception):
    """The attempt has parked its turn at a record; the turn goes on in another one."""


class NonDeterminismError(A2AServerlessError):
    """The agent's code has said something else than in an earlier attempt: the turn starts over.

    Args:
        what: what it has done, as in "The code has …".
        otherwise: a way out beside that of all code, as in "do this or …"; empty without one.
    """

    def __init__(self, what: str, otherwise: str = "") -> None:
        super().__init__(
            f"The agent's code has run again and {what}, so the turn starts over: take what may"
            f" differ from run to run, such as the time or a random number, from a step{otherwise}."
        )
        self.what = what
        self.otherwise = otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a step is tried, and the waits between two tries, in seconds.

    The wait doubles from `base_s` up to `cap_s`. A wait of a minute or more holds no worker.

    >>> await ctx.step("search", search, "Lisbon", retry=Retry(tries=5, base_s=2, cap_s=60))

    Raises:
        WrongCallError: `tries` is no number from 1 on, or a time no number of seconds.
    """

    tries: int = 1
    base_s: float = 1
    cap_s: float = 300

    def __post_init__(self) -> None:
        way = "`Retry(tries=5, base_s=2, cap_s=300)`"
        expect(
            self.tries,
            lambda it: isinstance(it, int) and it >= 1,
            "Retry takes tries from 1 on",
            way,
        )
        for seconds in (self.base_s, self.cap_s):
            expect(seconds, is_seconds, "Retry takes seconds from 0 on", way)

    def wait_s(self, tried: int, error: BaseException) -> float | None:
        """Return the seconds until the next try after `tried` of them; None: there is none."""
        if tried >= self.tries or is_final(error):
            return None
        asked_s = error.after_s if isinstance(error, RetryLater) else 0
        return max(asked_s, min(self.cap_s, self.base_s * 2.0 ** min(tried - 1, 32)))


ONCE: Final = Retry()


@dataclass(eq=False, slots=True)
class ActiveStep:
    """A step that is under way."""

    id: StepId
    has_streamed: bool = False
    """True if clients may have seen a chunk of it that its record has to keep."""
    held: list[TaskArtifactUpdateEvent] = field(default_factory=list)
    """Its artifacts, while other steps run beside it: they go out with its record."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often it has called other agents, by their names and the keys of the calls."""
    caught: frozenset[StepId] = frozenset()
    """The steps that had failed before the agent began it: it has gone on after them."""

    def pause(self, journal: Journal) -> None:
        """Be no more under way for what waits until nothing is: it waits for its next try."""
        journal.active.discard(self)
        self.over.set()

    def go_on(self, journal: Journal) -> None:
        """Be under way again, after `pause`."""
        journal.active.add(self)
        self.over = asyncio.Event()


_current: ContextVar[ActiveStep | None] = ContextVar("step", default=None)


def current_step() -> ActiveStep | None:
    """Return the step in which the calling code runs; None outside of steps."""
    running = _current.get()
    return None if running is None or running.over.is_set() else running


outside: ContextVar[Callable[[Any], bool] | None] = ContextVar("outside", default=None)
"""Gets what code outside of steps emits, and returns True if it lets a step say it."""


@contextmanager
def active_step(
    journal: Journal, step_id: StepId, *, at_home: Callable[[Callable[[], None]], None]
) -> Iterator[ActiveStep]:
    """Run the block as a step; `at_home` makes a call in the loop of the turn."""
    running = ActiveStep(step_id, caught=journal.failures())
    journal.active.add(running)
    token = _current.set(running)

    def end() -> None:
        journal.active.discard(running)
        running.over.set()

    try:
        yield running
    finally:
        _current.reset(token)
        at_home(end)


class Codec(NamedTuple):
    """How the results of a step are recorded: as bytes, as JSON, or as the JSON of a type."""

    name: str
    type: TypeAdapter[Any] | None = None

    @classmethod
    def of(cls, kind: Any) -> Codec:
        """Return the codec of results of a type; None: a JSON value, or bytes."""
        if kind is None:
            return cls("json")
        try:
            return cls("json", TypeAdapter(kind))
        except PydanticUserError as error:
            reason = str(error).partition("\n")[0]
            raise WrongCallError(
                f"ctx.step takes as `type` what pydantic reads and writes, and got {kind!r}:"
                f" {reason}"
            ) from error

    def encoded(self, step_id: StepId, result: Any, most: int = MAX_RESULT_BYTES) -> Recorded:
        """Return the record of a result of at most so many bytes.

        Raises:
            WrongCallError: the result cannot be recorded; the message says how it can.
        """
        if isinstance(result, bytes) and self.type is None:
            entry = Recorded(step_id, "bytes", result)
        else:
            entry = Recorded(step_id, self.name, self._json(step_id, result))
            if (key := key_twice(entry.value)) is not None:
                raise WrongCallError(
                    f"Step {step_id.name!r} has returned a dict of which two keys are {key!r} as"
                    " text, and a record is JSON: give each another text."
                )
        if len(entry.value) > most:
            raise RecordTooLargeError(
                f"The result of step {step_id.name!r} has {len(entry.value):,} bytes, and a record"
                f" has at most {most:,}: store it elsewhere, for instance as an"
                " artifact or in S3, and return its place."
            )
        return entry

    def _json(self, step_id: StepId, result: Any) -> bytes:
        if self.type is not None:
            try:
                made = self._typed(self.type.validate_python(result))
                self.type.validate_json(made)  # not a number, for instance, becomes null
            except ValueError as error:  # a ValidationError, or one of writing JSON
                reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
                raise WrongCallError(
                    f"Step {step_id.name!r} has returned what is not of its `type`, or what that"
                    f" does not write as JSON and read again: {reason}."
                ) from error
            return made
        try:
            return json.dumps(result, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            way = f"pass `type={type(result).__name__}`" if isinstance(result, BaseModel) else ""
            raise WrongCallError(
                f"Step {step_id.name!r} has returned what cannot be recorded ({error}):"
                f" {way or json_instead(result)}."
            ) from error

    def _typed(self, value: Any) -> bytes:
        assert self.type is not None  # noqa: S101 - asked by the caller
        try:
            return self.type.dump_json(value)
        except ValueError as error:  # pydantic_core.PydanticSerializationError is one
            if "surrogates not allowed" not in str(error):
                raise
            return json.dumps(unicode_of(self.type.dump_python(value, mode="json"))).encode()

    def decoded(self, entry: Recorded) -> Any:
        """Return the result in a record.

        Raises:
            StepError: the record is of a step that has failed.
            WrongCallError: the record does not fit the type that the step has today.
        """
        if entry.form == "error":
            raise StepError(entry.id.name, *json.loads(entry.value))
        if entry.form == "bytes":
            return entry.value
        if self.type is None:
            return json.loads(entry.value)
        try:
            return self.type.validate_json(entry.value)
        except ValidationError as error:
            raise WrongCallError(
                f"The record of step {entry.id.name!r} does not fit its type any more, as the code"
                f" has changed since: give the step another name. {error.errors()[0]['msg']}."
            ) from error


_Task: TypeAlias = "asyncio.Task[Any] | None"


class Journal:
    """The steps of one attempt, with what earlier attempts of its turn have left in the log.

    Args:
        replayed: the commits of earlier attempts that were not taken back.
        questions: what the code has asked its client.
    """

    def __init__(self, replayed: Iterable[Record] = (), questions: Questions | None = None) -> None:
        self.questions = questions or Questions()
        self.passed: set[StepId] = set()
        """The questions behind which the code has gone on in this attempt."""
        self._kept = Kept()
        self._replayed = self._kept.records
        self._emitted: defaultdict[str, deque[bytes]] = defaultdict(deque)
        self._random: dict[str, None] = {}
        """The artifacts of the log that are named at random, and were not said again yet."""
        self._named_anew: dict[str, str] = {}
        """Their ids in the log, by those that this attempt has given them."""
        self.said: Counter[str] = Counter()
        """How often this attempt has said something of an artifact outside of steps, or a status,
        whose key is empty."""
        for record in replayed:
            for entry in record.entries:
                self._keep(entry, record.version)
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._strands: dict[tuple[str, str], tuple[_Task, frozenset[_Task]]] = {}
        """The task that has used a name and key last, and those that were there beside it."""
        self._last: dict[_Task, StepId] = {}
        """The last step of each asyncio task."""
        self._waiting: dict[StepId, Recorded] = {}
        self.active: set[ActiveStep] = set()
        self.calls: dict[tuple[str, str], Any] = {}
        """The Remotes of the agents and tasks for which steps under way wait, without a record."""
        self.called: dict[StepId, Any] = {}
        """The Remotes of all other calls in this process, by the ids of their outcomes."""

    def __len__(self) -> int:
        return len(self._replayed)

    def _keep(self, entry: object, version: int) -> None:
        if isinstance(entry, Recorded):
            self._kept.add(entry, version)
        elif isinstance(entry, ArtifactWritten) and entry.outside_steps:
            artifact_id = entry.artifact.artifact_id
            self._emitted[artifact_id].append(_content_of(entry.artifact))
            if RANDOM.fullmatch(artifact_id):
                self._random[artifact_id] = None
        elif isinstance(entry, StatusChanged) and entry.outside_steps:
            self._emitted[""].append(b"")

    def recall(self, kept: Kept) -> None:
        """Know the records of a log for a cancel, without what the code has said beside them."""
        self._replayed |= kept.records

    def id_of(self, name: str, key: str = "") -> StepId:
        """Return the identity of the next step of this name and key.

        A call of the runtime's own has its name, and behind a space that of the agent's code.

        Raises:
            WrongCallError: a name or key is none, or two asyncio tasks use the same ones, so that
                their order may be another one in the next attempt.
        """
        call, space, own = "ctx.step", " ", name
        if str(name).startswith("ctx."):  # of the runtime's own calls, some of which have no name
            call, space, own = name.partition(" ")
        named = "'search', " if space else ""
        way = f"`await {call}({named}…, key='page 3')`"
        for what, given, least in (("name", own, len(space)), ("key", key, 0)):
            takes = f"{call} takes a text as its {what}, of {least} to {MAX_NAME} characters"
            expect(given, str, takes, way)
            if not least <= len(given) <= MAX_NAME:
                raise WrongCallError(f"{takes}, and got {len(given):,}: {way}.")
        if not self._keeps_order(name, key):
            raise WrongCallError(
                f"Two asyncio tasks of the agent run {name!r}, and their order may be another one"
                f" in the next attempt: tell them apart by `{'id' if name == ASK else 'key'}=…`."
            )
        self._numbers[name, key] += 1
        step_id = StepId(name, key, self._numbers[name, key])
        if name != SLEEP:
            self._last[asyncio.current_task()] = step_id
        return step_id

    def sleep_id(self, key: str, *, in_main: bool, seconds: float) -> StepId | None:
        """Return the identity of the next sleep of the calling task; None: it has none.

        In the agent's own task its order tells it from others. In another one without a key, a
        short sleep is known by the last step of that task.

        Raises:
            WrongCallError: as `id_of`.
        """
        if in_main or key:
            return self.id_of(SLEEP, key)
        if seconds >= PARK_S:
            return self.id_of(SLEEP, IN_TASK)
        last = self._last.get(asyncio.current_task())
        return None if last is None else self.id_of(SLEEP, digest("behind", *map(str, last)))

    def _keeps_order(self, name: str, key: str) -> bool:
        """Return True if the calling task is the only one that uses a name and key.

        Another one may have used them before this one was created, if it has ended.
        """
        try:
            task = asyncio.current_task()
        except RuntimeError as error:
            raise WrongCallError(
                f"ctx.step({name!r}, …) is called where no event loop runs: await it in an async"
                " function."
            ) from error
        earlier, beside = self._strands.get((name, key), (task, frozenset()))
        if task is not earlier and not (earlier is not None and earlier.done()):
            return False
        if task in beside:
            return False
        if task is not earlier or not beside:
            self._strands[name, key] = task, frozenset(asyncio.all_tasks()) - {task}
        return True

    def follow(self, step_id: StepId) -> None:
        """Let the calling task use a step's name and key next, if that step's task has ended.

        It has what the step returned, so the order is the same each time, unless others have used
        the name and key since.
        """
        name, key, number = step_id
        earlier, _ = self._strands[name, key]
        if number == self._numbers[name, key] and earlier is not None and earlier.done():
            self._strands[name, key] = asyncio.current_task(), frozenset()

    def found(self, step_id: StepId) -> Recorded | None:
        """Return the record of a step; None if it has none."""
        return self._waiting.get(step_id) or self._replayed.get(step_id)

    def ids(self, name: str) -> list[StepId]:
        """Return the steps that have a record and a name of which this is the first word."""
        ids = [*self._replayed, *self._waiting]
        return [each for each in ids if each.name.partition(" ")[0] == name]

    def failures(self) -> frozenset[StepId]:
        """Return the steps that have failed, or were cancelled, and are not recorded."""
        waiting = self._waiting.values()
        return frozenset(each.id for each in waiting if each.form in ("error", CANCELLED))

    def record(self, entry: Recorded, caught: frozenset[StepId]) -> tuple[Recorded, ...]:
        """Take the record of a step; return it behind those that have waited for it (`waiting`)."""
        self._kept.add(entry, 0)
        return (*self.waiting(caught), entry)

    @property
    def keeps_state(self) -> bool:
        """Return True if the conversation's state that the turn has loaded is recorded."""
        return any(step_id.name == STATE for step_id in self._replayed)

    @property
    def delayed(self) -> list[Recorded]:
        """Return the records that are stored with the next one, or not at all."""
        return [*self._waiting.values()]

    def delay(self, entry: Recorded) -> None:
        """Take a record that is stored with the next one, or not at all."""
        self._waiting[entry.id] = entry

    def end_sleep(self, step_id: StepId, until_ms: int) -> None:
        """Take the record of a sleep that is over; with those right before it, it is one."""
        earlier = self._waiting.pop(step_id._replace(number=step_id.number - 1), None)
        before = 0 if earlier is None else Until.of(earlier).before + 1
        self.delay(Until(until_ms, before).record(step_id))

    def hear(self, records: Iterable[Record]) -> None:
        """Take the signals from outside among the commits that have come since the log was read."""
        for record in records:
            for entry in record.entries:
                if isinstance(entry, Recorded) and entry.is_signal:
                    self._kept.add(entry, record.version)

    def is_signaled(self, step_id: StepId, seen: int) -> bool:
        """Return True if a signal for a step was heard that is newer than the version `seen`."""
        return self._kept.signals.get(step_id, 0) > seen

    def take_back(self, step_id: StepId) -> None:
        """Forget the delayed record of a step, if it has one."""
        self._waiting.pop(step_id, None)

    def waiting(self, caught: frozenset[StepId]) -> tuple[Recorded, ...]:
        """Return the delayed records for the next commit, and keep them.

        A failure that is not among those `caught` waits on: the agent was in a step or a sleep
        already, and cannot have gone on after it. If it ends the attempt, the next one has to try
        the failed step again.
        """
        taken = self._waiting.keys() - (self.failures() - caught)
        waiting = tuple(self._waiting.pop(each) for each in [*self._waiting] if each in taken)
        for entry in waiting:  # not in the place of a signal that was heard meanwhile
            self._kept.add(entry, 0)
        return waiting

    def replayed_id(self, artifact: Artifact, *, is_new: bool) -> str:
        """Return the id of an artifact; that of the log, if each attempt names it at random.

        It is the first one of the log that says the same outside of steps, and was not said again.
        `is_new`: the attempt has said nothing of it, and says it outside of steps.
        """
        given = artifact.artifact_id
        if given in self._emitted:  # the agent has named it
            self._random.pop(given, None)
        elif is_new and self._random and given not in self._named_anew and RANDOM.fullmatch(given):
            alike = copied(artifact)
            for kept in self._random:
                alike.artifact_id = kept
                if self._emitted[kept][0] == _content_of(alike):
                    self._named_anew[given] = kept
                    del self._random[kept]
                    break
        return self._named_anew.get(given, given)

    def is_emitted(self, artifact: Artifact | None) -> bool:
        """Return True if the log keeps what the code says outside of steps; None: a status.

        Raises:
            NonDeterminismError: the log keeps something else in its place.
        """
        name = "" if artifact is None else artifact.artifact_id
        self.said[name] += 1
        kept = self._emitted.get(name)
        if not kept:
            return False
        if artifact is not None and kept[0] != _content_of(artifact):
            raise NonDeterminismError(
                f"said another content of artifact {artifact.artifact_id!r}{_OUTSIDE}"
            )
        kept.popleft()
        return True

    def skip(self, said: Mapping[str, int]) -> None:
        """Take as said again what the code has said before a record behind which it goes on."""
        for name, count in said.items():
            self._random.pop(name, None)
            for _ in range(min(count, len(self._emitted[name]))):
                self._emitted[name].popleft()

    def check_all_emitted(self) -> None:
        """Check, before the turn ends, that the code has said all artifacts that the log keeps.

        Raises:
            NonDeterminismError: it has not, or has not asked a question that was answered.
        """
        self.check_all_asked()
        missing = [one for one, contents in self._emitted.items() if one and contents]
        if missing:
            raise NonDeterminismError(f"said nothing of artifact {missing[0]!r}{_OUTSIDE}")

    def check_all_asked(self) -> None:
        """Check that the code has asked again what its client has answered.

        Raises:
            NonDeterminismError: it has not.
        """
        missing = [each for each in self.questions.answers if each not in self.passed]
        if missing:
            name = id_on_parts(missing[0])
            raise NonDeterminismError(
                f"not asked the question {name!r}, which its client has answered",
                ", and let newer code ask it, too, under the same id",
            )


_OUTSIDE: Final = ", outside of steps"


def _content_of(artifact: Artifact) -> bytes:
    return hashlib.sha256(comparable(artifact).SerializeToString(deterministic=True)).digest()


def key_of(scope: str, task_id: str, turn: int, step_id: StepId) -> str:
    """Return a text that names a step wherever and however often it runs: an idempotency key."""
    return digest("step", scope, task_id, str(turn), *map(str, step_id))


def seconds_of(seconds: float) -> float:
    """Return the seconds of a sleep.

    Raises:
        WrongCallError: they are no number from 0 on.
    """
    takes = "ctx.sleep takes seconds, a number from 0 on"
    expect(seconds, is_seconds, takes, "`await ctx.sleep(3600)`")
    return float(seconds)


def seconds_until(when: datetime, now_ms: int) -> float:
    """Return the seconds from now to a time; 0 if it is past.

    Raises:
        WrongCallError: it is no time with a time zone.
    """
    expect(
        when,
        lambda it: isinstance(it, datetime) and it.tzinfo is not None,
        "ctx.sleep_until takes a datetime with a time zone",
        "`datetime.now(UTC) + timedelta(hours=2)`",
    )
    return max(0.0, when.timestamp() - now_ms / 1000)

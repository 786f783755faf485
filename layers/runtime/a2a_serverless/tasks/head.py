"""HEAD, the small current state of a task; the task's states; and operations, which name its turns.

Every commit rewrites HEAD. An operation is a message on the queue: it has ids, never content.

A2A 1.0.1, section 4.1.3, says what the states mean for a task and its turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Final, Literal, Self, TypeAlias

from a2a.types import TaskState
from pydantic import BaseModel, ConfigDict, Field

from a2a_serverless.tasks.identity import Scope, digest, first_task_id
from a2a_serverless.tasks.usage import Used
from a2a_serverless.values import dataclass

TERMINAL = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_REJECTED,
    }
)
"""The task has ended: no transition leaves these states."""

FAILED = frozenset({TaskState.TASK_STATE_FAILED, TaskState.TASK_STATE_REJECTED})
"""The task has ended without its work."""

INTERRUPTED = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})
"""The task waits for its client: a message may open the next turn."""

RESTING = TERMINAL | INTERRUPTED
"""The task has ended, or waits for its client."""

KNOWN = RESTING | {TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING}

FORMAT: Final = 3
"""The format of stored tasks that this release knows, see the page `format`."""
RECORDS: Final = 2
"""The format that a release has to know to run a turn with records; others would run its steps
again."""
QUESTIONS: Final = 3
"""The format that a release has to know to go on with code that has asked its client; others would
begin that code again."""

NEWER: Final = 1_000_000
"""A format that no release of this code will know: the task can be read and not written."""

MAX_INLINE_BYTES = 4096
"""A larger status or metadata stays in the log, and HEAD points there: HEAD is rewritten often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelMark:
    """The first request to cancel the task: when (milliseconds), and by which user."""

    at: int
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt came to an end without ending its turn.

    `reason` is the name of an error, one of a few fixed words, or what the turn waits for. The log
    of the process says more under `correlation_id`. Texts have no control characters.
    """

    token: str
    """The attempt."""
    reason: str = ""
    correlation_id: str = ""
    at: int | None = None
    """The time at which it ended, in milliseconds; None: it was lost, or its time is unknown."""
    until: int = 0
    """The time before which the turn does not start again, in milliseconds; 0: at once."""
    place: str = ""
    """`FILE, line N, in FUNCTION` from which its error came; empty: it is unknown."""
    message: str = ""
    """The beginning of the error's text, if the settings keep it."""


class FailedBy(StrEnum):
    """Why a task has failed: the values of the dimension `reason` of `TasksFailed`."""

    AGENT = "agent"
    """The agent has ended its task so."""
    RAISED = "raised"
    """The agent raised, in its last attempt."""
    AT_FAULT = "at_fault"
    """The agent did what no task can hold."""
    REFUSED = "refused"
    """A service refused what the agent asks for, such as a model its key."""
    UNAVAILABLE = "unavailable"
    """A service that the agent or the runtime needs was away for too long."""
    BUDGET = "budget"
    DEADLINE = "deadline"
    """The last attempt needed longer than its worker had."""
    NON_DETERMINISM = "non_determinism"
    """The agent's code did not repeat what its steps had recorded."""
    STALE = "stale"
    """Other turns changed the conversation's state meanwhile, each time."""
    USED_UP = "used_up"
    """The last attempt did not come to its end: its worker has died."""
    TOO_LONG = "too_long"
    """The turn was open for longer than a turn may be."""
    NEVER_STARTED = "never_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncounted:
    """The starts of the agent on the current turn that use up no attempt."""

    faults: int = 0
    """Starts that ended with a fault that passes, such as a model that does not answer."""
    waited: int = 0
    """Milliseconds that the turn was told to wait after such ends."""
    interruptions: int = 0
    """Starts whose worker was told to stop, or before whose end another task has changed the
    conversation's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a task has failed or was rejected, as far as the runtime knows."""

    reason: str = ""
    """The name of an error, or `NOT_STARTED`; empty: the agent has said so itself."""
    correlation_id: str = ""
    """What its client was given, if anything: it leads to the line of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotName:
    """The snapshot that a reader gets in the place of the log up to a version."""

    version: int = 0
    """0: there is none."""
    digest: str = ""
    length: int = 0
    """Its bytes."""
    size: int = 0
    """`Head.size` at that version."""


NOT_STARTED: Final = "not started"
"""The reason of a failure before any attempt could claim the task's turn."""

Trouble: TypeAlias = Literal["failed", "rejected", "untold"]
"""What a person may want to know of although it is over; `untold` are notifications of webhooks
that were given up."""
Wait: TypeAlias = Literal["again", "asleep", "conversation", "owed", "retry", "share"]
"""What an open turn waits for; `again`: its message was sent again, as it seemed lost. Or a webhook
that fails waits for its next attempt: `owed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Why a person may have to look at a task: an entry of the index of what needs attention."""

    kind: Trouble | Wait
    at: int
    """The time from which on it is so, in milliseconds; of `again` that of the task's creation."""
    reason: str = ""
    correlation_id: str = ""


Reason: TypeAlias = Literal["", "share", "conversation", "asleep"]
"""What a turn waits for that is parked; empty: it is not."""

LOST: Final = "lost"
"""The reason of an attempt that said nothing at its end: its process died, or was cut off."""
SHUTDOWN: Final = "shutdown"
"""The reason of an attempt whose worker was told to stop."""
ASLEEP: Final = "asleep"
"""The reason of an attempt that has left its turn until a time."""
HANDOVER: Final = "handover"
"""The reason of an attempt that has left its turn to the next process."""
ASKED: Final = "asked"
"""The reason of an attempt whose code has asked its client, and goes on in the turn of the
answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The current turn of a task: who works on it, what it waits for, how often it was started.

    Of a turn that is over its number, its base, its counts and how its last attempt has given it
    back are left; and `begun`, if the agent's code goes on in the next turn.
    """

    number: int
    """The version at which its message was accepted."""
    base: int
    """The version at which it became the current one."""
    is_open: bool = True
    """False once its work is over."""
    checkpoint: int = 0
    """The version up to which a restart keeps what the attempts have written: that of the last
    record; 0: there is none."""
    token: str | None = None
    """The attempt that may commit; None: the turn was never claimed."""
    released: AttemptEnd | None = None
    """How the attempt `token` has given the turn back; None: it has not."""
    attempts: int = 0
    """Attempts started, without the uncounted ones."""
    uncounted: Uncounted = Uncounted()
    alone: bool = False
    """True once a worker has died during the turn: it runs without neighbours to its end, because
    it may be the cause."""
    sends: int = 0
    """Copies of the turn's operation that were sent after the first."""
    requeued: int = 0
    """How many of them say nothing about a lost message: the turn before it has ended, it was
    parked or handed over, or has recorded a step since."""
    parked: Reason = ""
    """Why it has no message on the queue: it stands in the table until it is requeued. Only a turn
    that no attempt works on can be parked."""
    has_share: bool = False
    """It has waited for a share of the workers, and has one until it ends or is given back."""
    waits_since: int = 0
    """When it was parked, in milliseconds, or when it was requeued with a share."""
    slept_ms: int = 0
    """Milliseconds for which it has slept."""
    begun: int = 0
    """The number of the turn with whose message the agent's code began, if that has asked its
    client since: its records count until it ends. 0: the code begins with this turn."""
    begun_base: int = 0
    """The base of that turn."""
    signaled: int = 0
    """The version of the last signal from outside; 0: none has come during the turn."""
    rest: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The fields that only a newer release knows; each write keeps them."""

    @property
    def restart_base(self) -> int:
        """Return the version to which a new attempt goes back."""
        return self.checkpoint or self.base

    @property
    def asks(self) -> bool:
        """Return True if the agent's code has asked its client, and goes on with the answer."""
        return self.begun > 0 and not self.is_open

    @property
    def began_with(self) -> int:
        """Return the number of the turn with whose message the agent's code began."""
        return self.begun or self.number

    @property
    def starts(self) -> int:
        """Return how often the agent has started since the last record, counted or not."""
        return self.attempts + self.uncounted.faults + self.uncounted.interruptions

    @property
    def resends(self) -> int:
        """Return how often the turn was sent again because its message seemed lost."""
        # Not below 0: a sleeper whose copy the sweeper puts back counts as requeued before.
        return max(0, self.sends - self.requeued)

    @property
    def is_claimed(self) -> bool:
        """Return True if an attempt has the turn, and has not given it back."""
        return self.token is not None and self.released is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The state from which every decision about a task is made.

    Times are milliseconds since the epoch. `status` and `metadata` are serialized `TaskStatus` and
    `Struct`; None means that they are in the log alone (too large, or restored by a restart).
    """

    scope: str
    """Digest of the owner."""
    task_id: str
    context_id: str
    incarnation: str
    version: int
    """1 at creation; every commit adds exactly 1."""
    state: TaskState
    status_at: int
    """Rises strictly from one status to the next."""
    status: bytes | None
    metadata: bytes | None = b""
    created_at: int
    expires_at: int
    """Fixed at creation, equal on all items of the task."""

    turn: Turn
    next_turn: int = 0
    """A turn accepted while an attempt waits for out-of-band credentials; 0: none."""
    due_at: int | None = None
    """The time at which the sweeper looks at the task; None: it does not have to. Of a task that is
    being canceled: the deadline, which only the task's end moves."""
    serial_from: int = 0
    """The first turn that takes a position in the queue of its conversation, as all later ones do;
    0: none does."""
    replied: bool = False
    """The agent answered with a Message alone."""

    key_digest: str = ""
    """Digest of the idempotency key that the task was created with; empty: without one."""
    message_digest: str = ""
    """Digest of the latest turn's messageId."""
    content_digest: str = ""
    """Digest of the latest turn's message."""
    needs: int = 0
    """The format that a release has to know to run or write the task; any can read it."""

    size: int = 0
    """Bytes of all entries."""
    snapshot: SnapshotName = SnapshotName()
    usage: Used = ()
    """What the task's models have used in all attempts, also in those that were taken back."""
    cancel: CancelMark | None = None
    """The request to cancel the task; a writer that has not read it cannot commit. It stays."""
    started_at: int = 0
    """When an attempt has claimed a turn of the task for the first time; 0: none has."""
    code: str = ""
    """The version of the function that has claimed a turn last; empty: none has, or it was a worker
    outside of Lambda."""
    failure: Failure = Failure()
    """Why the task has failed or was rejected."""
    mark: str = field(default="", compare=False)
    """Names the write that has made this HEAD. The next write replaces the HEAD with the mark that
    it has read, or fails."""
    rest: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The attributes that only a newer release knows; each write keeps them."""

    @property
    def attention(self) -> Attention | None:
        """Return why a person may have to look at the task; None: for no reason that is known."""
        turn = self.turn
        if self.state in FAILED:
            kind: Trouble = "failed" if self.state == TaskState.TASK_STATE_FAILED else "rejected"
            reason, reference = self.failure.reason, self.failure.correlation_id
            return Attention(kind=kind, at=self.status_at, reason=reason, correlation_id=reference)
        if not turn.is_open:
            return None
        if turn.parked:
            return Attention(kind=turn.parked, at=turn.waits_since)
        # A turn that has slept is on the queue again once it is not parked any more.
        end = turn.released
        if end is not None and end.reason != ASLEEP and end.until > (end.at or 0):
            return Attention(kind="retry", at=end.at or self.created_at, reason=end.reason)
        is_resent = turn.sends > turn.requeued
        return Attention(kind="again", at=self.created_at) if is_resent else None

    @property
    def is_at_record(self) -> bool:
        """Return True if no attempt has written anything since the current turn's last record."""
        return self.turn.checkpoint == self.version

    @property
    def is_serial(self) -> bool:
        """Return True if the current turn has taken a position in the queue of its conversation."""
        return 0 < self.serial_from <= self.turn.number

    @property
    def begins_context(self) -> bool:
        """Return True if the id of the task follows from its context, which began with it."""
        return self.task_id == first_task_id(Scope(self.scope), self.context_id)

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def is_being_canceled(self) -> bool:
        """Return True from the request to cancel until the task ends."""
        return self.cancel is not None and not self.is_terminal

    @property
    def needs_newer(self) -> bool:
        """Return True if only a newer release may run or write the task."""
        return self.needs > FORMAT

    def has_expired(self, now_ms: int) -> bool:
        return self.expires_at <= now_ms

    def is_over(self, turn: int) -> bool:
        """Return True if nothing is left to do for a turn of the task, its current one or not."""
        is_later = turn > self.turn.number
        return self.is_terminal or not (
            is_later or (self.turn.is_open and turn == self.turn.number)
        )


def is_terminal(state: TaskState) -> bool:
    """Return True if the task has ended."""
    return state in TERMINAL


def state_name(state: TaskState) -> str:
    """Return the name on the wire, such as `TASK_STATE_WORKING`."""
    name: str = TaskState.Name(state)
    return name


def plain_state(state: TaskState) -> str:
    """Return the name in logs and metrics, such as `working`."""
    name: str = TaskState.Name(state)
    return name.removeprefix("TASK_STATE_").lower()


# -- operations ------------------------------------------------------------------------------


class OperationParams(BaseModel):
    """The turn that an operation is about.

    `incarnation` tells the task from a later one with the same id; `turn` is the version at which
    the turn's message was accepted; `copy_number` counts the sends of one turn, 0 for the first.
    """

    model_config = ConfigDict(frozen=True)

    scope: str = Field(min_length=1, max_length=64)
    task_id: str = Field(min_length=1, max_length=100)
    incarnation: str = Field(min_length=1, max_length=64)
    turn: int = Field(ge=1)
    copy_number: int = Field(default=0, ge=0)

    @classmethod
    def of(cls, head: Head, turn: int, copy_number: int = 0) -> Self:
        """Return the parameters of send number `copy_number` of a turn; 0 is the first."""
        return cls(
            scope=head.scope,
            task_id=head.task_id,
            incarnation=head.incarnation,
            turn=turn,
            copy_number=copy_number,
        )


_KNOWN: Final = ("run", "cancel")


class Operation(BaseModel):
    """One message on the queue: run a turn, or cancel a task.

    `is_new_task` says that this is a task's first run. The engine does not read it, because HEAD
    says the same. It is stored because the Broker contract (`contract/broker.py`) has it.
    `operation` is "run", "cancel", or what a newer release has sent. `request_context` holds the
    fields of W3C Trace Context only.
    """

    model_config = ConfigDict(frozen=True)

    operation: str
    params: OperationParams
    is_new_task: bool = False
    request_context: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def to_run(
        cls,
        params: OperationParams,
        *,
        is_new_task: bool = False,
        request_context: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the operation that runs a turn; the queue drops a repetition of the same send."""
        return cls(
            operation="run",
            params=params,
            is_new_task=is_new_task,
            request_context=dict(request_context or {}),
        )

    @classmethod
    def to_cancel(
        cls, params: OperationParams, *, request_context: Mapping[str, str] | None = None
    ) -> Self:
        """Return the operation that cancels a task, behind the operations it already has."""
        return cls(operation="cancel", params=params, request_context=dict(request_context or {}))

    def within(self, context: Mapping[str, str]) -> Self:
        """Return the operation as a part of the trace that its sender belongs to."""
        return self.model_copy(update={"request_context": dict(context)})

    @property
    def needs_newer(self) -> bool:
        """Return True if only a newer release knows what the operation asks for."""
        return self.operation not in _KNOWN

    @property
    def group(self) -> str:
        """Return the FIFO group: one per task, so that a task's operations never overlap."""
        return digest("group", self.params.scope, self.params.task_id)

    @property
    def task_id(self) -> str:
        """Return the task that the operation is about."""
        return self.params.task_id

    @property
    def ids(self) -> dict[str, object]:
        """Return the fields that name the operation and its turn, for a line of the log."""
        params = self.params
        return {"operation": self.operation, "task_id": params.task_id, "turn": params.turn}

    @property
    def trace(self) -> Mapping[str, str]:
        """Return the trace headers of the request."""
        return self.request_context

    @property
    def deduplication_id(self) -> str:
        """Return an id that repetitions of one send share: SQS drops them within 5 minutes."""
        p = self.params
        return digest(
            self.operation, p.scope, p.task_id, p.incarnation, str(p.turn), str(p.copy_number)
        )

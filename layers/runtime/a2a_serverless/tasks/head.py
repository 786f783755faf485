"""HEAD, the small current state of a task, which every commit rewrites; and the task's states.

A2A 1.0.1, section 4.1.3, says what the states mean for a task and its turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from a2a.types import TaskState

TERMINAL = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_REJECTED,
    }
)
"""The task has ended: no transition leaves these states."""

INTERRUPTED = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})
"""The turn waits for its client: a message may open the next turn."""

KNOWN = TERMINAL | INTERRUPTED | {TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING}

FORMAT: Final = 1
"""The format of stored tasks that this release knows, see docs/format.md."""

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
    of the process says more under `correlation_id`.
    """

    token: str
    """The attempt."""
    reason: str = ""
    correlation_id: str = ""
    at: int | None = None
    """The time at which it ended, in milliseconds; None: it was lost, or its time is unknown."""
    until: int = 0
    """The time before which the turn does not start again, in milliseconds; 0: at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spared:
    """The starts of the agent on the current turn that use up no attempt."""

    faults: int = 0
    """Starts that ended with a fault that passes, such as a model that does not answer."""
    waited: int = 0
    """Milliseconds that the turn was told to wait after such ends."""
    interruptions: int = 0
    """Starts whose worker was told to stop, or before whose end another task has changed the
    conversation's state."""


Reason: TypeAlias = Literal["", "share", "conversation"]
"""What a turn waits for that is `Head.left`; empty: it is not."""

LOST: Final = "lost"
"""The reason of an attempt that said nothing at its end: its process died, or was cut off."""
SHUTDOWN: Final = "shutdown"
"""The reason of an attempt whose worker was told to stop."""


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
    metadata: bytes | None
    created_at: int
    expires_at: int
    """Fixed at creation, equal on all items of the task."""

    turn: int
    """The current turn: the version at which its message was accepted."""
    turn_base: int
    """The version at which `turn` became the current one: a restart goes back to it."""
    next_turn: int = 0
    """A turn accepted while an attempt waits for out-of-band credentials; 0: none."""
    finished_turn: int = 0
    """The last turn whose work is over; equal to `turn` when no turn is open."""
    token: str | None = None
    """The attempt that may commit; None: the open turn was never claimed."""
    attempts: int = 0
    """Attempts started on the current turn, without those that are spared."""
    spared: Spared = Spared()
    alone: bool = False
    """True once a worker has died during the current turn: it runs without neighbours to its end,
    because it may be the cause."""
    due_at: int | None = None
    """The time at which the sweeper looks at the task; None: it does not have to. Of a task that is
    being canceled: the deadline, which only the task's end moves."""
    sends: int = 0
    """Copies of the current turn's operation that were sent after the first."""
    left: Reason = ""
    """Why the current turn has no message on the queue: it stands in the table until it is woken.
    Only a turn that no attempt has claimed can be left."""
    serial_from: int = 0
    """The first turn that takes a place in the line of its conversation, as all later ones do; 0:
    none does."""
    woken: bool = False
    """The current turn has waited for a share of the workers, and has one until it ends."""
    left_at: int = 0
    """Since when the current turn is left, in milliseconds, or since when it is woken."""
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

    generation: int = 1
    """State transitions and artifact updates so far (A2A 1.1)."""
    size: int = 0
    """Bytes of all entries."""
    cancel: CancelMark | None = None
    """The request to cancel the task; a writer that has not read it cannot commit. It stays."""
    released: AttemptEnd | None = None
    """The attempt that gave the turn back. It counts as long as `token` is still its token."""

    @property
    def turn_is_open(self) -> bool:
        return self.finished_turn < self.turn

    @property
    def is_in_line(self) -> bool:
        """Return True if the current turn has taken a place in the line of its conversation."""
        return 0 < self.serial_from <= self.turn

    @property
    def is_terminal(self) -> bool:
        return is_terminal(self.state)

    @property
    def is_being_canceled(self) -> bool:
        """Return True from the request to cancel until the task ends."""
        return self.cancel is not None and not self.is_terminal

    @property
    def was_released(self) -> bool:
        """Return True if the turn's last attempt has given it back, and none has taken it since."""
        return self.released is not None and self.released.token == self.token

    @property
    def needs_newer(self) -> bool:
        """Return True if only a newer release may run or write the task."""
        return self.needs > FORMAT

    def has_expired(self, now_ms: int) -> bool:
        return self.expires_at <= now_ms


def is_terminal(state: TaskState) -> bool:
    """Return True if the task has ended."""
    return state in TERMINAL


def is_interrupted(state: TaskState) -> bool:
    """Return True if the turn waits for its client."""
    return state in INTERRUPTED


def state_name(state: TaskState) -> str:
    """Return the name on the wire, such as `TASK_STATE_WORKING`."""
    name: str = TaskState.Name(state)
    return name


def plain_state(state: TaskState) -> str:
    """Return the name in logs and metrics, such as `working`."""
    return state_name(state).removeprefix("TASK_STATE_").lower()

"""HEAD: the small, current state of a task, rewritten by every commit."""

from __future__ import annotations

from dataclasses import dataclass

from a2a.types import TaskState

from a2a_serverless.tasks.states import is_terminal

MAX_INLINE_BYTES = 4096
"""A larger status or metadata stays in the log, and HEAD points there: HEAD is rewritten often."""


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
    """Attempts started on the current turn."""
    due_at: int | None = None
    """The time at which the sweeper looks at the task; None: it does not have to."""
    sends: int = 0
    """Copies of the current turn's operation that the sweeper has sent."""
    replied: bool = False
    """The agent answered with a Message alone."""

    key_digest: str = ""
    """Digest of the idempotency key of the latest turn; empty: it came without one."""
    message_digest: str = ""
    """Digest of the latest turn's messageId."""
    content_digest: str = ""
    """Digest of the latest turn's message."""

    @property
    def turn_is_open(self) -> bool:
        return self.finished_turn < self.turn

    @property
    def is_terminal(self) -> bool:
        return is_terminal(self.state)

    def has_expired(self, now_ms: int) -> bool:
        return self.expires_at <= now_ms

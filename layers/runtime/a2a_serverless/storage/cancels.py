"""Cancel flags, which storage keeps beside their tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from a2a_serverless.tasks.identity import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueCancel:
    """A cancel that has not ended its task by the deadline, and the incarnation it is meant for."""

    scope: Scope
    task_id: str
    incarnation: str


class CancelFlags(ABC):
    """The cancel flags of tasks, seen through one scope.

    A flag has a deadline, `Timing.cancel_s` after the request: the process that was asked ends the
    task by then, and if that process died, the sweeper does. A flag of an earlier task with the
    same id does not count.
    """

    @abstractmethod
    async def request_cancel(self, task_id: str) -> None:
        """Raise the flag. Repeating it changes nothing, the deadline included.

        Raises:
            TaskNotFoundError: there is no such task.
            TaskTerminalStateError: the task has ended; no flag is left behind.
            UnavailableError: no answer within the retry budget; the flag may be raised.
        """

    @abstractmethod
    async def is_cancelled(self, task_id: str) -> bool:
        """Return True if the flag is raised for the task as it is now."""

    @abstractmethod
    async def clear_cancel(self, task_id: str, *, incarnation: str | None = None) -> None:
        """Remove the flag of an ended task. Idempotent.

        With `incarnation` the flag of a later task with the same id stays. To be called after every
        commit of a terminal state.
        """

    @abstractmethod
    async def overdue_cancels(self, now_ms: int, *, limit: int = 100) -> list[OverdueCancel]:
        """Return flags of all scopes whose deadline has passed, the longest overdue first."""

"""The CancelRegistry contract of a2akit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from a2a_serverless.tasks.identity import Scope


class CancelScope(ABC):
    """Tells one turn whether its task should be canceled.

    It watches until `release`; as an async context manager it releases itself. It belongs to the
    event loop that made it.
    """

    @abstractmethod
    async def wait(self) -> None:
        """Return when cancellation was requested."""

    @abstractmethod
    def is_set(self) -> bool:
        """Whether cancellation is known to be requested; never true by mistake."""

    @abstractmethod
    async def release(self) -> None:
        """Stop watching; the flag stays. Idempotent.

        When the last scope of the process is released, nothing runs on in the background: Lambda
        freezes what does.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueCancel:
    """A cancel that nobody has ended by its deadline, and the incarnation it was meant for."""

    scope: Scope
    task_id: str
    incarnation: str


class CancelRegistry(ABC):
    """Cancel flags, seen through one scope.

    A flag has a deadline, `timeout_s` after the request: whoever asked ends the task by then, and
    if that process died, the sweeper does. A flag of an earlier task with the same id does not
    count.
    """

    @abstractmethod
    def for_scope(self, scope: Scope) -> Self:
        """The same registry seen by another owner; cheap."""

    @abstractmethod
    async def request_cancel(self, task_id: str) -> None:
        """Raise the flag. Repeating it changes nothing, the deadline included.

        Raises:
            TaskNotFoundError: there is no such task (where the backend can tell).
            TaskTerminalStateError: the task has ended; no flag is left behind.
            UnavailableError: no answer within the retry budget; the flag may be raised.
        """

    @abstractmethod
    async def is_cancelled(self, task_id: str) -> bool:
        """Whether the flag is raised."""

    @abstractmethod
    def on_cancel(self, task_id: str) -> CancelScope:
        """A scope that is set once the flag is seen, also when it was raised before.

        A backend failure never sets it: the deadline is the safety net.
        """

    @abstractmethod
    async def cleanup(self, task_id: str, *, incarnation: str | None = None) -> None:
        """Remove the flag and release the scopes of an ended task. Idempotent.

        Other tasks are untouched, and with `incarnation` also the flag of a later task with the
        same id. Whoever commits a terminal state calls it after that.
        """

    @abstractmethod
    async def overdue(self, now_ms: int, *, limit: int = 100) -> list[OverdueCancel]:
        """Flags of all scopes whose deadline has passed, the longest overdue first."""

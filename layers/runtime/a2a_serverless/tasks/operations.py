"""Operations: the messages on the queue. They carry ids only, never content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field

from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import digest


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

    @property
    def group(self) -> str:
        """Return the FIFO group: one per task, so that a task's operations never overlap."""
        return digest("group", self.scope, self.task_id)


_KNOWN: Final = ("run", "cancel")


class Operation(BaseModel):
    """One message on the queue: run a turn, or cancel a task.

    `is_new_task` says that this is a task's first run. The engine does not read it, because HEAD
    says the same. It is stored because the Broker contract (`contract/broker.py`) has it.
    `operation` is "run", "cancel", or what a newer release has sent. `request_context` holds trace
    propagation fields (W3C `traceparent`, X-Ray header) only.
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

    @property
    def needs_newer(self) -> bool:
        """Return True if only a newer release knows what the operation asks for."""
        return self.operation not in _KNOWN

    @property
    def group(self) -> str:
        """Return the FIFO message group: that of the task."""
        return self.params.group

    @property
    def task_id(self) -> str:
        """Return the task that the operation is about."""
        return self.params.task_id

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

"""The Broker contract of a2akit: at-least-once delivery, one operation per task at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from a2a_serverless.errors import UndecodableOperationError
from a2a_serverless.tasks.operations import Operation, OperationParams


class OperationHandle(ABC):
    """One delivery of an operation: acknowledge it, or give it back."""

    @property
    @abstractmethod
    def operation(self) -> Operation:
        """The delivered operation."""

    @property
    @abstractmethod
    def attempt(self) -> int:
        """How often the operation was delivered, from 1.

        SQS also counts receives that never ran (throttling): attempts of the agent are counted in
        HEAD, not here.
        """

    @abstractmethod
    async def ack(self) -> None:
        """Remove the operation for good.

        Of an expired delivery nothing is removed: the operation comes again, and its next consumer
        drops it as finished.

        Raises:
            UnavailableError: no answer within the retry budget; the operation may come again.
        """

    @abstractmethod
    async def nack(self, *, delay_seconds: float = 0) -> None:
        """Give the operation back; it is delivered again after `delay_seconds` at the earliest.

        An expired delivery has been given back already: nothing happens.

        Raises:
            UnavailableError: no answer within the retry budget; the visibility gives it back.
        """

    @abstractmethod
    async def extend(self, seconds: float) -> None:
        """Keep the operation from others for `seconds` from now.

        Raises:
            ConcurrencyError: the delivery has expired; another worker may have the operation.
            UnavailableError: no answer within the retry budget; the earlier lease still counts.
        """


class Broker(ABC):
    """A queue of operations with one group per task.

    At most one operation of a task is in processing: the next one is delivered when the previous
    was acknowledged or given back, or when its visibility ran out.
    """

    async def check(self) -> None:  # noqa: B027 - a queue in memory is always there
        """Make sure that the queues exist, so that a start can stop with one sentence.

        Raises:
            ConfigurationError: one does not; the sentence names it.
        """

    @abstractmethod
    async def run_task(
        self,
        params: OperationParams,
        *,
        is_new_task: bool = False,
        request_context: Mapping[str, str] | None = None,
    ) -> None:
        """Enqueue the run of a turn. The same send of the same turn is enqueued once.

        Raises:
            UnavailableError: the queue did not take it; the due index will repair the turn.
            ConfigurationError: there is no such queue, or it refuses this process.
        """

    @abstractmethod
    async def cancel_task(
        self, params: OperationParams, *, request_context: Mapping[str, str] | None = None
    ) -> None:
        """Enqueue the cancel of a task, behind the operations it already has.

        Raises:
            UnavailableError, ConfigurationError: as `run_task`; the sweeper ends the cancel at its
                deadline.
        """

    @abstractmethod
    async def set_aside(self, body: str, *, reason: str) -> bool:
        """Copy a message that no consumer can read to the queue that nothing consumes.

        False when there is no such queue; the caller then leaves the message to its own queue.

        Raises:
            UnavailableError, ConfigurationError: as `run_task`; the message is still where it was.
        """

    @abstractmethod
    async def shutdown(self) -> None:
        """Stop receiving: `receive_task_operations` ends after what it has handed out."""

    @abstractmethod
    def receive_task_operations(self) -> AsyncIterator[OperationHandle]:
        """Operations as they come, one at a time, until `shutdown`."""

    @abstractmethod
    def decode_record(self, record: Mapping[str, Any]) -> OperationHandle:
        """The delivery behind a record that an event source passed to the worker function.

        `record` has the form of an SQS event's. The event source deletes what was not reported as
        failed, so that an `ack` of such a handle may do nothing.

        Raises:
            UndecodableOperationError: the record does not hold an operation; report it failed.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.shutdown()


def operation_of(
    kind: str,
    params: OperationParams,
    *,
    is_new_task: bool = False,
    request_context: Mapping[str, str] | None = None,
) -> Operation:
    """The queue message of a send."""
    return Operation.model_validate(
        {
            "operation": kind,
            "params": params,
            "is_new_task": is_new_task,
            "request_context": dict(request_context or {}),
        }
    )


def decode_operation(body: object) -> Operation:
    """The operation behind a message's body.

    Raises:
        UndecodableOperationError: it is none.
    """
    if not isinstance(body, str):
        msg = "The message has no text body."
        raise UndecodableOperationError(msg)
    try:
        return Operation.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        msg = f"The message is no operation: {field}: {first['type']}."
        raise UndecodableOperationError(msg) from None

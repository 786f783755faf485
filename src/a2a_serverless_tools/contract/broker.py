"""The Broker contract of a2akit: at-least-once delivery, one operation per task at a time.

A thin view of the queue of operations. The engine uses the queue itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Self

from a2a_serverless.queues.fifo import FifoQueue, Handle
from a2a_serverless.tasks.operations import Operation, OperationParams


class OperationHandle:
    """One delivery of an operation: acknowledge it, or give it back."""

    def __init__(self, delivery: Handle[Operation]) -> None:
        self._delivery = delivery

    @property
    def operation(self) -> Operation:
        """Return the delivered operation."""
        return self._delivery.message

    @property
    def attempt(self) -> int:
        """Return the deliveries of the operation so far, from 1.

        SQS also counts receives whose invocation never ran (throttling). Attempts of the agent are
        counted in HEAD, not here.
        """
        return self._delivery.attempt

    async def ack(self) -> None:
        """Remove the operation for good.

        An expired delivery removes nothing: the operation comes again, and its next consumer drops
        it as finished.

        Raises:
            UnavailableError: no answer within the retry budget; the operation may come again.
        """
        await self._delivery.ack()

    async def nack(self, *, delay_seconds: float = 0) -> None:
        """Give the operation back; it is delivered again after `delay_seconds` at the earliest.

        An expired delivery has been given back already: nothing happens.

        Raises:
            UnavailableError: no answer within the retry budget; the operation comes back when its
                visibility ends.
        """
        await self._delivery.nack(delay_s=delay_seconds)

    async def extend(self, seconds: float) -> None:
        """Keep the operation from others for `seconds` from now.

        Raises:
            ConcurrencyError: the delivery has expired; another worker may have the operation.
            UnavailableError: no answer within the retry budget; the earlier lease still counts.
        """
        await self._delivery.extend(seconds)


class Broker:
    """A queue of operations with one group per task.

    At most one operation of a task is processed at a time: another delivery of the task follows
    when it was acknowledged or given back, or when its visibility ran out.

    Args:
        queue: takes the operations, in memory or on SQS.
    """

    def __init__(self, queue: FifoQueue[Operation]) -> None:
        self.queue = queue

    async def check(self) -> None:
        """Check that the queues exist, so that a start can stop with one sentence.

        Raises:
            ConfigurationError: a queue does not exist; the sentence names it.
        """
        await self.queue.check()

    async def run_task(
        self,
        params: OperationParams,
        *,
        is_new_task: bool = False,
        request_context: Mapping[str, str] | None = None,
    ) -> None:
        """Enqueue the run of a turn; a repetition of the same send is dropped.

        Raises:
            UnavailableError: the queue did not take it; the sweeper will send the turn again.
            ConfigurationError: there is no such queue, or it refuses this process.
        """
        await self.queue.send(
            Operation.to_run(params, is_new_task=is_new_task, request_context=request_context)
        )

    async def cancel_task(
        self, params: OperationParams, *, request_context: Mapping[str, str] | None = None
    ) -> None:
        """Enqueue the cancel of a task, behind the operations it already has.

        Raises:
            UnavailableError, ConfigurationError: as `run_task`; the sweeper ends the cancel at its
                deadline.
        """
        await self.queue.send(Operation.to_cancel(params, request_context=request_context))

    async def keep_undecodable(self, body: str, *, reason: str) -> bool:
        """Copy a message that cannot be read to a queue without consumers, for a person.

        Return False if there is no such queue; the caller then leaves the message in its own.

        Raises:
            UnavailableError, ConfigurationError: as `run_task`; the message is still in its queue.
        """
        return await self.queue.keep_undecodable(body, reason=reason)

    async def shutdown(self) -> None:
        """Stop receiving: `receive_task_operations` ends instead of returning another operation."""
        await self.queue.shutdown()

    async def receive_task_operations(self) -> AsyncIterator[OperationHandle]:
        """Return operations as they come, one at a time, until `shutdown`."""
        async with aclosing(self.queue.deliveries()) as deliveries:
            async for delivery in deliveries:
                yield OperationHandle(delivery)

    def decode_record(self, record: Mapping[str, Any]) -> OperationHandle:
        """Return the delivery behind a record that an event source passed to the worker function.

        `record` has the form of a record in an SQS event. `ack` of such a handle may do nothing,
        because the event source deletes records that were not reported as failed.

        Raises:
            UndecodableMessageError: the record does not hold an operation; report it failed.
        """
        return OperationHandle(self.queue.decode_record(record))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown()

"""A broker in the process's memory, with the group order and the redelivery of SQS FIFO.

Safe under threads: the local stack's doors send from loops of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from a2a_serverless.broker.base import Broker, OperationHandle, decode_operation, operation_of
from a2a_serverless.broker.memory_queue import MemoryDelivery, MemoryQueue
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import ConcurrencyError
from a2a_serverless.tasks.operations import Operation, OperationParams


class MemoryOperationHandle(OperationHandle):
    """A delivery that expires with its visibility, like the receipt of an SQS message."""

    def __init__(self, delivery: MemoryDelivery) -> None:
        self._delivery = delivery
        self._operation = decode_operation(delivery.body)

    @property
    def operation(self) -> Operation:
        return self._operation

    @property
    def attempt(self) -> int:
        return self._delivery.attempt

    async def ack(self) -> None:
        self._delivery.delete()

    async def nack(self, *, delay_seconds: float = 0) -> None:
        self._delivery.hide(delay_seconds)

    def record(self) -> dict[str, Any]:
        """The delivery as an SQS event source passes it to a function."""
        return self._delivery.record()

    async def extend(self, seconds: float) -> None:
        if not self._delivery.hide(seconds):
            msg = "The delivery has expired."
            raise ConcurrencyError(msg)


class MemoryBroker(Broker):
    """Operations in group queues; lost with the process."""

    def __init__(self, *, visibility_s: float = 60, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self._queue = MemoryQueue("operations.fifo", visibility_s=visibility_s, clock=clock)
        self.undecodable: list[str] = []
        """What was set aside."""

    @property
    def is_empty(self) -> bool:
        """Whether no operation is left, delivered or not."""
        return self._queue.is_empty

    async def run_task(
        self,
        params: OperationParams,
        *,
        is_new_task: bool = False,
        request_context: Mapping[str, str] | None = None,
    ) -> None:
        self._send(
            operation_of("run", params, is_new_task=is_new_task, request_context=request_context)
        )

    async def cancel_task(
        self, params: OperationParams, *, request_context: Mapping[str, str] | None = None
    ) -> None:
        self._send(operation_of("cancel", params, request_context=request_context))

    async def set_aside(self, body: str, *, reason: str) -> bool:  # noqa: ARG002 - for logs elsewhere
        self.undecodable.append(body)
        return True

    async def shutdown(self) -> None:
        self._queue.close()

    async def receive_task_operations(self) -> AsyncIterator[OperationHandle]:
        async with aclosing(self._queue.deliveries()) as deliveries:
            async for delivery in deliveries:
                yield MemoryOperationHandle(delivery)

    def decode_record(self, record: Mapping[str, Any]) -> MemoryOperationHandle:
        return MemoryOperationHandle(self._queue.delivery_of(record))

    def _send(self, operation: Operation) -> None:
        self._queue.send(
            operation.model_dump_json(),
            group=operation.params.group,
            deduplication_id=operation.deduplication_id,
        )

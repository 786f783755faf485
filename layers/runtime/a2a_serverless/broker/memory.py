"""A broker in the process's memory, with the group order and the redelivery of SQS FIFO.

Safe under threads: the local stack's doors send from loops of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from a2a_serverless.broker.base import Broker, OperationHandle, decode_operation, operation_of
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import ConcurrencyError
from a2a_serverless.tasks.operations import Operation, OperationParams

DEDUPLICATION_S = 300
"""As SQS FIFO: a deduplication id counts for 5 minutes, also after the message was deleted."""


@dataclass(slots=True, eq=False)
class _Message:
    operation: Operation
    number: int = 0
    """Unique in its broker; 0: it is not, or no longer, in the queue."""
    attempt: int = 0
    visible_at: float = 0.0
    receipt: int = 0


@dataclass(slots=True)
class _Group:
    messages: deque[_Message] = field(default_factory=deque)


class MemoryOperationHandle(OperationHandle):
    """A delivery that expires with its visibility, like the receipt of an SQS message."""

    def __init__(
        self, broker: MemoryBroker, message: _Message, *, receipt: int, attempt: int
    ) -> None:
        self._broker = broker
        self._message = message
        self._receipt = receipt
        self._attempt = attempt

    @property
    def operation(self) -> Operation:
        return self._message.operation

    @property
    def attempt(self) -> int:
        return self._attempt

    async def ack(self) -> None:
        self._broker.delete(self._message, self._receipt)

    async def nack(self, *, delay_seconds: float = 0) -> None:
        self._broker.hide(self._message, self._receipt, delay_seconds)

    def record(self) -> dict[str, Any]:
        """The delivery as an SQS event source passes it to a function."""
        operation = self._message.operation
        return {
            "messageId": str(self._message.number),
            "receiptHandle": f"{self._message.number}.{self._receipt}",
            "body": operation.model_dump_json(),
            "attributes": {
                "ApproximateReceiveCount": str(self._attempt),
                "MessageGroupId": operation.params.group,
                "MessageDeduplicationId": operation.deduplication_id,
            },
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": "arn:aws:sqs:local:000000000000:operations.fifo",
            "awsRegion": "local",
        }

    async def extend(self, seconds: float) -> None:
        if not self._broker.hide(self._message, self._receipt, seconds):
            msg = "The delivery has expired."
            raise ConcurrencyError(msg)


class MemoryBroker(Broker):
    """Operations in group queues; lost with the process."""

    def __init__(self, *, visibility_s: float = 60, clock: Clock | None = None) -> None:
        self._visibility_s = visibility_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._sent: dict[str, float] = {}
        self._numbers = itertools.count(1)
        self._closed = False
        self.undecodable: list[str] = []
        """What was set aside."""
        self._wakers: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

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
        self._closed = True
        self._wake()

    async def receive_task_operations(self) -> AsyncIterator[OperationHandle]:
        waker = (asyncio.get_running_loop(), asyncio.Event())
        self._wakers.append(waker)
        try:
            while not self._closed:
                waker[1].clear()
                message, wait_s = self._take()
                if message is not None:
                    yield MemoryOperationHandle(
                        self, message, receipt=message.receipt, attempt=message.attempt
                    )
                else:
                    await _wait(waker[1], wait_s)
        finally:
            self._wakers.remove(waker)

    def decode_record(self, record: Mapping[str, Any]) -> MemoryOperationHandle:
        operation = decode_operation(record.get("body"))
        attempt = int(record["attributes"]["ApproximateReceiveCount"])
        number, _, receipt = str(record["receiptHandle"]).partition(".")
        message = self._find(operation.params.group, number) or _Message(operation)
        return MemoryOperationHandle(
            self, message, receipt=int(receipt) if receipt.isdigit() else 0, attempt=attempt
        )

    def _find(self, group_name: str, number: str) -> _Message | None:
        with self._lock:
            group = self._groups.get(group_name, _Group())
            return next((m for m in group.messages if str(m.number) == number), None)

    def _send(self, operation: Operation) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._sent = {i: at for i, at in self._sent.items() if now - at < DEDUPLICATION_S}
            if operation.deduplication_id in self._sent:
                return
            self._sent[operation.deduplication_id] = now
            group = self._groups.setdefault(operation.params.group, _Group())
            group.messages.append(_Message(operation, next(self._numbers)))
        self._wake()

    def _take(self) -> tuple[_Message | None, float]:
        """The next deliverable message, or how long to wait for one."""
        now = self._clock.monotonic()
        soonest = 1.0
        with self._lock:
            for group in self._groups.values():
                message = group.messages[0]  # the others of the group wait for it
                if message.visible_at <= now:
                    message.attempt += 1
                    message.receipt += 1
                    message.visible_at = now + self._visibility_s
                    return message, 0
                soonest = min(soonest, message.visible_at - now)
        return None, soonest

    def hide(self, message: _Message, receipt: int, seconds: float) -> bool:
        """Set the visibility of a delivery (handles); False when the delivery has expired."""
        with self._lock:
            if not self._is_held(message, receipt):
                return False
            message.visible_at = self._clock.monotonic() + seconds
        self._wake()
        return True

    def delete(self, message: _Message, receipt: int) -> None:
        """Remove a delivered message (handles); nothing when the delivery has expired."""
        name = message.operation.params.group
        with self._lock:
            group = self._groups.get(name)
            if group is None or message not in group.messages:
                return
            if not self._is_held(message, receipt):
                return
            group.messages.remove(message)
            if not group.messages:
                del self._groups[name]
        self._wake()

    def _is_held(self, message: _Message, receipt: int) -> bool:
        """Whether this delivery is the message's latest one and has not run out."""
        return message.receipt == receipt and message.visible_at > self._clock.monotonic()

    def _wake(self) -> None:
        for loop, event in tuple(self._wakers):
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass

"""Wakes in the process's memory, with the group order and the redelivery of SQS FIFO."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from a2a_serverless.broker.memory_queue import MemoryDelivery, MemoryQueue
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.push.wakes import PushLetter, PushQueue, PushWake, WakeHandle, decode_wake


class MemoryWakeHandle(WakeHandle):
    """A delivery that expires with its visibility."""

    def __init__(self, delivery: MemoryDelivery) -> None:
        super().__init__(decode_wake(delivery.body), attempt=delivery.attempt)
        self._delivery = delivery

    async def ack(self) -> None:
        self._delivery.delete()

    async def nack(self, *, delay_s: float) -> None:
        self._delivery.hide(delay_s)


class MemoryPushQueue(PushQueue):
    """Wakes in group queues; lost with the process."""

    def __init__(self, *, visibility_s: float = 90, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self._queue = MemoryQueue("pushes.fifo", visibility_s=visibility_s, clock=clock)
        self.letters: list[PushLetter] = []
        """What was given up."""
        self.undecodable: list[str] = []
        """What was set aside."""

    @property
    def is_empty(self) -> bool:
        """Whether no wake is left, delivered or not."""
        return self._queue.is_empty

    async def send(self, wake: PushWake) -> None:
        self._queue.send(
            wake.model_dump_json(), group=wake.group, deduplication_id=wake.deduplication_id
        )

    async def bury(self, letter: PushLetter) -> None:
        self.letters.append(letter)

    async def set_aside(self, record: Mapping[str, Any]) -> bool:
        self.undecodable.append(str(record.get("body")))
        return True

    def decode_record(self, record: Mapping[str, Any]) -> MemoryWakeHandle:
        return MemoryWakeHandle(self._queue.delivery_of(record))

    async def records(self) -> AsyncIterator[dict[str, Any]]:
        """Deliveries as an SQS event source passes them to a function, until `close`."""
        async with aclosing(self._queue.deliveries()) as deliveries:
            async for delivery in deliveries:
                yield delivery.record()

    def take(self) -> dict[str, Any] | None:
        """The next delivery, as `records` has it; None when there is none now."""
        delivery, _ = self._queue.take()
        return delivery.record() if delivery is not None else None

    async def delete(self, record: Mapping[str, Any]) -> None:
        """Remove a record that the function did not report as failed."""
        self._queue.delivery_of(record).delete()

    def close(self) -> None:
        """End every `records` after what it has handed out."""
        self._queue.close()

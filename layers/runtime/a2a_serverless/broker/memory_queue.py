"""A queue in the process's memory, with the group order and the redelivery of SQS FIFO.

Safe under threads: the local stack's doors send from loops of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from a2a_serverless.clock import Clock

DEDUPLICATION_S = 300
"""As SQS FIFO: a deduplication id counts for 5 minutes, also after the message was deleted."""


@dataclass(slots=True, eq=False)
class _Message:
    body: str
    group: str
    deduplication_id: str
    number: int
    """Unique in its queue."""
    attempt: int = 0
    visible_at: float = 0.0
    receipt: int = 0


@dataclass(slots=True)
class _Group:
    messages: deque[_Message] = field(default_factory=deque)


class MemoryDelivery:
    """One receive of a message; it expires with its visibility, like the receipt of SQS."""

    def __init__(
        self, queue: MemoryQueue, message: _Message | None, *, body: str, receipt: int, attempt: int
    ) -> None:
        self._queue = queue
        self._message = message
        self._receipt = receipt
        self.body = body
        self.attempt = attempt
        """How often the message was received, from 1."""

    def delete(self) -> None:
        """Remove the message; nothing when the delivery has expired."""
        if self._message is not None:
            self._queue.delete(self._message, self._receipt)

    def hide(self, seconds: float) -> bool:
        """Set the visibility; False when the delivery has expired."""
        return self._message is not None and self._queue.hide(self._message, self._receipt, seconds)

    def record(self) -> dict[str, Any]:
        """The delivery as an SQS event source passes it to a function."""
        number = group = deduplication_id = ""
        if self._message is not None:
            number, group = str(self._message.number), self._message.group
            deduplication_id = self._message.deduplication_id
        return {
            "messageId": number,
            "receiptHandle": f"{number}.{self._receipt}",
            "body": self.body,
            "attributes": {
                "ApproximateReceiveCount": str(self.attempt),
                "MessageGroupId": group,
                "MessageDeduplicationId": deduplication_id,
            },
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:local:000000000000:{self._queue.name}",
            "awsRegion": "local",
        }


class MemoryQueue:
    """Messages in groups, of which one at a time is delivered; lost with the process.

    Args:
        name: what records call the queue.
        visibility_s: how long a delivery is kept from others.
        clock: tells when it comes back.
    """

    def __init__(self, name: str, *, visibility_s: float, clock: Clock) -> None:
        self.name = name
        self._visibility_s = visibility_s
        self._clock = clock
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._sent: dict[str, float] = {}
        self._numbers = itertools.count(1)
        self._closed = False
        self._wakers: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def is_empty(self) -> bool:
        """Whether no message is left, delivered or not."""
        return not self._groups

    def send(self, body: str, *, group: str, deduplication_id: str) -> None:
        """Enqueue a message, unless one with its deduplication id was sent a short while ago."""
        now = self._clock.monotonic()
        with self._lock:
            self._sent = {i: at for i, at in self._sent.items() if now - at < DEDUPLICATION_S}
            if deduplication_id in self._sent:
                return
            self._sent[deduplication_id] = now
            message = _Message(body, group, deduplication_id, next(self._numbers))
            self._groups.setdefault(group, _Group()).messages.append(message)
        self._wake()

    def close(self) -> None:
        """End every `deliveries` after what it has handed out."""
        self._closed = True
        self._wake()

    async def deliveries(self) -> AsyncGenerator[MemoryDelivery]:
        """Deliveries as they come, one at a time, until `close`."""
        waker = (asyncio.get_running_loop(), asyncio.Event())
        self._wakers.append(waker)
        try:
            while not self._closed:
                waker[1].clear()
                delivery, wait_s = self.take()
                if delivery is not None:
                    yield delivery
                else:
                    await _wait(waker[1], wait_s)
        finally:
            self._wakers.remove(waker)

    def take(self) -> tuple[MemoryDelivery | None, float]:
        """The next delivery, or how long to wait for one."""
        now = self._clock.monotonic()
        soonest = 1.0
        with self._lock:
            for group in self._groups.values():
                message = group.messages[0]  # the others of the group wait for it
                if message.visible_at <= now:
                    message.attempt += 1
                    message.receipt += 1
                    message.visible_at = now + self._visibility_s
                    return self._delivery(message, message.receipt, message.attempt), 0
                soonest = min(soonest, message.visible_at - now)
        return None, soonest

    def delivery_of(self, record: Mapping[str, Any]) -> MemoryDelivery:
        """The delivery behind a record; of a message that is gone it can do nothing."""
        number, _, receipt = str(record["receiptHandle"]).partition(".")
        attributes = record["attributes"]
        return MemoryDelivery(
            self,
            self._find(attributes.get("MessageGroupId", ""), number),
            body=record.get("body", ""),
            receipt=int(receipt) if receipt.isdigit() else 0,
            attempt=int(attributes["ApproximateReceiveCount"]),
        )

    def hide(self, message: _Message, receipt: int, seconds: float) -> bool:
        """Set the visibility of a delivery; False when the delivery has expired."""
        with self._lock:
            if not self._is_held(message, receipt):
                return False
            message.visible_at = self._clock.monotonic() + seconds
        self._wake()
        return True

    def delete(self, message: _Message, receipt: int) -> None:
        """Remove a delivered message; nothing when the delivery has expired."""
        with self._lock:
            group = self._groups.get(message.group)
            if group is None or message not in group.messages:
                return
            if not self._is_held(message, receipt):
                return
            group.messages.remove(message)
            if not group.messages:
                del self._groups[message.group]
        self._wake()

    def _delivery(self, message: _Message, receipt: int, attempt: int) -> MemoryDelivery:
        return MemoryDelivery(self, message, body=message.body, receipt=receipt, attempt=attempt)

    def _find(self, group_name: str, number: str) -> _Message | None:
        with self._lock:
            group = self._groups.get(group_name, _Group())
            return next((m for m in group.messages if str(m.number) == number), None)

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

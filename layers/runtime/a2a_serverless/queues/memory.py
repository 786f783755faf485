"""A queue in the process's memory, with the group order and the redelivery of SQS FIFO.

Safe under threads: the local stack's HTTP servers send from event loops of their own.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from a2a_serverless.clock import Clock, SystemClock, Waker
from a2a_serverless.errors import ConcurrencyError
from a2a_serverless.queues.fifo import EventRecord, FifoQueue, Handle, M, decode_message

DEDUPLICATION_S: Final = 300
"""Seconds for which a deduplication id counts, even if the message was deleted; as on SQS FIFO."""

LONGEST_WAIT_S: Final = 1.0
"""Seconds between two looks at an idle queue."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A message in its queue."""

    body: str
    group: str
    deduplication_id: str
    number: int
    """Unique in its queue."""
    sent_at: int
    """Milliseconds since the epoch."""
    attempt: int = 0
    """Receives of the message so far."""
    visible_at: float = 0.0

    @property
    def receipt(self) -> str:
        """Return the name of the latest receive."""
        return f"{self.number}.{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A stored message, in the form for a person who looks at it."""

    message_id: str
    sent_at: int
    """Milliseconds since the epoch."""
    body: str
    reason: str = ""


class MemoryHandle(Handle[M]):
    """One receive of a message; it expires with its visibility, like the receipt of SQS."""

    def __init__(self, queue: MemoryQueue[M], record: EventRecord) -> None:
        super().__init__(queue.kind, record)
        self._queue = queue

    async def ack(self) -> None:
        await self._queue.delete(self._record)

    async def nack(self, *, delay_s: float = 0) -> None:
        self._queue.hide(self._record, delay_s)

    async def extend(self, lease_s: float) -> None:
        if not self._queue.hide(self._record, lease_s):
            raise ConcurrencyError("The delivery has expired.")


class MemoryQueue(FifoQueue[M]):
    """Messages in groups, of which one at a time is delivered; lost with the process.

    Args:
        kind: the messages' model.
        visibility_s: seconds that a delivery is kept from other consumers.
        clock: times the visibility; by default that of the system.
        name: the queue's name; by default that of `kind`.
    """

    def __init__(
        self,
        kind: type[M],
        *,
        visibility_s: float = 60,
        clock: Clock | None = None,
        name: str = "",
    ) -> None:
        super().__init__(kind)
        self._name = name or f"{kind.__name__}.fifo"
        self._undecodable: dict[str, Kept] = {}
        self._visibility_s = visibility_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._groups: dict[str, deque[_Entry]] = {}
        self._sent: dict[str, float] = {}
        self._numbers = itertools.count(1)
        self._waiting: list[Waker] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_empty(self) -> bool:
        """Return True if no message is left, delivered or not."""
        return not self._groups

    @property
    def messages(self) -> list[M]:
        """Return the messages that are left, delivered or not, in the order of the sends."""
        with self._lock:
            entries = [entry for group in self._groups.values() for entry in group]
        entries.sort(key=lambda entry: entry.number)
        return [decode_message(self.kind, entry.body) for entry in entries]

    @property
    def undecodable(self) -> list[Kept]:
        """Return the messages that were kept because they could not be read."""
        return list(self._undecodable.values())

    @property
    def waiting(self) -> list[Kept]:
        """Return the messages that are left, in the form for a person, in the order of sends."""
        with self._lock:
            entries = [entry for group in self._groups.values() for entry in group]
        entries.sort(key=lambda entry: entry.number)
        return [
            Kept(message_id=str(entry.number), sent_at=entry.sent_at, body=entry.body)
            for entry in entries
        ]

    @property
    def depth(self) -> tuple[int, int]:
        """Return how many messages wait, and how many were received and are hidden."""
        now = self._clock.monotonic()
        with self._lock:
            entries = [entry for group in self._groups.values() for entry in group]
        hidden = sum(entry.attempt > 0 and entry.visible_at > now for entry in entries)
        return len(entries) - hidden, hidden

    def forget_undecodable(self, message_id: str) -> bool:
        """Remove one of `undecodable`; return False if it is not among them."""
        return self._undecodable.pop(message_id, None) is not None

    def forget(self, message_id: str) -> bool:
        """Remove one of `waiting`; return False if it is not among them."""
        with self._lock:
            entries = [entry for group in self._groups.values() for entry in group]
            found = next((entry for entry in entries if str(entry.number) == message_id), None)
            if found is not None:
                self._remove(found)
        return found is not None

    async def send(self, message: M) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._sent = {i: at for i, at in self._sent.items() if now - at < DEDUPLICATION_S}
            if message.deduplication_id in self._sent:
                return
            self._sent[message.deduplication_id] = now
            entry = _Entry(
                message.model_dump_json(),
                message.group,
                message.deduplication_id,
                next(self._numbers),
                self._clock.now_ms(),
            )
            self._groups.setdefault(message.group, deque()).append(entry)
        self._notify()

    async def shutdown(self) -> None:
        self.is_closed = True
        self._notify()

    async def pull(self, limit: int, wait_s: float) -> list[Handle[M]]:
        until = self._clock.monotonic() + wait_s
        waker = Waker()
        self._waiting.append(waker)
        try:
            while not self.is_closed:
                waker.clear()
                taken = list(itertools.islice(iter(self.take, None), limit))
                left_s = until - self._clock.monotonic()
                if taken or left_s <= 0:
                    return [self.decode_record(record) for record in taken]
                await waker.wait_by(self._clock, min(left_s, self._until_visible_s()))
            return []
        finally:
            self._waiting.remove(waker)

    async def deliveries(self) -> AsyncGenerator[Handle[M]]:
        async with aclosing(self.records()) as records:
            async for record in records:
                yield self.decode_record(record)

    async def records(self) -> AsyncGenerator[dict[str, Any]]:
        """Return deliveries as an SQS event source passes them to a function, until `shutdown`."""
        waker = Waker()
        self._waiting.append(waker)
        try:
            while not self.is_closed:
                waker.clear()
                record = self.take()
                if record is not None:
                    yield record
                else:
                    await waker.wait(self._until_visible_s())
        finally:
            self._waiting.remove(waker)

    def take(self) -> dict[str, Any] | None:
        """Return the next delivery as a record; None when no message is visible."""
        now = self._clock.monotonic()
        with self._lock:
            for first in self._firsts():
                if first.visible_at <= now:
                    first.attempt += 1
                    first.visible_at = now + self._visibility_s
                    return self._record(first)
        return None

    def decode_record(
        self,
        record: EventRecord,
        *,
        removes: bool = False,  # noqa: ARG002 - every `ack` does
    ) -> MemoryHandle[M]:
        """Return the delivery, as in the contract; the handle of a deleted message does nothing."""
        return MemoryHandle(self, record)

    async def keep_undecodable(
        self,
        body: str,
        *,
        reason: str,
        message_id: str | None = None,  # noqa: ARG002 - every repetition is kept
    ) -> bool:
        kept_id = f"undecodable-{next(self._numbers)}"
        now_ms = self._clock.now_ms()
        self._undecodable[kept_id] = Kept(
            message_id=kept_id, sent_at=now_ms, body=body, reason=reason
        )
        return True

    def hide(self, record: EventRecord, seconds: float) -> bool:
        """Set the visibility of a delivery; return False if the delivery has expired."""
        with self._lock:
            entry = self._held(record)
            if entry is None:
                return False
            entry.visible_at = self._clock.monotonic() + seconds
        self._notify()
        return True

    async def delete(self, record: EventRecord) -> None:
        """Remove a delivered message; do nothing if the delivery has expired."""
        with self._lock:
            entry = self._held(record)
            if entry is None:
                return
            self._remove(entry)
        self._notify()

    def _remove(self, entry: _Entry) -> None:
        group = self._groups[entry.group]
        group.remove(entry)
        if not group:
            del self._groups[entry.group]

    def _record(self, entry: _Entry) -> dict[str, Any]:
        return {
            "messageId": str(entry.number),
            "receiptHandle": entry.receipt,
            "body": entry.body,
            "attributes": {
                "ApproximateReceiveCount": str(entry.attempt),
                "MessageGroupId": entry.group,
                "MessageDeduplicationId": entry.deduplication_id,
            },
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:local:000000000000:{self.name}",
            "awsRegion": "local",
        }

    def _held(self, record: EventRecord) -> _Entry | None:
        """Return the entry of a delivery; None if it is not its latest one, or has expired."""
        group = self._groups.get(record["attributes"].get("MessageGroupId", ""), ())
        now, receipt = self._clock.monotonic(), record["receiptHandle"]
        return next((e for e in group if e.receipt == receipt and e.visible_at > now), None)

    def _firsts(self) -> Iterator[_Entry]:
        """Return the first message of each group; the others of the group wait for it."""
        return (group[0] for group in self._groups.values())

    def _until_visible_s(self) -> float:
        now = self._clock.monotonic()
        with self._lock:
            waits = [first.visible_at - now for first in self._firsts()]
        return max(0, min([LONGEST_WAIT_S, *waits]))

    def _notify(self) -> None:
        for waker in tuple(self._waiting):
            waker.wake()

"""Queues on a table: one item for each group, and every step one conditional write of it.

The item of a group has its messages, of which the first one is delivered. While there are any it is
in the index `by-due` under the time at which the first is visible. Times are those of the wall
clock, because the processes that share a queue have no other clock in common.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from copy import copy
from dataclasses import field
from functools import partial
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec

from a2a_serverless.clock import Clock, SystemClock, Waker, first_of, pause_s
from a2a_serverless.errors import (
    ConcurrencyError,
    ConditionFailedError,
    FullGroupError,
    UnavailableError,
)
from a2a_serverless.queues.fifo import (
    LONGEST_WAIT_S,
    MOST_AT_ONCE,
    EventRecord,
    FifoQueue,
    Handle,
    M,
    Places,
)
from a2a_serverless.storage.changes import Change
from a2a_serverless.storage.layout import BY_DUE, GROUP, queue_partition
from a2a_serverless.storage.table import Check, Item, Key, Put, Range, Table, Watch, are
from a2a_serverless.tasks.identity import digest
from a2a_serverless.values import dataclass

_DEDUPLICATION_S: Final = 300
"""Seconds for which a deduplication id counts, even if the message was deleted; as on SQS FIFO."""

_MOST_REMEMBERED: Final = 100
"""The most deduplication ids that a group remembers: beyond it the oldest are forgotten early.

The item is read and written with each message, and a repeated one is harmless twice.
"""

MOST_MESSAGES: Final = 1000
MOST_BYTES: Final = 300_000
"""The most messages of a group, and the most bytes of all of them: an item has 400 KB."""

_RETENTION_S: Final = 14 * 86_400
"""Seconds that a group is kept after its last message was sent; as long as SQS at most."""

POLL_S: Final = 1.0
"""Seconds between two looks at an idle queue, on a table that does not tell of writes."""

_LEAST_WAIT_S: Final = 0.01
"""Seconds between two looks at least, where the next message is visible in a moment."""

_PART: Final = 40_000
"""Characters of a damaged group in one message for a person: at most 240 KB in JSON."""

MOST_TRIES: Final = 100
"""Tries to write an item that others write at the same time."""

logger = logging.getLogger(__name__)

P = ParamSpec("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A stored message, in the form for a person who looks at it."""

    message_id: str
    sent_at: int
    """Milliseconds since the epoch."""
    body: str
    reason: str = ""
    """Why it was set aside; empty: it was not."""


class _Queued(NamedTuple):
    """A message in its group."""

    number: int
    """Unique in its group."""
    body: str
    deduplication_id: str
    sent_at: int
    reason: str = ""


@dataclass(slots=True)
class _Group:
    """The item of a group as plain values, and the steps of its messages."""

    key: Key
    messages: list[_Queued] = field(default_factory=list)
    receives: int = 0
    """Of the first message; with its number it names the latest delivery."""
    due_at: int = 0
    """When the first message is visible, in milliseconds since the epoch."""
    number: int = 0
    """Of the last message."""
    sent: dict[str, int] = field(default_factory=dict)
    """When messages were sent, by their deduplication ids."""
    expires_at: int = 0
    version: Any = None
    """How often the item was written; None: never. Anything else than a number is damage."""
    damaged: str | None = None
    """What the item has instead of messages, if it cannot be read."""
    is_news: bool = True
    """False: after the last step no pull has to look before it would look anyway."""

    @classmethod
    def of(cls, key: Key, item: Mapping[str, Any] | None) -> _Group:
        """Return the group of an item; None: there is no item."""
        if item is None:
            return cls(key)
        try:
            return cls(
                key,
                messages=[_Queued(**message) for message in json.loads(item["messages"])],
                receives=int(item["receives"]),
                due_at=int(item.get("due_at", 0)),
                number=int(item["number"]),
                sent=dict(json.loads(item["sent"])),
                expires_at=int(item["expires_at"]),
                version=int(item["version"]),
            )
        except (KeyError, TypeError, ValueError):
            return cls(key, version=item.get("version"), damaged=str(item.get("messages", "")))

    def put(self) -> Put:
        """Return the write of the group, on condition that no other was made since it was read.

        The group is then as it is once that is stored.
        """
        item: Item = {
            **self.key._asdict(),
            "messages": _packed(self.messages),
            "receives": self.receives,
            "number": self.number,
            "sent": json.dumps(self.sent, separators=(",", ":")),
            "expires_at": self.expires_at,
            "version": self.version + 1 if isinstance(self.version, int) else 1,
        }
        if self.messages:
            item |= {"due_key": self.key.PK, "due_at": self.due_at}
        is_first = self.version is None
        when = [Check("version", "absent")] if is_first else are(version=self.version)
        self.version = item["version"]
        return Put(item=item, when=when, is_news=self.is_news)

    def add(self, body: str, deduplication_id: str, now: int, reason: str = "") -> bool:
        """Append a message; return False if it was sent before.

        Raises:
            FullGroupError: the group has `MOST_MESSAGES`, or `MOST_BYTES`.
        """
        recent = [(i, at) for i, at in self.sent.items() if at > now - _DEDUPLICATION_S * 1000]
        if deduplication_id in dict(recent):
            return False
        # Not from 1 again when an expired item was deleted: an old delivery names no new message.
        number = max(self.number + 1, now)
        messages = [*self.messages, _Queued(number, body, deduplication_id, now, reason)]
        if len(messages) > MOST_MESSAGES or len(_packed(messages)) > MOST_BYTES:
            raise FullGroupError(
                f"The group {self.key.SK.removeprefix(GROUP)} of the queue"
                f" {self.key.PK.partition('#')[2]} is full: {len(self.messages)} messages wait for"
                " their consumer; send again when it takes them."
            )
        if not self.messages:
            self.receives, self.due_at = 0, now
        self.number, self.messages, self.is_news = number, messages, True
        self.sent = dict([*recent, (deduplication_id, now)][-_MOST_REMEMBERED:])
        self.expires_at = now // 1000 + _RETENTION_S
        return True

    def receive(self, now: int, visibility_s: float) -> bool:
        """Deliver the first message; return False if none is visible."""
        if not self.messages or self.due_at > now:
            return False
        self.receives += 1
        self.due_at = now + int(visibility_s * 1000)
        self.is_news = visibility_s < LONGEST_WAIT_S
        return True

    def free(self, now: int) -> bool:
        """Make the first message visible; return False if it is."""
        is_hidden = bool(self.messages) and self.due_at > now
        if is_hidden:
            self.due_at = now
        return is_hidden

    def hide(self, receipt: str, now: int, seconds: float) -> bool:
        """Set the visibility of a delivery; return False if it has expired."""
        is_held = receipt == self.receipt and self.due_at > now
        if is_held:
            self.due_at = now + int(seconds * 1000)
            self.is_news = seconds < LONGEST_WAIT_S
        return is_held

    def delete(self, receipt: str, now: int) -> bool:
        """Remove a delivered message; return False if the delivery has expired."""
        is_held = receipt == self.receipt and self.due_at > now
        if is_held:
            self.remove_first(now)
        return is_held

    def remove_first(self, now: int) -> None:
        """Remove the first message; the next one is visible at once."""
        self.messages = self.messages[1:]
        self.receives, self.due_at, self.is_news = 0, now, bool(self.messages)
        if not self.messages:
            self.expires_at = now // 1000 + _DEDUPLICATION_S

    def deliver(self, body: str, deduplication_id: str, now: int, visibility_s: float) -> bool:
        """Add a message and deliver it; return False if others wait, or it was sent before."""
        if self.messages or self.damaged is not None:
            return False
        return self.add(body, deduplication_id, now) and self.receive(now, visibility_s)

    def changing(
        self, step: Callable[Concatenate[_Group, P], bool], *args: P.args, **kwargs: P.kwargs
    ) -> Change[_Group]:
        """Return a step as a change, which may be stored together with others."""

        def decide(group: _Group) -> _Group:
            after = copy(group)
            return after if step(after, *args, **kwargs) else group

        return Change(self, decide, lambda _, after: after.put(), partial(_Group.of, self.key))

    @property
    def receipt(self) -> str:
        """Return the name of the latest delivery; empty without a message."""
        return f"{self.messages[0].number}.{self.receives}" if self.messages else ""


def _packed(messages: Iterable[_Queued]) -> str:
    return json.dumps([message._asdict() for message in messages], separators=(",", ":"))


class _TableHandle(Handle[M]):
    """One receive of a message; it expires with its visibility, like the receipt of SQS."""

    def __init__(self, queue: TableQueue[M], record: EventRecord, message: M | None = None) -> None:
        super().__init__(queue.kind, record, message)
        self._queue = queue
        self._ack: Change[_Group] | None = None

    async def ack(self) -> None:
        if self._ack is None or not self._ack.is_stored:
            await self._queue.delete(self._record)

    async def acknowledging(self, table: Table) -> Change[_Group] | None:
        self._ack = await self._queue.deleting(self._record, table)
        return self._ack

    async def nack(self, *, delay_s: float = 0) -> None:
        self.hidden_until = 0
        await self._queue.hide(self._record, delay_s)

    async def extend(self, lease_s: float) -> None:
        self.hidden_until = 0
        # Of one that is being acknowledged, the message is gone before its writer knows.
        if not await self._queue.hide(self._record, lease_s) and self._ack is None:
            raise ConcurrencyError("The delivery has expired.")


class _Reservation(Generic[M]):
    """A place of this process, for a message that is stored with other writes."""

    def __init__(self, queue: TableQueue[M], places: Places[M]) -> None:
        self._queue = queue
        self._places: Places[M] | None = places
        self._change: Change[_Group]
        self._message: M

    async def sending(self, message: M, *, is_first: bool) -> Change[_Group]:
        self._message = message
        self._change = await self._queue.delivering(message, is_first=is_first)
        return self._change

    def deliver(self) -> bool:
        if self._places is None or not self._change.is_stored:
            return False
        record = _record(self._queue.name, self._change.after)
        handle = _TableHandle(self._queue, record, self._message)
        handle.hidden_until = record.group.due_at
        places, self._places = self._places, None
        places.begin(handle)
        return True

    def release(self) -> None:
        if self._places is not None:
            self._places.put()


class TableQueue(FifoQueue[M]):
    """Messages in groups, of which one at a time is delivered.

    A group has at most `MOST_MESSAGES`; `send` raises FullGroupError beyond it. Safe under threads
    as far as its table is.

    Args:
        kind: the messages' model.
        table: the table, which several queues and the storage share.
        name: the queue's name in the table; by default that of `kind`.
        visibility_s: seconds that a delivery is kept from other consumers.
        clock: by default that of the system.
        undecodable: the name of the queue for bodies that cannot be read; by default one of its
            own.
        dead_letters: the name of the queue to which a message is moved instead of a delivery when
            it was received `max_receives` times; empty: it is delivered for ever.
        max_receives: as for `dead_letters`.
    """

    def __init__(
        self,
        kind: type[M],
        table: Table,
        *,
        name: str = "",
        visibility_s: float = 60,
        clock: Clock | None = None,
        undecodable: str = "",
        dead_letters: str = "",
        max_receives: int = 1000,
    ) -> None:
        super().__init__(kind, name or f"{kind.__name__}.fifo")
        self._partition = queue_partition(self.name)
        self._table = table
        self._visibility_s = visibility_s
        self._clock = clock or SystemClock()
        self._undecodable = undecodable or f"{self.name}.undecodable"
        self._dead_letters = dead_letters
        self._max_receives = max_receives
        self._pulls: set[Waker] = set()
        """Those that wait."""
        self._failures = 0

    async def send(self, message: M) -> None:
        body, own = message.model_dump_json(), message.deduplication_id
        now = self._clock.now_ms()
        await self._change(self._key(message.group), _Group.add, body, own, now)

    async def keep_undecodable(
        self, body: str, *, reason: str, message_id: str | None = None
    ) -> bool:
        own, now = digest("push-undecodable", message_id or body), self._clock.now_ms()
        key = Key(queue_partition(self._undecodable), f"{GROUP}{own}")
        await self._change(key, _Group.add, body, own, now, reason)
        return True

    async def shutdown(self) -> None:
        self.is_closed = True
        for pull in tuple(self._pulls):
            pull.wake()

    def reserve(self, table: Table) -> _Reservation[M] | None:
        places = None if table is not self._table or self.is_closed else self.places
        return _Reservation(self, places) if places is not None and places.take() else None

    # -- receiving -----------------------------------------------------------------------------

    async def receive(self) -> EventRecord | None:
        """Return the next delivery as a record; None if no message is visible."""
        records, _ = await self._receive(1)
        return next(iter(records), None)

    async def pull(self, limit: int, wait_s: float) -> list[Handle[M]]:
        until = self._clock.monotonic() + wait_s
        while not self.is_closed:
            left_s, handles = until - self._clock.monotonic(), list[Handle[M]]()
            records = await self._next(min(limit, MOST_AT_ONCE), left_s)
            for record in records:
                if (handle := await self.handle_of(record)) is not None:
                    handle.hidden_until = record.group.due_at
                    handles.append(handle)
            if records or left_s <= 0:
                return handles
        return []

    def decode_record(self, record: EventRecord, *, removes: bool = False) -> _TableHandle[M]:  # noqa: ARG002 - every `ack` does
        return _TableHandle(self, record)

    async def hide(self, record: EventRecord, seconds: float) -> bool:
        """Set the visibility of a delivery; return False if the delivery has expired."""
        key, now = self._key_of(record), self._clock.now_ms()
        return (
            await self._change(key, _Group.hide, record["receiptHandle"], now, seconds) is not None
        )

    async def delete(self, record: EventRecord) -> None:
        """Remove a delivered message; do nothing if the delivery has expired."""
        key, now = self._key_of(record), self._clock.now_ms()
        await self._change(key, _Group.delete, record["receiptHandle"], now)

    async def delivering(self, message: M, *, is_first: bool) -> Change[_Group]:
        """Return the change that sends a message and receives it; see `Reservation.sending`."""
        body, own, now = message.model_dump_json(), message.deduplication_id, self._clock.now_ms()
        key = self._key(message.group)
        group = _Group(key) if is_first else await self._read(key)
        return group.changing(_Group.deliver, body, own, now, self._visibility_s)

    async def deleting(self, record: EventRecord, table: Table) -> Change[_Group] | None:
        """Return the change that removes a delivered message; None if it is not in `table`."""
        if table is not self._table:
            return None
        # As it was received: a guess, which saves the read.
        group = (
            record.group if isinstance(record, _Record) else await self._read(self._key_of(record))
        )
        return group.changing(_Group.delete, record["receiptHandle"], self._clock.now_ms())

    async def free(self) -> None:
        """Make all messages visible, where the consumers that have received them are gone."""
        now = self._clock.now_ms()
        async for group in self._groups():
            await self._change(group.key, _Group.free, now)

    # -- for a person --------------------------------------------------------------------------

    async def waiting(self) -> list[_Shown]:
        """Return the messages that are left, delivered or not, in the order of the sends."""
        kept = [
            _Shown(
                message_id=f"{group.key.SK.removeprefix(GROUP)}.{message.number}",
                sent_at=message.sent_at,
                body=message.body,
                reason=message.reason,
            )
            async for group in self._groups()
            for message in group.messages
        ]
        return sorted(kept, key=lambda one: one.sent_at)

    async def depth(self) -> tuple[int, int, int | None]:
        """Return how many messages wait, how many were received and are hidden, and the oldest.

        The last is when the oldest one that waits was sent; None: none waits.
        """
        now, total, hidden = self._clock.now_ms(), 0, 0
        sent: list[int] = []
        async for group in self._groups():
            is_hidden = bool(group.messages) and group.receives > 0 and group.due_at > now
            total += len(group.messages)
            hidden += is_hidden
            sent += [one.sent_at for one in group.messages[is_hidden:]]
        return total - hidden, hidden, min(sent, default=None)

    # -- the table -----------------------------------------------------------------------------

    async def _next(self, limit: int, wait_s: float) -> list[_Record]:
        """Return deliveries; none if none was visible, and something may have changed since.

        None after a failure, too, which is logged: other deliveries of the caller go on.
        """
        try:
            with self._table.watch(self._partition) as watch:
                records, next_s = await self._receive(limit)
                if not records and wait_s > 0:
                    await self._news(watch, min(wait_s, next_s))
        except UnavailableError as error:
            self._failures += 1
            self._log_failure(error)
            await self._clock.sleep(pause_s(self._failures))
            return []
        self._failures = 0
        return records

    def _log_failure(self, error: UnavailableError) -> None:
        extra = {"action": "receive_failed", "failures": self._failures}
        extra["error"] = type(error).__name__
        logger.warning("Receiving from the queue failed: %s", error, extra=extra)

    async def _receive(self, limit: int) -> tuple[list[_Record], float]:
        """Return deliveries, and the seconds after which to look again."""
        now, taken = self._clock.now_ms(), list[_Record]()
        next_s = LONGEST_WAIT_S if self._table.wakes else POLL_S
        by_due = Range(partition=self._partition, index=BY_DUE, page=MOST_AT_ONCE)
        async for page in self._table.query(by_due):
            for entry in page:
                # Known before each write: what is received after `shutdown` would lie hidden.
                if self.is_closed or len(taken) == limit:
                    return taken, 0
                if entry["due_at"] > now:
                    left_s = (entry["due_at"] - self._clock.now_ms()) / 1000
                    return taken, max(_LEAST_WAIT_S, min(next_s, left_s))
                try:
                    key = Key(entry["PK"], entry["SK"])
                    # The index may lag: `receive` decides on the group itself, and of several
                    # consumers that have seen the same entry one alone gets the message.
                    group = await self._change(key, _Group.receive, now, self._visibility_s)
                    # What was received too often is a dead letter: the next one is received.
                    while self._dead_letters and group and group.receives > self._max_receives:
                        await self._bury(group, now)
                        group = await self._change(key, _Group.receive, now, self._visibility_s)
                except UnavailableError as error:
                    # What was taken lies hidden, and is handed out; a group whose dead letters are
                    # full holds up no other one.
                    if not taken and not isinstance(error, FullGroupError):
                        raise
                    self._log_failure(error)
                    continue
                if group is not None:
                    taken.append(_record(self.name, group))
        return taken, next_s

    async def _bury(self, group: _Group, now: int) -> None:
        """Move the first message of a group to the dead letters, in one step."""
        first = group.messages[0]
        dead = await self._read(Key(queue_partition(self._dead_letters), group.key.SK))
        group.remove_first(now)
        writes = [group.put()]
        if dead.add(first.body, first.deduplication_id, now):
            writes.append(dead.put())
        try:
            await self._table.write(*writes)
        except ConditionFailedError:  # the group is hidden, and is received again
            return
        extra = {
            "action": "buried",
            "queue": self.name,
            "group": group.key.SK.removeprefix(GROUP),
            "receives": self._max_receives,
        }
        logger.warning("A message was delivered too often: it is a dead letter", extra=extra)

    async def _change(
        self,
        key: Key,
        step: Callable[Concatenate[_Group, P], bool],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> _Group | None:
        """Change a group by one conditional write; None if `step` leaves it as it is."""
        for _ in range(MOST_TRIES):
            group = await self._read(key)
            if not step(group, *args, **kwargs):
                return None
            if await self._table.did(group.put()):
                return group
            await asyncio.sleep(random.uniform(0, 0.01))  # noqa: S311 - spreads the tries
        raise UnavailableError(f"The item {key.PK} {key.SK} is written by others all the time.")

    async def _read(self, key: Key) -> _Group:
        """Return a group; what cannot be read of it is set aside for a person first."""
        group = _Group.of(key, await self._table.get(key))
        if group.damaged is not None:
            reason = f"The group {key.SK} of {key.PK} is damaged."
            logger.error("%s Its messages are set aside", reason, extra={"action": "damaged_group"})
            for start in range(0, len(group.damaged), _PART):
                await self.keep_undecodable(group.damaged[start : start + _PART], reason=reason)
            if not await self._table.did(group.put()):
                return await self._read(key)  # another consumer has set it aside, or written to it
        return group

    async def _groups(self) -> AsyncGenerator[_Group]:
        async for page in self._table.query(Range(partition=self._partition)):
            for item in page:
                yield _Group.of(Key(item["PK"], item["SK"]), item)

    async def _news(self, watch: Watch, seconds: float) -> None:
        """Wait until the queue may have changed, at the latest after `seconds` of its clock."""
        pull = Waker()
        self._pulls.add(pull)
        try:
            if not self.is_closed:
                waits = [self._clock.sleep(seconds), pull.wait(LONGEST_WAIT_S)]
                if self._table.wakes:
                    waits.append(watch.wait(LONGEST_WAIT_S))
                await first_of(*waits)
        finally:
            self._pulls.discard(pull)

    def _key(self, group: str) -> Key:
        return Key(self._partition, f"{GROUP}{group}")

    def _key_of(self, record: EventRecord) -> Key:
        return self._key(record["attributes"]["MessageGroupId"])


class _Record(dict[str, Any]):
    """A delivery as SQS's event source passes it on."""

    group: _Group
    """As it was stored with the receive."""


def _record(queue: str, group: _Group) -> _Record:
    """Return the delivery of a group that was received."""
    first, name = group.messages[0], group.key.SK.removeprefix(GROUP)
    record = _Record(
        messageId=f"{name}.{first.number}",
        receiptHandle=group.receipt,
        body=first.body,
        attributes={
            "ApproximateReceiveCount": str(group.receives),
            "MessageGroupId": name,
            "MessageDeduplicationId": first.deduplication_id,
            "SentTimestamp": str(first.sent_at),
        },
        messageAttributes={},
        eventSource="aws:sqs",
        eventSourceARN=f"arn:aws:sqs:local:000000000000:{queue}",
        awsRegion="local",
    )
    record.group = group
    return record

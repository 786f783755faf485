"""FIFO delivery of typed messages: the message, one delivery of it, and the queue.

Delivery is at least once. At most one message of a group is processed at a time: another delivery
of the group follows when it was acknowledged or given back, or when its visibility ran out.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from pydantic import ValidationError

from a2a_serverless.errors import (
    ConcurrencyError,
    ConfigurationError,
    UnavailableError,
    UndecodableMessageError,
)
from a2a_serverless.observability import spans
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.values import dataclass

if TYPE_CHECKING:
    from a2a_serverless.storage.changes import Change
    from a2a_serverless.storage.table import Table

logger = logging.getLogger(__name__)


class _Message(Protocol):
    """A queue's message: a pydantic model about one task, with ids and without content."""

    @property
    def group(self) -> str:
        """Return the FIFO message group, inside which order is kept."""

    @property
    def deduplication_id(self) -> str:
        """Return an id that repetitions of one send share: they count once within 5 minutes."""

    @property
    def task_id(self) -> str:
        """Return the task that the message is about, for lines of the log."""

    @property
    def trace(self) -> Mapping[str, str]:
        """Return the trace headers of the sender."""

    def model_dump_json(self) -> str:
        """Return the message's body."""

    @classmethod
    def model_validate_json(cls, json_data: str, /) -> Self:
        """Return the message behind a body."""


M = TypeVar("M", bound=_Message)

LONGEST_WAIT_S: Final = 20
"""The longest wait of one pull, in seconds, as of a long poll of SQS."""

MOST_AT_ONCE: Final = 10
"""The most messages that one pull hands out, as of a receive of SQS."""

EventRecord = Mapping[str, Any]
"""A record of an event as Lambda passes it on; a received message has the form of SQS's records."""


def decode_message(kind: type[M], body: object) -> M:
    """Return the message behind a body.

    Raises:
        UndecodableMessageError: the body is invalid; the text repeats nothing of it.
    """
    if not isinstance(body, str):
        raise UndecodableMessageError("The message has no text body.")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        msg = f"The message is not a valid {kind.__name__}: {field}: {first['type']}."
        raise UndecodableMessageError(msg) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOutcome:
    """The decision on a delivery.

    `is_done`: acknowledge it. Otherwise give it back, so that it comes again after `delay_s`; None:
    let it expire.
    """

    is_done: bool
    delay_s: float | None = None


DONE = DeliveryOutcome(is_done=True)
LOST = DeliveryOutcome(is_done=False)
"""Another consumer has the message, or will: leave it alone."""


def again(delay_s: float) -> DeliveryOutcome:
    """Return the outcome to deliver again, `delay_s` seconds from now."""
    return DeliveryOutcome(is_done=False, delay_s=delay_s)


class Handle(ABC, Generic[M]):
    """One delivery of a message: acknowledge it, give it back, or keep it longer.

    Args:
        kind: the message's model.
        record: the delivery.
        message: what `record` holds, where that is known; None: it is decoded.

    Raises:
        UndecodableMessageError: the record does not hold a message of this kind.
    """

    def __init__(self, kind: type[M], record: EventRecord, message: M | None = None) -> None:
        self.message = message or decode_message(kind, record.get("body"))
        self.attempt = int(record["attributes"]["ApproximateReceiveCount"])
        """Deliveries of the message so far, from 1.

        SQS also counts receives that never ran (throttling).
        """
        self.sent_at = int(record["attributes"].get("SentTimestamp", 0))
        """When the message was sent, in milliseconds; 0: unknown."""
        self.hidden_until = 0
        """Until when its receive keeps it from others at least, in milliseconds since the epoch.

        0: unknown, as behind an event source, or after `extend` and `nack`."""
        self._record = record

    def waited_ms(self, now_ms: int, *, since: int = 0) -> int:
        """Return how long the message has waited, at most from `since` on; 0: unknown."""
        return now_ms - max(self.sent_at, since) if self.sent_at else 0

    @abstractmethod
    async def ack(self) -> None:
        """Remove the message for good.

        An expired delivery removes nothing: the message comes again.

        Raises:
            UnavailableError: no answer within the retry budget; the message may come again.
        """

    async def remove(self) -> None:
        """Remove the message now, also where `ack` leaves that to the event source."""
        await self.ack()

    @abstractmethod
    async def nack(self, *, delay_s: float = 0) -> None:
        """Give the message back; it and those behind it are delivered after `delay_s` or later.

        An expired delivery has been given back already: nothing happens.

        Raises:
            UnavailableError: no answer within the retry budget; the message comes back when its
                visibility ends.
        """

    async def acknowledging(self, table: Table) -> Change[Any] | None:  # noqa: ARG002 - of queues elsewhere
        """Return the change that acknowledges the delivery, to be stored with writes to `table`.

        None: the queue is not in that table. Once the change is stored, `ack` does nothing.

        Raises:
            UnavailableError: no answer within the retry budget.
        """
        return None

    @abstractmethod
    async def extend(self, lease_s: float) -> None:
        """Keep the message from other consumers for `lease_s` from now.

        Raises:
            ConcurrencyError: the delivery has expired; another consumer may have the message.
            UnavailableError: no answer within the retry budget; the earlier lease still counts.
        """


async def acknowledge(
    handle: Handle[M],
    outcome: DeliveryOutcome,
    *,
    before_ack: Callable[[], None],
    before_nack: Callable[[], None],
    on_error: Callable[[], None],
) -> bool:
    """Acknowledge a delivery, or give it back, as decided; return True if it is done.

    If the queue could not be told, `on_error` logs the exception. The delivery then expires, the
    message comes again, and its consumer finds out what is left to do.
    """
    try:
        if outcome.is_done:
            before_ack()
            await handle.ack()
        elif outcome.delay_s is not None:
            before_nack()
            await handle.nack(delay_s=outcome.delay_s)
    except Exception:  # noqa: BLE001 - an invocation's edge: its other deliveries go on
        on_error()
    return outcome.is_done


class Places(Protocol[M]):
    """Room for deliveries in this process, a fixed number at a time. Safe under threads."""

    def take(self) -> bool:
        """Take a place; return False if none is free."""

    def begin(self, handle: Handle[M]) -> None:
        """Begin a delivery in a place that was taken; its end frees it."""

    def put(self) -> None:
        """Free a place in which nothing has begun."""


class Reservation(Protocol):
    """A free place of this process, reserved for one message until `release`."""

    async def sending(self, message: Any, *, is_first: bool) -> Change[Any]:
        """Return the change that sends a message, and receives it.

        It changes nothing where other messages of the group wait. `is_first`: the group is new.

        Raises:
            UnavailableError: no answer within the retry budget.
        """

    def deliver(self) -> bool:
        """Begin the message in its place if its change is stored; return False if it is not."""

    def release(self) -> None:
        """Free the place, unless the message has begun there."""


class FifoQueue(ABC, Generic[M]):
    """A queue of messages of one kind.

    Every method that talks to the queue raises:
        UnavailableError: no answer within the retry budget.
        ConfigurationError: there is no such queue, or it refuses this process.
    """

    system: ClassVar[str] = "a2a_serverless"
    """The messaging system, as OpenTelemetry's conventions name it."""

    def __init__(self, kind: type[M], name: str) -> None:
        self.kind = kind
        self.name = name
        """The end of the ARN in the records of an event."""
        self.places: Places[M] | None = None
        """Room for what this process sends itself; None: there is none."""
        self.is_closed = False
        """True once nothing is received any more, see `shutdown`."""

    async def check(self) -> None:
        """Raise ConfigurationError, with one sentence for the start, if the queue is missing."""

    @abstractmethod
    async def send(self, message: M) -> None:
        """Enqueue a message, unless one with its deduplication id was sent within 5 minutes."""

    def reserve(self, table: Table) -> Reservation | None:  # noqa: ARG002 - of queues elsewhere
        """Reserve one of the `places` for a message that goes with writes to `table`.

        None: none is free, or the queue is not in that table.
        """
        return None

    async def send_all(self, messages: Sequence[M]) -> list[Exception | None]:
        """Send up to 10 messages of different groups; return for each why it was not sent, or None.

        Unlike other methods it raises nothing of the queue's.
        """
        sent = await asyncio.gather(*map(self.send, messages), return_exceptions=True)
        return [outcome if isinstance(outcome, Exception) else None for outcome in sent]

    @abstractmethod
    async def pull(self, limit: int, wait_s: float) -> list[Handle[M]]:
        """Return up to `limit` deliveries, 10 at most, and none if none comes within `wait_s`.

        They include only the first message of a group; others of the group that came with it are
        given back at once. After an error of the network, which is logged, and after `shutdown` the
        list is empty. A poll must be awaited to its end: messages that an abandoned poll receives
        are given back; if the process is frozen or dies before that, they wait for the end of their
        visibility.

        Raises:
            ConfigurationError: there is no such queue.
        """

    async def deliveries(self) -> AsyncGenerator[Handle[M]]:
        """Yield deliveries as they come, one at a time, until `shutdown` (pull mode)."""
        while not self.is_closed:
            for handle in await self.pull(1, LONGEST_WAIT_S):
                yield handle

    @abstractmethod
    async def shutdown(self) -> None:
        """Stop receiving: every `deliveries` ends instead of returning another delivery."""

    @abstractmethod
    def decode_record(self, record: EventRecord, *, removes: bool = False) -> Handle[M]:
        """Return the delivery behind a record of an SQS event (push mode).

        `removes`: the delivery's `ack` removes the message. Otherwise `ack` may do nothing: when
        the invocation has returned, the event source deletes the records that were not reported as
        failed.

        Raises:
            UndecodableMessageError: the record does not hold a message of this kind.
        """

    async def handle_of(self, record: EventRecord) -> Handle[M] | None:
        """Return the delivery of a pulled message; None if it cannot be read.

        Then it is set aside, and removed; where that fails it stays, and comes again.
        """
        try:
            return self.decode_record(record, removes=True)
        except UndecodableMessageError as error:
            extra = {"action": "undecodable", "message_id": record["messageId"]}
            logger.error("%s", error, extra=extra)  # noqa: TRY400 - expected
            await self._set_aside(record, reason=str(error))
            return None

    async def _set_aside(self, record: EventRecord, *, reason: str) -> None:
        body, message_id = record["body"], record["messageId"]
        try:
            if await self.keep_undecodable(body, reason=reason, message_id=message_id):
                await self.delete(record)
        except (ConcurrencyError, ConfigurationError, UnavailableError) as error:
            extra = {"action": "set_aside_failed", "error": type(error).__name__}
            logger.warning("An undecodable message stays: %s", error, extra=extra)

    @abstractmethod
    async def delete(self, record: EventRecord) -> None:
        """Remove a received message."""

    @abstractmethod
    async def keep_undecodable(
        self, body: str, *, reason: str, message_id: str | None = None
    ) -> bool:
        """Copy a body that cannot be read to a queue without consumers, for a person.

        Return False if there is no such queue; the caller then leaves the message in its own.
        `message_id` tells the message from another one with the same body; without it the two are
        kept as one.
        """


# -- operations ------------------------------------------------------------------------------


async def send_operation(queue: FifoQueue[Operation], operation: Operation) -> None:
    """Send an operation, with the trace of the calling code; raises what `FifoQueue.send` does."""
    with spans.messaging("send", queue.name, queue.system):
        await queue.send(operation.within(spans.trace_context()))


async def send_copy(queue: FifoQueue[Operation], head: Head) -> None:
    """Send the operation of a turn that was requeued, or that its process hands over."""
    await send_operation(
        queue, Operation.to_run(OperationParams.of(head, head.turn.number, head.turn.sends))
    )


async def send_copies(
    queue: FifoQueue[Operation], copies: Sequence[OperationParams]
) -> list[Exception | None]:
    """Send operations that run turns, as one batch; see `FifoQueue.send_all`."""
    if not copies:
        return []
    batch = {"messaging.batch.message_count": len(copies) if len(copies) > 1 else None}
    with spans.messaging("send", queue.name, queue.system, attributes=batch):
        context = spans.trace_context()
        return await queue.send_all([Operation.to_run(copy).within(context) for copy in copies])

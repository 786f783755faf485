"""Queues on SQS FIFO: visibility is both the lease of a delivery and its back-off.

Push mode (Lambda receives and deletes) is `decode_record`, pull mode `deliveries`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, InvalidStateError
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from a2a_serverless import aws
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import (
    ConcurrencyError,
    ConfigurationError,
    UnavailableError,
    UndecodableMessageError,
)
from a2a_serverless.observability.tracing import system_attributes
from a2a_serverless.queues.fifo import EventRecord, FifoQueue, Handle, M
from a2a_serverless.tasks.identity import digest

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import MessageTypeDef

LONG_POLL_S: Final = 20
"""Seconds that SQS holds a receive at most."""

LONGEST_LEASE_S: Final = 43_170
"""SQS allows 12 h of visibility since the receive; a request for the last seconds fails."""

_MISSING_CODES: Final = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
_EXPIRED_CODES: Final = frozenset(
    {"InvalidParameterValue", "MessageNotInflight", "ReceiptHandleIsInvalid"}
)
"""Errors of SQS for a receipt that is not the latest, has expired, or has used up its 12 h."""

logger = logging.getLogger(__name__)


class SqsRequests:
    """The requests to one queue, which is known by its URL or by its name.

    Every method raises:
        UnavailableError: no answer within the retry budget.
        ConfigurationError: there is no such queue, or it refuses this process.
    """

    def __init__(self, queue: str, client: SQSClient | None, clock: Clock) -> None:
        self.name = queue
        self.clock = clock
        self._url = queue if "://" in queue else None
        self._client = client

    @property
    def client(self) -> SQSClient:
        return self._client or aws.client("sqs")

    @property
    def polling_client(self) -> SQSClient:
        """Return the client whose read time-out is longer than a long poll."""
        return self._client or aws.client("sqs", long_poll=True)

    async def url(self) -> str:
        """Return the queue's URL; a name is looked up once."""
        if self._url is None:
            answer = await self._request(self.client.get_queue_url, QueueName=self.name)
            self._url = str(answer["QueueUrl"])
        return self._url

    async def check(self) -> None:
        """Raise ConfigurationError if the queue does not exist."""
        await self._request(
            self.client.get_queue_attributes, QueueUrl=await self.url(), AttributeNames=["QueueArn"]
        )

    async def send(self, body: str, **options: Any) -> None:
        """Send a message; `options` are those of the API."""
        await self._request(
            self.client.send_message, QueueUrl=await self.url(), MessageBody=body, **options
        )

    async def keep(self, body: str, *, reason: str, message_id: str | None) -> None:
        """Send a body for a person to read, in a group of its own if the queue has groups."""
        own = digest("push-undecodable", message_id or body)  # the name under which they are stored
        is_fifo = self.name.endswith(".fifo")
        await self.send(
            body,
            MessageAttributes={"reason": {"DataType": "String", "StringValue": reason}},
            **({"MessageGroupId": own, "MessageDeduplicationId": own} if is_fifo else {}),
        )

    async def delete(self, receipt: str) -> None:
        """Delete a received message.

        Raises:
            ConcurrencyError: the receipt has expired.
        """
        await self._request(
            self.client.delete_message, QueueUrl=await self.url(), ReceiptHandle=receipt
        )

    async def hide(self, receipt: str, seconds: int) -> None:
        """Set the visibility of a received message.

        Raises:
            ConcurrencyError: the receipt has expired.
        """
        await self._request(
            self.client.change_message_visibility,
            QueueUrl=await self.url(),
            ReceiptHandle=receipt,
            VisibilityTimeout=seconds,
        )

    async def _request(self, method: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return await aws.repeat(method, clock=self.clock, **arguments)
        except aws.ERRORS as error:
            if "ReceiptHandle" in arguments and _code(error) in _EXPIRED_CODES:
                raise ConcurrencyError("The delivery has expired.") from error
            raise self.misconfigured(error) from error

    @staticmethod
    def is_missing(error: Exception) -> bool:
        """Return True if an error says that there is no such queue."""
        return _code(error) in _MISSING_CODES

    def misconfigured(self, error: Exception) -> ConfigurationError:
        """Return the ConfigurationError for an error that a repetition cannot cure."""
        if self.is_missing(error):
            return ConfigurationError(f"The queue {self.name} does not exist.")
        return ConfigurationError(f"The queue {self.name} cannot be used: {error}")


class SqsHandle(Handle[M]):
    """One receive of a message. It is bound to no event loop: a heartbeat may use another one."""

    def __init__(
        self,
        requests: SqsRequests,
        kind: type[M],
        record: EventRecord,
        *,
        is_pulled: bool,
    ) -> None:
        super().__init__(kind, record)
        self._requests = requests
        self._receipt = str(record["receiptHandle"])
        self._is_pulled = is_pulled
        self._received_at = requests.clock.monotonic()

    async def ack(self) -> None:
        """Remove the message; in push mode Lambda deletes records that are not reported failed."""
        if not self._is_pulled:
            return
        try:
            await self._requests.delete(self._receipt)
        except ConcurrencyError:
            self._log_expired("ack")

    async def nack(self, *, delay_s: float = 0) -> None:
        """Give the message back by its visibility; in push mode before it is reported failed."""
        seconds = min(max(0, math.ceil(delay_s)), max(0, self._rest_s()))
        try:
            await self._requests.hide(self._receipt, seconds)
        except ConcurrencyError:
            self._log_expired("nack")

    async def extend(self, lease_s: float) -> None:
        seconds = min(math.ceil(lease_s), self._rest_s())
        if seconds < 1:
            raise ConcurrencyError("The delivery has used up the 12 hours that SQS grants.")
        await self._requests.hide(self._receipt, seconds)

    def _rest_s(self) -> int:
        """Return the seconds that are left of the longest lease."""
        return int(LONGEST_LEASE_S - (self._requests.clock.monotonic() - self._received_at))

    def _log_expired(self, call: str) -> None:
        logger.warning(
            "%s of an expired delivery; the message comes again",
            call,
            extra={
                "action": f"{call}_expired",
                "task_id": self.message.task_id,
                "message_id": self._record["messageId"],
            },
        )


class SqsFifoQueue(FifoQueue[M]):
    """Messages on one FIFO queue of SQS.

    Args:
        kind: the messages' model.
        queue: URL or name of the queue; a name is looked up at the first use.
        undecodable_queue: URL or name of the queue for bodies that cannot be read, FIFO or not.
        client: by default that of the process.
        clock: by default that of the system.
        visibility_s: the lease of a pulled message, in whole seconds; its consumer extends it.
    """

    def __init__(
        self,
        kind: type[M],
        queue: str,
        *,
        undecodable_queue: str | None = None,
        client: SQSClient | None = None,
        clock: Clock | None = None,
        visibility_s: float = 60,
    ) -> None:
        super().__init__(kind)
        clock = clock or SystemClock()
        self._requests = SqsRequests(queue, client, clock)
        self._undecodable = (
            SqsRequests(undecodable_queue, client, clock) if undecodable_queue else None
        )
        self._clock = clock
        self._visibility_s = math.ceil(visibility_s)
        self._closed = False
        self._polls: set[Future[list[EventRecord]]] = set()

    async def check(self) -> None:
        await self._requests.check()
        if self._undecodable is not None:
            await self._undecodable.check()

    async def send(self, message: M) -> None:
        await self._requests.send(
            message.model_dump_json(),
            MessageGroupId=message.group,
            # A send whose answer was lost is repeated under the same id: SQS keeps one.
            MessageDeduplicationId=message.deduplication_id,
            # X-Ray links the invocation to it; the message itself carries the trace on.
            MessageSystemAttributes=system_attributes(message.trace),
        )

    async def keep_undecodable(
        self, body: str, *, reason: str, message_id: str | None = None
    ) -> bool:
        if self._undecodable is None:
            return False
        await self._undecodable.keep(body, reason=reason, message_id=message_id)
        return True

    async def shutdown(self) -> None:
        """End every `deliveries`, even in a long poll.

        Messages that the abandoned poll still receives are given back, or their visibility ends.
        """
        self._closed = True
        for poll in tuple(self._polls):
            _resolve(poll, [])

    async def deliveries(self) -> AsyncGenerator[Handle[M]]:
        """Yield deliveries as in the contract.

        A message that cannot be decoded is kept if there is a queue for it, else left to the
        redrive policy. Errors of the network are logged, and receiving goes on.

        Raises:
            ConfigurationError: the queue does not exist.
        """
        url = await self._requests.url()
        failures = 0
        while not self._closed:
            try:
                records = await self._receive(url)
                failures = 0
            except aws.ERRORS as error:
                failures += 1
                await self._back_off(error, failures)
                continue
            for record in records:
                handle = await self._decode(record)
                if handle is not None:
                    yield handle

    def decode_record(self, record: EventRecord) -> SqsHandle[M]:
        return SqsHandle(self._requests, self.kind, record, is_pulled=False)

    async def _receive(self, url: str) -> list[EventRecord]:
        """Make one long poll, in a daemon thread of its own.

        In the pool of `aws.call` it would delay other calls, and the end of the process.
        """
        poll: Future[list[EventRecord]] = Future()
        self._polls.add(poll)
        Thread(target=self._poll, args=(url, poll), name="sqs-poll", daemon=True).start()
        try:
            return await asyncio.wrap_future(poll)
        except asyncio.CancelledError:
            if not poll.cancel() and poll.exception() is None:
                Thread(target=self._give_back, args=(url, poll.result()), daemon=True).start()
            raise
        finally:
            self._polls.discard(poll)

    def _poll(self, url: str, poll: Future[list[EventRecord]]) -> None:
        try:
            answer = self._requests.polling_client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=1,
                WaitTimeSeconds=LONG_POLL_S,
                VisibilityTimeout=self._visibility_s,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        except Exception as error:  # noqa: BLE001 - handed over to the coroutine that waits
            _resolve(poll, error)
            return
        records = [_record(message) for message in answer.get("Messages", [])]
        if not _resolve(poll, records):
            self._give_back(url, records)

    def _give_back(self, url: str, records: list[EventRecord]) -> None:
        """Give back messages that came after their receiver had left: they are visible at once."""
        for record in records:
            try:
                self._requests.client.change_message_visibility(
                    QueueUrl=url, ReceiptHandle=record["receiptHandle"], VisibilityTimeout=0
                )
            except aws.ERRORS as error:
                logger.warning(
                    "An unwanted message was not given back",
                    extra={"action": "give_back_failed", "error": type(error).__name__},
                )

    async def _back_off(self, error: Exception, failures: int) -> None:
        if self._requests.is_missing(error):
            raise self._requests.misconfigured(error) from error
        logger.warning(
            "Receiving from the queue failed: %s",
            error,
            extra={"action": "receive_failed", "failures": failures, "error": type(error).__name__},
        )
        await self._clock.sleep(aws.pause_s(failures))

    async def _decode(self, record: EventRecord) -> SqsHandle[M] | None:
        """Return the delivery of a pulled message; None if it could not be read."""
        try:
            return SqsHandle(self._requests, self.kind, record, is_pulled=True)
        except UndecodableMessageError as error:
            extra = {"action": "undecodable", "message_id": record["messageId"]}
            logger.error("%s", error, extra=extra)  # noqa: TRY400 - expected
            await self._remove_undecodable(record, reason=str(error))
            return None

    async def _remove_undecodable(self, record: EventRecord, *, reason: str) -> None:
        body, message_id = record["body"], record["messageId"]
        try:
            if await self.keep_undecodable(body, reason=reason, message_id=message_id):
                await self._requests.delete(record["receiptHandle"])
        except (ConcurrencyError, ConfigurationError, UnavailableError) as error:
            # It is still on its queue, and comes again.
            extra = {"action": "set_aside_failed", "error": type(error).__name__}
            logger.warning("An undecodable message stays: %s", error, extra=extra)


def _record(message: MessageTypeDef) -> EventRecord:
    """Return a pulled message as an event source passes it on, as far as a handle needs it."""
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message.get("Body", ""),
        "attributes": message["Attributes"],
    }


def _resolve(poll: Future[list[EventRecord]], outcome: list[EventRecord] | Exception) -> bool:
    """Hand over a poll's outcome, once; return False if its receiver has one, or has left."""
    try:
        if isinstance(outcome, Exception):
            poll.set_exception(outcome)
        else:
            poll.set_result(outcome)
    except InvalidStateError:
        return False
    return True


def _code(error: Exception) -> str:
    """Return the code without the prefix of the older protocol (`AWS.SimpleQueueService.`)."""
    if not isinstance(error, ClientError):
        return type(error).__name__
    return aws.error_code(error).rsplit(".", 1)[-1]

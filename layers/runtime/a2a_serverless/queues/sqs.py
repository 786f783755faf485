"""Queues on SQS FIFO: visibility is both the lease of a delivery and the wait before the next one.

In push mode, in which Lambda receives and deletes, use `decode_record`; in pull mode, use `pull`
and `deliveries`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from a2a_serverless import aws
from a2a_serverless.clock import Clock, SystemClock, pause_s
from a2a_serverless.errors import (
    ConcurrencyError,
    ConfigurationError,
    UnavailableError,
)
from a2a_serverless.queues.fifo import MOST_AT_ONCE, EventRecord, FifoQueue, Handle, M
from a2a_serverless.tasks.identity import digest

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import MessageTypeDef

_SHORT_WAIT_S: Final = 2
"""The longest wait of a receive, in seconds, that is sent with the time-out of other requests."""

_ATTEMPT_ID_BYTES: Final = 16
"""Random bytes of a poll's ReceiveRequestAttemptId, written in hex. SQS allows 128 characters.

If the answer to a receive gets lost, boto3 repeats the request with the same id, and SQS returns
the same messages under the same receipts, though they are hidden, and hides them anew. It does so
for 5 minutes, on FIFO queues only, and not if one of the messages was deleted or had its visibility
changed since. Without the id they would stay hidden until their visibility ends.
"""

_SHORT_POLL_S: Final = 0.25
"""Seconds between two receives of a queue that is not long-polled."""

_LONGEST_LEASE_S: Final = 43_170
"""The longest visibility that is asked for, in seconds since the receive. SQS allows 12 h, but a
request for the last seconds fails."""

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

    async def send(self, **message: Any) -> None:
        """Send a message, given as the API has it."""
        await self._request(self.client.send_message, QueueUrl=await self.url(), **message)

    async def send_all(self, messages: Sequence[Mapping[str, Any]]) -> dict[int, Exception]:
        """Send up to 10 messages in one request; return the errors of those that were not sent."""
        entries = [{"Id": str(place), **message} for place, message in enumerate(messages)]
        answer = await self._request(
            self.client.send_message_batch, QueueUrl=await self.url(), Entries=entries
        )
        return {
            int(failed["Id"]): UnavailableError(f"SQS did not take the message: {failed['Code']}.")
            for failed in answer.get("Failed", ())
        }

    async def keep(self, body: str, *, reason: str, message_id: str | None) -> None:
        """Send a body for a person to read, in a group of its own if the queue has groups."""
        own = digest("push-undecodable", message_id or body)  # the kind of stored messages' ids
        is_fifo = self.name.endswith(".fifo")
        # A FIFO queue knows it by this id: kept again within five minutes, it is there once.
        await self.send(
            MessageBody=body,
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
            # A send can be repeated: for five minutes SQS drops what has the same deduplication id.
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
        """Return the ConfigurationError for an error that would come again if repeated."""
        if self.is_missing(error):
            return ConfigurationError(f"The queue {self.name} does not exist.")
        return ConfigurationError(f"The queue {self.name} cannot be used: {error}")


def _code(error: Exception) -> str:
    """Return the code without the prefix of the older protocol (`AWS.SimpleQueueService.`)."""
    if not isinstance(error, ClientError):
        return type(error).__name__
    return aws.error_code(error).rsplit(".", 1)[-1]


class _SqsHandle(Handle[M]):
    """One receive of a message. It is bound to no event loop: a heartbeat may use another one."""

    def __init__(
        self,
        requests: SqsRequests,
        kind: type[M],
        record: EventRecord,
        *,
        removes: bool,
    ) -> None:
        super().__init__(kind, record)
        self._requests = requests
        self._receipt = str(record["receiptHandle"])
        self._removes = removes
        self._received_at = requests.clock.monotonic()

    async def ack(self) -> None:
        """Remove the message, unless that is left to Lambda: see `FifoQueue.decode_record`."""
        if self._removes:
            await self.remove()

    async def remove(self) -> None:
        try:
            await self._requests.delete(self._receipt)
        except ConcurrencyError:
            # It comes again, and its worker finds that nothing is left to do.
            self._log_expired("ack")

    async def nack(self, *, delay_s: float = 0) -> None:
        """Give the message back by its visibility; in push mode, before it is reported failed."""
        # SQS hides a message for 12 hours from its receipt at most, and refuses more.
        seconds = min(max(0, math.ceil(delay_s)), max(0, self._rest_s()))
        self.hidden_until = 0
        try:
            await self._requests.hide(self._receipt, seconds)
        except ConcurrencyError:
            self._log_expired("nack")

    async def extend(self, lease_s: float) -> None:
        seconds = min(math.ceil(lease_s), self._rest_s())
        if seconds < 1:
            raise ConcurrencyError("The delivery has used up the 12 hours that SQS grants.")
        self.hidden_until = 0
        await self._requests.hide(self._receipt, seconds)

    def _rest_s(self) -> int:
        """Return the seconds that are left of the longest lease."""
        return int(_LONGEST_LEASE_S - (self._requests.clock.monotonic() - self._received_at))

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
        has_long_polls: False where a long poll holds up other requests, as in a simulation.
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
        has_long_polls: bool = True,
    ) -> None:
        super().__init__(kind, queue.rpartition("/")[2])
        clock = clock or SystemClock()
        self._requests = SqsRequests(queue, client, clock)
        self._undecodable = (
            SqsRequests(undecodable_queue, client, clock) if undecodable_queue else None
        )
        self._clock = clock
        self._visibility_s = math.ceil(visibility_s)
        self._has_long_polls = has_long_polls
        self._failures = 0
        self._polls: set[Future[list[EventRecord]]] = set()

    async def check(self) -> None:
        await self._requests.check()
        if self._undecodable is not None:
            await self._undecodable.check()

    async def send(self, message: M) -> None:
        await self._requests.send(**_sent(message))

    async def send_all(self, messages: Sequence[M]) -> list[Exception | None]:
        """Send up to 10 messages in one request; return for each why it was not sent, or None."""
        try:
            failed = await self._requests.send_all([_sent(message) for message in messages])
        except (ConfigurationError, UnavailableError) as error:
            return [error] * len(messages)
        return [failed.get(place) for place in range(len(messages))]

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
        self.is_closed = True
        for poll in tuple(self._polls):
            _resolve(poll, [])

    async def pull(self, limit: int, wait_s: float) -> list[Handle[M]]:
        """Return deliveries as in the contract.

        A message that cannot be decoded is kept if there is a queue for it, else left to the
        redrive policy.
        """
        url = await self._requests.url()
        until = self._clock.monotonic() + wait_s
        while not self.is_closed:
            asked_at = self._clock.now_ms()
            try:
                records = await self._receive(url, limit, wait_s if self._has_long_polls else 0)
                self._failures = 0
            except (*aws.ERRORS, UnavailableError) as error:
                self._failures += 1
                await self._back_off(error, self._failures)
                return []
            left_s = until - self._clock.monotonic()
            if records or self._has_long_polls or left_s <= 0:
                handles = [await self.handle_of(record) for record in records]
                pulled = [handle for handle in handles if handle is not None]
                for handle in pulled:
                    # At least: SQS hides a message from its receive on, later than it was asked.
                    handle.hidden_until = asked_at + 1000 * self._visibility_s
                return pulled
            await self._clock.sleep(min(_SHORT_POLL_S, left_s))
        return []

    def decode_record(self, record: EventRecord, *, removes: bool = False) -> _SqsHandle[M]:
        return _SqsHandle(self._requests, self.kind, record, removes=removes)

    async def delete(self, record: EventRecord) -> None:
        await self._requests.delete(record["receiptHandle"])

    async def _receive(self, url: str, limit: int, wait_s: float) -> list[EventRecord]:
        """Make one poll, in a daemon thread of its own.

        In the pool of `aws.call` it would delay other calls, and the end of the process.

        Raises:
            UnavailableError: no thread could be started.
            ClientError, BotoCoreError: as boto3 does.
        """
        poll: Future[list[EventRecord]] = Future()
        self._polls.add(poll)
        arguments = (url, poll, limit, wait_s)
        thread = Thread(target=self._poll, args=arguments, name="sqs-poll", daemon=True)
        try:
            _start(thread)
            return await asyncio.wrap_future(poll)
        except asyncio.CancelledError:
            # SQS has answered already: without this, the messages would lie hidden for their
            # visibility.
            if not poll.cancel() and poll.exception() is None:
                Thread(target=self._give_back, args=(url, poll.result()), daemon=True).start()
            raise
        finally:
            self._polls.discard(poll)

    def _poll(self, url: str, poll: Future[list[EventRecord]], limit: int, wait_s: float) -> None:
        # A short wait is answered within the time-out of other requests, so it can have the same.
        is_long = wait_s > _SHORT_WAIT_S
        client = self._requests.polling_client if is_long else self._requests.client
        try:
            answer = client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=min(limit, MOST_AT_ONCE),
                WaitTimeSeconds=math.ceil(wait_s),
                VisibilityTimeout=self._visibility_s,
                ReceiveRequestAttemptId=secrets.token_hex(_ATTEMPT_ID_BYTES),
                MessageSystemAttributeNames=[
                    "ApproximateReceiveCount",
                    "MessageGroupId",
                    "SentTimestamp",
                ],
            )
        except Exception as error:  # noqa: BLE001 - handed over to the coroutine that waits
            _resolve(poll, error)
            return
        records, behind = _firsts_of_groups(_record(each) for each in answer.get("Messages", []))
        # Given back now: later the first of their group may be acknowledged and the process frozen.
        self._give_back(url, behind)
        if not _resolve(poll, records):
            self._give_back(url, records)

    def _give_back(self, url: str, records: list[EventRecord]) -> None:
        """Give back messages that are not handed out, so that they are visible at once."""
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
        await self._clock.sleep(pause_s(failures))


def _sent(message: M) -> dict[str, Any]:
    """Return a message as a request sends it."""
    return {
        "MessageBody": message.model_dump_json(),
        "MessageGroupId": message.group,
        # A send whose answer was lost is repeated with the same id: SQS keeps one message.
        "MessageDeduplicationId": message.deduplication_id,
    }


def _record(message: MessageTypeDef) -> EventRecord:
    """Return a pulled message as an event source passes it on, as far as a handle needs it."""
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message.get("Body", ""),
        "attributes": message["Attributes"],
    }


def _firsts_of_groups(
    records: Iterable[EventRecord],
) -> tuple[list[EventRecord], list[EventRecord]]:
    """Return the first record of each group, and all records behind these."""
    groups: set[str] = set()
    firsts: list[EventRecord] = []
    behind: list[EventRecord] = []
    # SQS may return several messages of one group at once: handed out together, they would run
    # beside one another.
    for record in records:
        group = record["attributes"].get("MessageGroupId", record["messageId"])
        (behind if group in groups else firsts).append(record)
        groups.add(group)
    return firsts, behind


def _start(thread: Thread) -> None:
    """Start a thread; raise UnavailableError if the system has none, as agents have taken all."""
    try:
        thread.start()
    except RuntimeError as error:
        raise UnavailableError("No thread could be started to poll the queue.") from error


def _resolve(poll: Future[list[EventRecord]], outcome: list[EventRecord] | Exception) -> bool:
    """Hand over a poll's outcome; return False if the receiver has one already, or has left."""
    try:
        if isinstance(outcome, Exception):
            poll.set_exception(outcome)
        else:
            poll.set_result(outcome)
    except InvalidStateError:
        return False
    return True

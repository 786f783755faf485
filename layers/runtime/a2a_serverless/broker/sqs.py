"""The Broker contract on SQS FIFO: a group per task, visibility as the lease and as the back-off.

Push mode (Lambda receives and deletes) is `decode_record`, pull mode `receive_task_operations`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future, InvalidStateError
from threading import Thread
from typing import TYPE_CHECKING, Any

from a2a_serverless import aws
from a2a_serverless.broker.base import Broker, OperationHandle, decode_operation, operation_of
from a2a_serverless.broker.sqs_queue import SqsQueue
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import (
    ConcurrencyError,
    ConfigurationError,
    UnavailableError,
    UndecodableOperationError,
)
from a2a_serverless.observability.tracing import system_attributes
from a2a_serverless.tasks.operations import Operation, OperationParams

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.type_defs import MessageTypeDef

LONG_POLL_S = 20
"""The longest that SQS holds a receive."""

LONGEST_LEASE_S = 43_170
"""SQS allows 12 h of visibility since the receive; asking for its very end fails in practice."""

_log = logging.getLogger(__name__)


class SqsOperationHandle(OperationHandle):
    """One receive of a message. It belongs to no event loop: a heartbeat may use its own."""

    def __init__(
        self,
        queue: SqsQueue,
        operation: Operation,
        *,
        receipt: str,
        message_id: str,
        attempt: int,
        is_pulled: bool,
    ) -> None:
        self._queue = queue
        self._operation = operation
        self._receipt = receipt
        self._attempt = attempt
        self._is_pulled = is_pulled
        self._received_at = queue.clock.monotonic()
        self.message_id = message_id
        """What a batch response names a failed record by."""

    @property
    def operation(self) -> Operation:
        return self._operation

    @property
    def attempt(self) -> int:
        return self._attempt

    async def ack(self) -> None:
        """As in the contract; in push mode Lambda deletes what is not reported failed."""
        if not self._is_pulled:
            return
        try:
            await self._queue.delete(self._receipt)
        except ConcurrencyError:
            self._log_expired("ack")

    async def nack(self, *, delay_seconds: float = 0) -> None:
        """Set the visibility; in push mode before the record is reported failed."""
        delay_s = min(max(0, math.ceil(delay_seconds)), max(0, self._rest_s()))
        try:
            await self._queue.hide(self._receipt, delay_s)
        except ConcurrencyError:
            self._log_expired("nack")

    async def extend(self, seconds: float) -> None:
        lease_s = min(math.ceil(seconds), self._rest_s())
        if lease_s < 1:
            msg = "The delivery has used up the 12 hours that SQS grants."
            raise ConcurrencyError(msg)
        await self._queue.hide(self._receipt, lease_s)

    def _rest_s(self) -> int:
        """Seconds that are left of the longest lease."""
        return int(LONGEST_LEASE_S - (self._queue.clock.monotonic() - self._received_at))

    def _log_expired(self, what: str) -> None:
        _log.warning(
            "%s of an expired delivery; the operation comes again",
            what,
            extra={
                "action": f"{what}_expired",
                "task_id": self._operation.params.task_id,
                "message_id": self.message_id,
            },
        )


class SqsFifoBroker(Broker):
    """Operations on one FIFO queue, whose group is the task and whose order is that of the sends.

    Args:
        queue: URL or name of the queue; a name is looked up at the first use.
        undecodable_queue: URL or name of the standard queue for what nobody can read.
        client: by default the process's own.
        clock: by default the system's.
        visibility_s: the lease of a pulled message, in whole seconds; the worker extends it.
    """

    def __init__(
        self,
        queue: str,
        *,
        undecodable_queue: str | None = None,
        client: SQSClient | None = None,
        clock: Clock | None = None,
        visibility_s: float = 60,
    ) -> None:
        clock = clock or SystemClock()
        self._queue = SqsQueue(queue, client, clock)
        self._undecodable = (
            SqsQueue(undecodable_queue, client, clock) if undecodable_queue else None
        )
        self._clock = clock
        self._visibility_s = math.ceil(visibility_s)
        self._closed = False
        self._polls: set[Future[list[MessageTypeDef]]] = set()

    async def check(self) -> None:
        await self._queue.check()
        if self._undecodable is not None:
            await self._undecodable.check()

    async def run_task(
        self,
        params: OperationParams,
        *,
        is_new_task: bool = False,
        request_context: Mapping[str, str] | None = None,
    ) -> None:
        await self._send(
            operation_of("run", params, is_new_task=is_new_task, request_context=request_context)
        )

    async def cancel_task(
        self, params: OperationParams, *, request_context: Mapping[str, str] | None = None
    ) -> None:
        await self._send(operation_of("cancel", params, request_context=request_context))

    async def set_aside(self, body: str, *, reason: str) -> bool:
        if self._undecodable is None:
            return False
        attribute = {"DataType": "String", "StringValue": reason}
        await self._undecodable.send(body, MessageAttributes={"reason": attribute})
        return True

    async def shutdown(self) -> None:
        """End every `receive_task_operations`, also one that waits in a long poll.

        What the abandoned poll still receives is given back, or its visibility runs out.
        """
        self._closed = True
        for poll in tuple(self._polls):
            _resolve(poll, [])

    async def receive_task_operations(self) -> AsyncIterator[OperationHandle]:
        """As in the contract.

        A message that cannot be decoded is set aside where there is a queue for it, else left to
        the redrive policy. Errors of the network are logged, and receiving goes on.

        Raises:
            ConfigurationError: the queue does not exist.
        """
        url = await self._queue.url()
        failures = 0
        while not self._closed:
            try:
                messages = await self._receive(url)
                failures = 0
            except aws.ERRORS as error:
                failures += 1
                await self._back_off(error, failures)
                continue
            for message in messages:
                handle = await self._decode(message)
                if handle is not None:
                    yield handle

    def decode_record(self, record: Mapping[str, Any]) -> SqsOperationHandle:
        """The handle of one record of a Lambda event (push mode).

        Raises:
            UndecodableOperationError: the body is no operation; report the record failed.
        """
        return SqsOperationHandle(
            self._queue,
            decode_operation(record.get("body")),
            receipt=str(record["receiptHandle"]),
            message_id=str(record["messageId"]),
            attempt=int(record["attributes"]["ApproximateReceiveCount"]),
            is_pulled=False,
        )

    async def _send(self, operation: Operation) -> None:
        await self._queue.send(
            operation.model_dump_json(),
            MessageGroupId=operation.params.group,
            # A send whose answer was lost is repeated under the same id: SQS keeps one.
            MessageDeduplicationId=operation.deduplication_id,
            # For X-Ray to link the invocation to; what continues the trace is in the operation.
            MessageSystemAttributes=system_attributes(operation.request_context),
        )

    async def _receive(self, url: str) -> list[MessageTypeDef]:
        """One long poll, in a daemon thread of its own.

        In the pool of `aws.call` it would keep other calls waiting, and the process from ending.
        """
        poll: Future[list[MessageTypeDef]] = Future()
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

    def _poll(self, url: str, poll: Future[list[MessageTypeDef]]) -> None:
        try:
            answer = self._queue.polling_client.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=1,
                WaitTimeSeconds=LONG_POLL_S,
                VisibilityTimeout=self._visibility_s,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        except Exception as error:  # noqa: BLE001 - handed over to the coroutine that waits
            _resolve(poll, error)
            return
        messages = answer.get("Messages", [])
        if not _resolve(poll, messages):
            self._give_back(url, messages)

    def _give_back(self, url: str, messages: list[MessageTypeDef]) -> None:
        """Return what came after its receiver had left; else it would wait for the visibility."""
        for message in messages:
            try:
                self._queue.client.change_message_visibility(
                    QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
                )
            except aws.ERRORS as error:
                _log.warning(
                    "An unwanted message was not given back",
                    extra={"action": "give_back_failed", "error": type(error).__name__},
                )

    async def _back_off(self, error: Exception, failures: int) -> None:
        if self._queue.is_missing(error):
            raise self._queue.misconfigured(error) from error
        _log.warning(
            "Receiving from the queue failed: %s",
            error,
            extra={"action": "receive_failed", "failures": failures, "error": type(error).__name__},
        )
        await self._clock.sleep(aws.pause_s(failures))

    async def _decode(self, message: MessageTypeDef) -> SqsOperationHandle | None:
        body, receipt = message.get("Body"), message["ReceiptHandle"]
        try:
            return SqsOperationHandle(
                self._queue,
                decode_operation(body),
                receipt=receipt,
                message_id=message["MessageId"],
                attempt=int(message["Attributes"]["ApproximateReceiveCount"]),
                is_pulled=True,
            )
        except UndecodableOperationError as error:
            extra = {"action": "undecodable", "message_id": message["MessageId"]}
            _log.error("%s", error, extra=extra)
            await self._remove_undecodable(body or "", receipt, reason=str(error))
            return None

    async def _remove_undecodable(self, body: str, receipt: str, *, reason: str) -> None:
        try:
            if await self.set_aside(body, reason=reason):
                await self._queue.delete(receipt)
        except (ConcurrencyError, ConfigurationError, UnavailableError) as error:
            # It is still on its queue, and comes again.
            extra = {"action": "set_aside_failed", "error": type(error).__name__}
            _log.warning("An undecodable message stays: %s", error, extra=extra)


def _resolve(poll: Future[list[MessageTypeDef]], outcome: list[MessageTypeDef] | Exception) -> bool:
    """Hand a poll's outcome over, once; False when its receiver has one already or has left."""
    try:
        if isinstance(outcome, Exception):
            poll.set_exception(outcome)
        else:
            poll.set_result(outcome)
    except InvalidStateError:
        return False
    return True

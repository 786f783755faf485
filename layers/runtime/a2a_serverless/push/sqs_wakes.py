"""Wakes on SQS FIFO: a group per configuration, visibility as the back-off."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from a2a_serverless.broker.sqs_queue import SqsQueue
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import ConcurrencyError
from a2a_serverless.observability import tracing
from a2a_serverless.push.wakes import PushLetter, PushQueue, PushWake, WakeHandle, decode_wake
from a2a_serverless.tasks.identity import digest

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

_log = logging.getLogger(__name__)


class SqsWakeHandle(WakeHandle):
    """A record of Lambda's event source, which deletes what is not reported failed."""

    def __init__(self, queue: SqsQueue, wake: PushWake, *, receipt: str, attempt: int) -> None:
        super().__init__(wake, attempt=attempt)
        self._queue = queue
        self._receipt = receipt

    async def ack(self) -> None:
        """Nothing: see the class."""

    async def nack(self, *, delay_s: float) -> None:
        """Set the visibility, before the record is reported failed."""
        try:
            await self._queue.hide(self._receipt, math.ceil(delay_s))
        except ConcurrencyError:
            extra = {"action": "nack_expired", "task_id": self.wake.task_id}
            _log.warning("nack of an expired delivery; the wake comes again", extra=extra)


class SqsPushQueue(PushQueue):
    """Wakes on one FIFO queue, dead letters on another.

    Args:
        queue: URL or name of the queue; a name is looked up at the first use.
        dead_letter_queue: URL or name of the FIFO queue for what was given up, if there is one.
        client: by default the process's own.
        clock: by default the system's.
    """

    def __init__(
        self,
        queue: str,
        *,
        dead_letter_queue: str | None = None,
        client: SQSClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._queue = SqsQueue(queue, client, clock)
        self._dead = SqsQueue(dead_letter_queue, client, clock) if dead_letter_queue else None

    async def check(self) -> None:
        await self._queue.check()
        if self._dead is not None:
            await self._dead.check()

    async def send(self, wake: PushWake) -> None:
        await self._queue.send(
            wake.model_dump_json(),
            MessageGroupId=wake.group,
            # A send whose answer was lost is repeated under the same id: SQS keeps one.
            MessageDeduplicationId=wake.deduplication_id,
            MessageSystemAttributes=tracing.system_attributes(wake.trace),
        )

    async def bury(self, letter: PushLetter) -> None:
        """As in the contract; without a dead letter queue the log alone has it."""
        if self._dead is not None:
            await self._dead.send(
                letter.model_dump_json(),
                MessageGroupId=letter.wake.group,
                MessageDeduplicationId=letter.deduplication_id,
            )

    async def set_aside(self, record: Mapping[str, Any]) -> bool:
        if self._dead is None:
            return False
        message_id = str(record["messageId"])
        await self._dead.send(
            str(record["body"]),
            MessageGroupId=digest("push-undecodable", message_id),
            MessageDeduplicationId=digest("push-undecodable", message_id),
        )
        return True

    def decode_record(self, record: Mapping[str, Any]) -> SqsWakeHandle:
        return SqsWakeHandle(
            self._queue,
            decode_wake(record.get("body")),
            receipt=str(record["receiptHandle"]),
            attempt=int(record["attributes"]["ApproximateReceiveCount"]),
        )

"""Sources of the pumps' records: queues of AWS or on a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

from a2a_serverless import aws
from a2a_serverless.clock import SystemClock
from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.queues.sqs import SqsRequests
from a2a_serverless.queues.table import TableQueue
from tests.support.queues import records


class EventSource(ABC):
    """Records as SQS's event source makes them, with a batch size of 1."""

    @abstractmethod
    def records(self) -> AsyncIterator[EventRecord]:
        """Yield deliveries as they come, without end."""

    @abstractmethod
    async def delete(self, record: Mapping[str, Any]) -> None:
        """Remove a record that the function did not report as failed."""


class TableSource(EventSource):
    """The deliveries of a queue on a table."""

    def __init__(self, queue: TableQueue[Any]) -> None:
        self._queue = queue

    def records(self) -> AsyncIterator[EventRecord]:
        return records(self._queue)

    async def delete(self, record: EventRecord) -> None:
        await self._queue.delete(record)


class SqsSource(EventSource):
    """The deliveries of a queue of AWS.

    Args:
        queue: the queue's URL or name.
        wait_s: seconds of a long poll, at most 20.
    """

    def __init__(self, queue: str, *, wait_s: int) -> None:
        self._requests = SqsRequests(queue, None, SystemClock())
        self._wait_s = wait_s
        self._arn = ""

    async def receive(self) -> dict[str, Any] | None:
        """Return the next record; None if none came within `wait_s`.

        Raises:
            UnavailableError, ConfigurationError: the queue did not answer when it was looked up.
            ClientError, BotoCoreError: the queue does not answer the request.
        """
        url = await self._requests.url()
        self._arn = self._arn or await self._look_up(url)
        answer = await aws.call(
            self._requests.polling_client.receive_message,
            QueueUrl=url,
            MaxNumberOfMessages=1,
            WaitTimeSeconds=self._wait_s,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        messages = answer.get("Messages", [])
        return self._record(messages[0]) if messages else None

    async def delete(self, record: Mapping[str, Any]) -> None:
        """Remove a received record."""
        await self._requests.delete(record["receiptHandle"])

    async def _look_up(self, url: str) -> str:
        answer = await aws.call(
            self._requests.client.get_queue_attributes, QueueUrl=url, AttributeNames=["QueueArn"]
        )
        return str(answer["Attributes"]["QueueArn"])

    def _record(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": {
                name: {key[:1].lower() + key[1:]: value for key, value in attribute.items()}
                for name, attribute in message.get("MessageAttributes", {}).items()
            },
            "md5OfBody": message.get("MD5OfBody", ""),
            "eventSource": "aws:sqs",
            "eventSourceARN": self._arn,
            "awsRegion": self._arn.split(":")[3],
        }

    async def records(self) -> AsyncIterator[EventRecord]:
        while True:
            if (record := await self.receive()) is not None:
                yield record

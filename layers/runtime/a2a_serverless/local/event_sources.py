"""Sources of the queue pump's records: a queue of SQS, or one in memory."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

from a2a_serverless import aws
from a2a_serverless.queues.memory import MemoryQueue


class EventSource(ABC):
    """Records as SQS's event source makes them, with a batch size of 1."""

    @abstractmethod
    def records(self) -> AsyncIterator[dict[str, Any]]:
        """Yield deliveries as they come, without end."""

    @abstractmethod
    async def delete(self, record: Mapping[str, Any]) -> None:
        """Remove a record that the function did not report as failed."""


class MemorySource(EventSource):
    """The deliveries of a queue in this process."""

    def __init__(self, queue: MemoryQueue[Any]) -> None:
        self._queue = queue

    def records(self) -> AsyncIterator[dict[str, Any]]:
        return self._queue.records()

    async def delete(self, record: Mapping[str, Any]) -> None:
        await self._queue.delete(record)


class SqsSource(EventSource):
    """The deliveries of a queue.

    Args:
        queue: the queue's URL or name.
        wait_s: seconds of a long poll, at most 20; with 0 the queue is asked every `pause_s`.
        pause_s: seconds between two receives that found nothing.
    """

    def __init__(self, queue: str, *, wait_s: int, pause_s: float = 0) -> None:
        self._queue = queue
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._client: Any = aws.client("sqs", long_poll=True)
        self._url = self._arn = ""

    async def records(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            record = await self.receive()
            if record is not None:
                yield record
            else:
                await asyncio.sleep(self._pause_s)

    async def receive(self) -> dict[str, Any] | None:
        """Return the next record, None if none came within `wait_s`.

        Raises:
            ClientError, BotoCoreError: as boto3.
        """
        if not self._arn:
            await self._look_up()
        answer = await aws.call(
            self._client.receive_message,
            QueueUrl=self._url,
            MaxNumberOfMessages=1,
            WaitTimeSeconds=self._wait_s,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        messages = answer.get("Messages", [])
        return self._record(messages[0]) if messages else None

    async def delete(self, record: Mapping[str, Any]) -> None:
        await aws.call(
            self._client.delete_message,
            QueueUrl=self._url,
            ReceiptHandle=record["receiptHandle"],
        )

    async def _look_up(self) -> None:
        self._url = self._queue
        if "://" not in self._queue:
            answer = await aws.call(self._client.get_queue_url, QueueName=self._queue)
            self._url = answer["QueueUrl"]
        answer = await aws.call(
            self._client.get_queue_attributes, QueueUrl=self._url, AttributeNames=["QueueArn"]
        )
        self._arn = answer["Attributes"]["QueueArn"]

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

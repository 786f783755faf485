"""Lambda's event source mapping of a queue: its records become invocations, one by one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from a2a_serverless import aws
from a2a_serverless.clock import SystemClock
from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.queues.sqs import SqsRequests
from a2a_serverless_tools.local.background import repeat, surviving
from a2a_serverless_tools.local.sources import Records
from tests.support.simulation.environments import Environments

QUEUE_RETRY_S = 1.0
"""Seconds between two attempts to read a queue that fails."""


class SqsSource:
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
        if not self._arn:
            look_up = self._requests.client.get_queue_attributes
            found = await aws.call(look_up, QueueUrl=url, AttributeNames=["QueueArn"])
            self._arn = str(found["Attributes"]["QueueArn"])
        receive = self._requests.polling_client.receive_message
        every = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        one = {"MaxNumberOfMessages": 1, "WaitTimeSeconds": self._wait_s}
        answer = await aws.call(receive, QueueUrl=url, **one, **every)
        messages = answer.get("Messages", [])
        return self._record(messages[0]) if messages else None

    async def delete(self, record: Mapping[str, Any]) -> None:
        await self._requests.delete(record["receiptHandle"])

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


class QueuePump:
    """Passes records to a function, one each, as many at a time as it has environments.

    Records that the function does not report as failed are deleted. The others stay in the queue,
    and come again when their visibility ends, which the worker's back-off has set.
    """

    def __init__(self, make_source: Callable[[], SqsSource], function: Environments) -> None:
        self._make_source = make_source
        self._function = function

    async def run(self) -> None:
        """Pump until cancelled; then running invocations go on, but their records stay."""
        told = {"failure": "The queue cannot be read.", "action": "pump_failed"}
        await repeat(self._pass_on, pause_s=QUEUE_RETRY_S, **told)

    async def _pass_on(self) -> None:
        source = self._make_source()
        free = asyncio.Semaphore(self._function.limit)
        async with asyncio.TaskGroup() as running:
            await free.acquire()  # before the receive: a delivery's lease runs from then on
            async for record in source.records():
                running.create_task(self._call(source, record, free))
                await free.acquire()

    async def _call(self, source: SqsSource, record: EventRecord, free: asyncio.Semaphore) -> None:
        try:
            # After a failure the message comes again at the end of its visibility, as on AWS.
            with surviving(f"{self._function.name} failed.", action="invoke_failed"):
                failed = await _failures(self._function, [dict(record)])
                if record["messageId"] not in failed:
                    await source.delete(record)
        finally:
            free.release()


async def _failures(function: Environments, records: Records) -> set[Any]:
    """Invoke the function; return the identifiers in its partial batch response."""
    answer = await asyncio.wrap_future(function.invoke({"Records": records}))
    return {failure["itemIdentifier"] for failure in (answer or {}).get("batchItemFailures") or []}

"""The backends of the broker's suite: fresh queues, as template.yaml has them, for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from moto import mock_aws

from a2a_serverless.broker.base import Broker
from a2a_serverless.broker.memory import MemoryBroker
from a2a_serverless.broker.sqs import SqsFifoBroker
from a2a_serverless.local.emulators import CREDENTIALS, REGION, Emulator
from a2a_serverless.local.template import Template
from a2a_serverless.tasks.operations import OperationParams


class MemoryQueues:
    """A queue in memory is its broker."""

    def broker(self, **options: Any) -> Broker:
        """The broker under test."""
        return MemoryBroker(**options)


@dataclass(frozen=True, kw_only=True)
class SqsQueues:
    """The three queues on moto or fauxqs."""

    client: Any
    operations: str
    undecodable: str

    def broker(self, **options: Any) -> SqsFifoBroker:
        """A broker on these queues; several share them."""
        options.setdefault("client", self.client)
        options.setdefault("undecodable_queue", self.undecodable)
        return SqsFifoBroker(self.operations, **options)

    def send(self, body: str, group: str = "poison") -> None:
        """Put a raw message on the operations queue."""
        self.client.send_message(
            QueueUrl=self.operations,
            MessageBody=body,
            MessageGroupId=group,
            MessageDeduplicationId=uuid.uuid4().hex,
        )

    def take(self, url: str | None = None) -> list[dict[str, Any]]:
        """Receive what is visible, as Lambda's event source does."""
        answer = self.client.receive_message(
            QueueUrl=url or self.operations,
            MaxNumberOfMessages=10,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def depth(self) -> tuple[int, int]:
        """How many operations are visible, and how many are in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.client.get_queue_attributes(QueueUrl=self.operations, AttributeNames=names)
        visible, in_flight = (int(answer["Attributes"][name]) for name in names)
        return visible, in_flight


def create_queues(client: Any) -> SqsQueues:
    """The queues of template.yaml under names of their own."""
    template, prefix = Template.load(), uuid.uuid4().hex[:12]
    dead = client.create_queue(
        QueueName=f"{prefix}-dead.fifo", Attributes=template.queue("DeadLetterQueue")
    )["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]
    attributes = template.queue("OperationsQueue", {"DeadLetterQueue.Arn": arn["QueueArn"]})
    return SqsQueues(
        client=client,
        operations=client.create_queue(
            QueueName=f"{prefix}-operations.fifo", Attributes=attributes
        )["QueueUrl"],
        undecodable=client.create_queue(
            QueueName=f"{prefix}-undecodable", Attributes=template.queue("UndecodableQueue")
        )["QueueUrl"],
    )


@contextmanager
def moto_queues() -> Iterator[SqsQueues]:
    """Queues on moto; it forgets deduplication and takes every receipt that ever was."""
    with mock_aws():
        client = boto3.client(
            "sqs",
            region_name=REGION,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )
        yield create_queues(client)


@contextmanager
def fauxqs_queues(emulator: Emulator) -> Iterator[SqsQueues]:
    """Queues on fauxqs."""
    client = emulator.client(read_timeout=30, max_pool_connections=16)
    yield create_queues(client)
    client.close()


def params(task_id: str = "task", *, turn: int = 1, copy_number: int = 0) -> OperationParams:
    """A turn of a task."""
    return OperationParams(
        scope="scope", task_id=task_id, incarnation="i1", turn=turn, copy_number=copy_number
    )


def lambda_record(message: dict[str, Any]) -> dict[str, Any]:
    """A received message as Lambda's event source hands it to a function."""
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "awsRegion": REGION,
    }

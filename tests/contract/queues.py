"""The backends of the queues' suites: fresh queues, as template.yaml has them, for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from moto import mock_aws
from pydantic import BaseModel

from a2a_serverless.queues.sqs import SqsFifoQueue
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.head import Operation, OperationParams
from a2a_serverless_tools.contract import Broker
from a2a_serverless_tools.local.provision import queue_attributes
from tests.support.emulators import CREDENTIALS, REGION, Emulator

PATIENCE_S = 15
"""Below the 20 s of a long poll and the 60 s of a lease: what waits for these fails."""

FAUXQS = pytest.param("fauxqs", marks=pytest.mark.emulators)

ON_TABLES = ["memory", "file"]

everywhere = pytest.mark.parametrize("queues", [*ON_TABLES, "moto", FAUXQS], indirect=True)
on_tables = pytest.mark.parametrize("queues", ON_TABLES, indirect=True)
on_sqs = pytest.mark.parametrize("queues", ["moto", FAUXQS], indirect=True)
on_moto = pytest.mark.parametrize("queues", ["moto"], indirect=True)
"""For what the client does by itself, whoever answers."""
with_deduplication = pytest.mark.parametrize("queues", [*ON_TABLES, FAUXQS], indirect=True)


class Note(BaseModel):
    """A message of no meaning: `text` of a task, in the group of that task."""

    task_id: str = "task"
    text: str = ""
    trace: dict[str, str] = {}

    @property
    def group(self) -> str:
        return self.task_id

    @property
    def deduplication_id(self) -> str:
        return f"{self.task_id}.{self.text}"


@dataclass(frozen=True)
class TableQueues:
    """Queues on a table."""

    table: Table

    def queue(self, **options: Any) -> TableQueue[Note]:
        """A queue of notes; several of one name share it."""
        return TableQueue(Note, self.table, **options)

    def operations(self, **options: Any) -> TableQueue[Operation]:
        """A queue of operations; several of one name share it."""
        return TableQueue(Operation, self.table, **options)

    def broker(self, **options: Any) -> Broker:
        """The Broker contract over a queue of operations."""
        return Broker(self.operations(**options))


@dataclass(frozen=True, kw_only=True)
class SqsQueues:
    """The three queues on moto or fauxqs."""

    client: Any
    main: str
    dead: str
    undecodable: str

    def queue(self, **options: Any) -> SqsFifoQueue[Note]:
        """A queue of notes on these queues; several share them."""
        return SqsFifoQueue(Note, self.main, **self._defaults(options))

    def operations(self, **options: Any) -> SqsFifoQueue[Operation]:
        """A queue of operations on these queues; several share them."""
        return SqsFifoQueue(Operation, self.main, **self._defaults(options))

    def broker(self, **options: Any) -> Broker:
        """The Broker contract on these queues; several share them."""
        return Broker(self.operations(**options))

    def _defaults(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"client": self.client, "undecodable_queue": self.undecodable, **options}

    def send(self, body: str, group: str = "poison") -> None:
        """Put a raw message on the queue."""
        self.client.send_message(
            QueueUrl=self.main,
            MessageBody=body,
            MessageGroupId=group,
            MessageDeduplicationId=uuid.uuid4().hex,
        )

    def take(self, url: str | None = None) -> list[dict[str, Any]]:
        """Receive what is visible, as Lambda's event source does."""
        answer = self.client.receive_message(
            QueueUrl=url or self.main,
            MaxNumberOfMessages=10,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def depth(self) -> tuple[int, int]:
        """How many messages are visible, and how many are in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.client.get_queue_attributes(QueueUrl=self.main, AttributeNames=names)
        visible, in_flight = (int(answer["Attributes"][name]) for name in names)
        return visible, in_flight


def create_queues(client: Any) -> SqsQueues:
    """Three queues of a deployment under names of their own."""
    prefix = uuid.uuid4().hex[:12]
    dead = client.create_queue(
        QueueName=f"{prefix}-dead.fifo", Attributes=queue_attributes("dead_letter_queue")
    )["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]
    attributes = queue_attributes("queue", arn["QueueArn"])
    return SqsQueues(
        client=client,
        main=client.create_queue(QueueName=f"{prefix}-operations.fifo", Attributes=attributes)[
            "QueueUrl"
        ],
        dead=dead,
        undecodable=client.create_queue(
            QueueName=f"{prefix}-undecodable", Attributes=queue_attributes("undecodable_queue")
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

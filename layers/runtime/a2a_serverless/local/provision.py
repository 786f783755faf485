"""Creates the table and the queues of template.yaml at the endpoint of the given clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.local.template import Template

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_sqs import SQSClient


class ProvisionError(ConfigurationError):
    """A table or queue of that name exists and is not the one of template.yaml."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of table and queues: three letters or more, FIFO queues with .fifo."""

    table: str
    queue: str
    dead_letter_queue: str
    undecodable_queue: str
    push_queue: str
    push_dead_letter_queue: str

    @classmethod
    def with_prefix(cls, prefix: str) -> Names:
        """Return separate names for a test or a second stack."""
        return cls(
            table=f"{prefix}-tasks",
            queue=f"{prefix}-operations.fifo",
            dead_letter_queue=f"{prefix}-dead-letters.fifo",
            undecodable_queue=f"{prefix}-undecodable",
            push_queue=f"{prefix}-push.fifo",
            push_dead_letter_queue=f"{prefix}-push-dead-letters.fifo",
        )

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, *, prefix: str = "a2a"
    ) -> Names:
        """Return the names in the functions' variables, and those of `prefix` for unset ones.

        A2A_TABLE, A2A_QUEUE, A2A_DEAD_LETTER_QUEUE, A2A_UNDECODABLE_QUEUE, A2A_PUSH_QUEUE,
        A2A_PUSH_DEAD_LETTER_QUEUE; a queue as name or URL.
        """
        variables = os.environ if environment is None else environment
        default = cls.with_prefix(prefix)

        def queue(variable: str, name: str) -> str:
            return (variables.get(variable) or name).rsplit("/", 1)[-1]

        return cls(
            table=variables.get("A2A_TABLE") or default.table,
            queue=queue("A2A_QUEUE", default.queue),
            dead_letter_queue=queue("A2A_DEAD_LETTER_QUEUE", default.dead_letter_queue),
            undecodable_queue=queue("A2A_UNDECODABLE_QUEUE", default.undecodable_queue),
            push_queue=queue("A2A_PUSH_QUEUE", default.push_queue),
            push_dead_letter_queue=queue(
                "A2A_PUSH_DEAD_LETTER_QUEUE", default.push_dead_letter_queue
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Provisioned:
    """The created resources: the table's name and the queues' URLs."""

    table: str
    queue: str
    dead_letter_queue: str
    undecodable_queue: str
    push_queue: str
    push_dead_letter_queue: str

    def environment(self) -> dict[str, str]:
        """Return the variables by which the functions find table and queues."""
        return {
            "A2A_TABLE": self.table,
            "A2A_QUEUE": self.queue,
            "A2A_DEAD_LETTER_QUEUE": self.dead_letter_queue,
            "A2A_UNDECODABLE_QUEUE": self.undecodable_queue,
            "A2A_PUSH_QUEUE": self.push_queue,
            "A2A_PUSH_DEAD_LETTER_QUEUE": self.push_dead_letter_queue,
        }


def provision(
    dynamodb: DynamoDBClient,
    sqs: SQSClient,
    *,
    names: Names | None = None,
    template: Template | None = None,
    stream: bool = True,
) -> Provisioned:
    """Create the table and the queues that are missing; those that exist stay as they are.

    Args:
        dynamodb: client of the endpoint that gets the table.
        sqs: client of the endpoint that gets the queues.
        names: by default `Names.from_environment()`.
        template: by default the project's own.
        stream: True to give the table its stream. With a second streamed table DynamoDB Local is
            ten times slower; a test that needs no stream leaves it out.

    Raises:
        ProvisionError: a queue of that name has other attributes, or the table other keys.
        TemplateError: template.yaml is missing or cannot be resolved.
    """
    names = names or Names.from_environment()
    template = template or Template.load()
    _create_table(dynamodb, names.table, template, stream=stream)
    dead_letter_queue = _create_queue(
        sqs, names.dead_letter_queue, template.queue("DeadLetterQueue")
    )
    push_dead_letter_queue = _create_queue(
        sqs, names.push_dead_letter_queue, template.queue("PushDeadLetterQueue")
    )
    dead_letters = {
        "DeadLetterQueue.Arn": _arn(sqs, dead_letter_queue),
        "PushDeadLetterQueue.Arn": _arn(sqs, push_dead_letter_queue),
    }
    return Provisioned(
        table=names.table,
        queue=_create_queue(sqs, names.queue, template.queue("OperationsQueue", dead_letters)),
        dead_letter_queue=dead_letter_queue,
        undecodable_queue=_create_queue(
            sqs, names.undecodable_queue, template.queue("UndecodableQueue")
        ),
        push_queue=_create_queue(sqs, names.push_queue, template.queue("PushQueue", dead_letters)),
        push_dead_letter_queue=push_dead_letter_queue,
    )


def _create_table(dynamodb: DynamoDBClient, name: str, template: Template, *, stream: bool) -> None:
    definition = template.table(stream=stream)
    try:
        dynamodb.create_table(TableName=name, **definition)
    except dynamodb.exceptions.ResourceInUseException:
        _check_table(dynamodb, name, definition)
    dynamodb.get_waiter("table_exists").wait(
        TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 120}
    )
    current = dynamodb.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    if current.get("TimeToLiveStatus", "DISABLED") == "DISABLED":
        dynamodb.update_time_to_live(
            TableName=name,
            TimeToLiveSpecification=template.time_to_live(),  # type: ignore[arg-type]
        )


def _check_table(dynamodb: DynamoDBClient, name: str, definition: Mapping[str, object]) -> None:
    """Refuse a table of an earlier version, which would fail later, far from the cause."""
    existing = dynamodb.describe_table(TableName=name)["Table"]
    wanted_indexes = definition["GlobalSecondaryIndexes"]
    if not isinstance(wanted_indexes, list):
        raise TypeError("GlobalSecondaryIndexes must be a list")
    has_keys = existing["KeySchema"] == definition["KeySchema"]
    has_indexes = {
        index["IndexName"]: index["KeySchema"]
        for index in existing.get("GlobalSecondaryIndexes", [])
    } == {index["IndexName"]: index["KeySchema"] for index in wanted_indexes}
    if not (has_keys and has_indexes):
        raise ProvisionError(f"Table {name} exists with other keys or indexes; delete it first.")


def _create_queue(sqs: SQSClient, name: str, attributes: Mapping[str, str]) -> str:
    try:
        return sqs.create_queue(QueueName=name, Attributes=dict(attributes))["QueueUrl"]  # type: ignore[arg-type]
    except ClientError as error:
        # The query protocol writes AWS.SimpleQueueService. before the name.
        code = error.response["Error"]["Code"].rsplit(".", 1)[-1]
        if code not in {"QueueAlreadyExists", "QueueNameExists"}:
            raise
        raise ProvisionError(
            f"Queue {name} exists with other attributes; delete it first."
        ) from error


def _arn(sqs: SQSClient, queue: str) -> str:
    answer = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
    return answer["Attributes"]["QueueArn"]

"""Creates the table and the queues of template.yaml at the endpoint of the given clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.local.template import Template

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_sqs import SQSClient


class ProvisionError(ConfigurationError):
    """A table or queue of that name exists and is not the one of template.yaml."""


@dataclass(frozen=True, kw_only=True)
class _Resources:
    table: str
    queue: str
    quarantine_queue: str
    dead_letter_queue: str
    undecodable_queue: str
    push_queue: str
    push_dead_letter_queue: str


@dataclass(frozen=True, kw_only=True)
class Names(_Resources):
    """The names of table and queues: three letters or more, FIFO queues with .fifo."""

    @classmethod
    def with_prefix(cls, prefix: str) -> Names:
        """Return separate names for a test or a second stack."""
        return cls(
            table=f"{prefix}-tasks",
            queue=f"{prefix}-operations.fifo",
            quarantine_queue=f"{prefix}-quarantine.fifo",
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

        A2A_TABLE, A2A_QUEUE, A2A_QUARANTINE_QUEUE, A2A_DEAD_LETTER_QUEUE, A2A_UNDECODABLE_QUEUE,
        A2A_PUSH_QUEUE, A2A_PUSH_DEAD_LETTER_QUEUE; a queue as name or URL.
        """
        variables = os.environ if environment is None else environment
        default = asdict(cls.with_prefix(prefix))
        names = {name: variables.get(_variable(name)) or default[name] for name in default}
        queues = {name: names[name].rsplit("/", 1)[-1] for name in names if name != "table"}
        return cls(**names | queues)


@dataclass(frozen=True, kw_only=True)
class Provisioned(_Resources):
    """The created resources: the table's name and the queues' URLs."""

    def environment(self) -> dict[str, str]:
        """Return the variables by which the functions find table and queues."""
        return {_variable(name): value for name, value in asdict(self).items()}


def _variable(name: str) -> str:
    return f"A2A_{name.upper()}"


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
        stream: True to give the table its stream. With a second table that has a stream DynamoDB
            Local is ten times slower, so a test that needs no stream leaves it out.

    Raises:
        ProvisionError: a queue of that name has other attributes, or the table other keys.
        TemplateError: template.yaml is missing or cannot be resolved.
    """
    names = names or Names.from_environment()
    template = template or Template.load()

    def queue(name: str, logical_id: str, attributes: Mapping[str, str] | None = None) -> str:
        return _create_queue(sqs, name, template.queue(logical_id, attributes))

    _create_table(dynamodb, names.table, template, stream=stream)
    dead_letter_queue = queue(names.dead_letter_queue, "DeadLetterQueue")
    push_dead_letter_queue = queue(names.push_dead_letter_queue, "PushDeadLetterQueue")
    dead_letters = {
        "DeadLetterQueue.Arn": _arn(sqs, dead_letter_queue),
        "PushDeadLetterQueue.Arn": _arn(sqs, push_dead_letter_queue),
    }
    return Provisioned(
        table=names.table,
        queue=queue(names.queue, "OperationsQueue", dead_letters),
        quarantine_queue=queue(names.quarantine_queue, "QuarantineQueue", dead_letters),
        dead_letter_queue=dead_letter_queue,
        undecodable_queue=queue(names.undecodable_queue, "UndecodableQueue"),
        push_queue=queue(names.push_queue, "PushQueue", dead_letters),
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


def _check_table(dynamodb: DynamoDBClient, name: str, definition: Mapping[str, Any]) -> None:
    """Refuse a table of an earlier version, which would cause errors far from here later."""
    keys, indexes = _keys(dynamodb.describe_table(TableName=name)["Table"])
    wanted_keys, wanted = _keys(definition)
    missing = [index for index in wanted if index not in indexes]
    if keys == wanted_keys and missing and {**wanted, **indexes} == wanted:
        lacking = " and no index ".join(missing)
        raise ProvisionError(
            f"Table {name} has no index {lacking} yet: add it, as docs/operations.md says under"
            ' "An update that adds an index". Its tasks stay.'
        )
    if (keys, indexes) != (wanted_keys, wanted):
        raise ProvisionError(f"Table {name} exists with other keys or indexes; delete it first.")


def _keys(table: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the keys of a table, and of its indexes by name."""
    indexes = table.get("GlobalSecondaryIndexes", [])
    return table["KeySchema"], {each["IndexName"]: each["KeySchema"] for each in indexes}


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

"""Makes the table and the queues at an endpoint, of the storage's layout.

template.yaml defines those of a deployment. A test compares the two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from botocore.exceptions import ClientError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.dynamodb import definition_of
from a2a_serverless.storage.layout import INDEXES

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_sqs import SQSClient

_NUMBERS: Final = frozenset({"due_at"})
"""The keys that are numbers; all others are texts."""
_EXPIRY: Final = "expires_at"


class _Queue(NamedTuple):
    """How a queue is made."""

    ending: str
    """That of its name."""
    hidden_s: int
    """The seconds for which a message that was received is not received again."""
    kept_days: int
    receives: int = 0
    """How often a message is received before it is a dead letter; 0: any number of times."""
    dead_letters: str = ""
    """The queue of its dead letters."""


_QUEUES: Final[Mapping[str, _Queue]] = {
    "dead_letter_queue": _Queue("dead-letters.fifo", 90, 14),
    "push_dead_letter_queue": _Queue("push-dead-letters.fifo", 30, 14),
    "queue": _Queue("operations.fifo", 930, 4, 23, "dead_letter_queue"),
    "quarantine_queue": _Queue("quarantine.fifo", 930, 4, 23, "dead_letter_queue"),
    "undecodable_queue": _Queue("undecodable", 30, 14),
    "push_queue": _Queue("push.fifo", 90, 14, 1000, "push_dead_letter_queue"),
}
"""The queues by their settings, as those of a stack whose parameters are the defaults.

Those that get dead letters are before those that send them."""
_FIFO: Final = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}


def table_definition(*, stream: bool = True) -> dict[str, Any]:
    """Return the arguments of `create_table`, except `TableName`.

    Encryption, point-in-time recovery and deletion protection are left out: they guard a deployed
    table, and the emulators do not know all of them.
    """
    definition = definition_of(INDEXES, numbers=_NUMBERS)
    if stream:
        definition["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
    return definition


def queue_attributes(name: str, dead_letters: str = "") -> dict[str, str]:
    """Return the `Attributes` of `create_queue` for a queue, by the name of its setting.

    Args:
        name: such as `push_queue`.
        dead_letters: the ARN of the queue that gets its dead letters, if one does.
    """
    queue = _QUEUES[name]
    attributes = {
        "SqsManagedSseEnabled": "true",
        "VisibilityTimeout": str(queue.hidden_s),
        "MessageRetentionPeriod": str(queue.kept_days * 24 * 3600),
    }
    if queue.ending.endswith(".fifo"):
        attributes |= _FIFO
    if queue.receives:
        policy = {"deadLetterTargetArn": dead_letters, "maxReceiveCount": queue.receives}
        attributes["RedrivePolicy"] = json.dumps(policy)
    return attributes


@dataclass(frozen=True, kw_only=True)
class Names:
    """Table and queues by their names: three letters or more, FIFO queues with .fifo.

    Those that were made have the queues' URLs.
    """

    table: str
    queue: str
    quarantine_queue: str
    dead_letter_queue: str
    undecodable_queue: str
    push_queue: str
    push_dead_letter_queue: str

    @classmethod
    def with_prefix(cls, prefix: str) -> Names:
        """Return separate names for a test or a second stack."""
        return cls(
            table=f"{prefix}-tasks",
            **{name: f"{prefix}-{queue.ending}" for name, queue in _QUEUES.items()},
        )

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> Names:
        """Return the names in the functions' variables, such as A2A_QUEUE, or else those of `a2a`.

        A queue's variable has its name or its URL.
        """
        default = asdict(cls.with_prefix("a2a"))
        named = {name: variables.get(_variable(name)) or default[name] for name in default}
        queues = {name: named[name].rsplit("/", 1)[-1] for name in named if name != "table"}
        return cls(**named | queues)

    def environment(self) -> dict[str, str]:
        """Return the variables by which the functions find table and queues."""
        return {_variable(name): value for name, value in asdict(self).items()}


def _variable(name: str) -> str:
    return f"A2A_{name.upper()}"


def provision(
    dynamodb: DynamoDBClient, sqs: SQSClient, *, names: Names | None = None, stream: bool = True
) -> Names:
    """Create the table and the queues that are missing; those that exist stay as they are.

    Args:
        dynamodb: client of the endpoint that gets the table.
        sqs: client of the endpoint that gets the queues.
        names: by default `Names.from_environment()`.
        stream: True to give the table its stream. With a second table that has a stream DynamoDB
            Local is ten times slower, so a test that needs no stream leaves it out.

    Raises:
        ConfigurationError: a queue of that name has other attributes, or the table other keys.
    """
    names = names or Names.from_environment()
    _create_table(dynamodb, names.table, stream=stream)
    urls: dict[str, str] = {}
    arns: dict[str, str] = {}
    for name, queue in _QUEUES.items():
        attributes = queue_attributes(name, arns.get(queue.dead_letters, ""))
        urls[name] = _create_queue(sqs, getattr(names, name), attributes)
        arns[name] = _arn(sqs, urls[name])
    return Names(table=names.table, **urls)


def _create_table(dynamodb: DynamoDBClient, name: str, *, stream: bool) -> None:
    definition = table_definition(stream=stream)
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
            TableName=name, TimeToLiveSpecification={"AttributeName": _EXPIRY, "Enabled": True}
        )


def _check_table(dynamodb: DynamoDBClient, name: str, definition: Mapping[str, Any]) -> None:
    """Refuse a table of an earlier version, which would cause errors far from here later."""
    keys, indexes = _keys(dynamodb.describe_table(TableName=name)["Table"])
    wanted_keys, wanted = _keys(definition)
    missing = [index for index in wanted if index not in indexes]
    if keys == wanted_keys and missing and {**wanted, **indexes} == wanted:
        lacking = " and no index ".join(missing)
        raise ConfigurationError(
            f"Table {name} has no index {lacking} yet: add it"
            " (a2a-serverless docs releases, An update that adds an index). Its tasks stay."
        )
    if (keys, indexes) != (wanted_keys, wanted):
        raise ConfigurationError(
            f"Table {name} exists with other keys or indexes; delete it first."
        )


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
        raise ConfigurationError(
            f"Queue {name} exists with other attributes; delete it first."
        ) from error


def _arn(sqs: SQSClient, queue: str) -> str:
    answer = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
    return answer["Attributes"]["QueueArn"]

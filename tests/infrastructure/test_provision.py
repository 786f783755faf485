"""What `provision` makes: as template.yaml has it, on moto."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import boto3
import pytest
from moto import mock_aws

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.local.provision import (
    Names,
    provision,
    queue_attributes,
    table_definition,
)
from tests.support import emulators
from tests.support.template import Template

NAMES = Names.with_prefix("provision-test")

Clients = tuple[Any, Any]


@pytest.fixture
def moto_clients() -> Iterator[Clients]:
    """Clients of DynamoDB and SQS on moto."""
    with mock_aws():
        yield (
            boto3.client("dynamodb", region_name=emulators.REGION),
            boto3.client("sqs", region_name=emulators.REGION),
        )


QUEUES = {
    "queue": "OperationsQueue",
    "quarantine_queue": "QuarantineQueue",
    "dead_letter_queue": "DeadLetterQueue",
    "undecodable_queue": "UndecodableQueue",
    "push_queue": "PushQueue",
    "push_dead_letter_queue": "PushDeadLetterQueue",
}
"""The queues by their settings, and as template.yaml calls them."""
GUARDS = {
    "DeletionProtectionEnabled",
    "PointInTimeRecoverySpecification",
    "Tags",
    "TimeToLiveSpecification",
}
"""What a deployed table has besides what makes it."""


def unordered(table: dict[str, Any]) -> dict[str, Any]:
    """A table's definition without the order of attributes, which has no meaning."""
    types = {it["AttributeName"]: it["AttributeType"] for it in table["AttributeDefinitions"]}
    indexes = {it["IndexName"]: deepcopy(it) for it in table["GlobalSecondaryIndexes"]}
    for index in indexes.values():
        index["Projection"]["NonKeyAttributes"] = {*index["Projection"].get("NonKeyAttributes", ())}
    return {**table, "AttributeDefinitions": types, "GlobalSecondaryIndexes": indexes}


def test_the_table_is_that_of_the_template(template: Template) -> None:
    """Keys and their types, indexes and what they project, the stream, and how it is billed."""
    deployed = template.properties("TaskTable")
    deployed["StreamSpecification"]["StreamEnabled"] = True
    made = {name: value for name, value in deployed.items() if name not in GUARDS}
    assert unordered(table_definition()) == unordered(made)
    assert deployed["TimeToLiveSpecification"] == {"AttributeName": "expires_at", "Enabled": True}


@pytest.mark.parametrize(("name", "logical_id"), QUEUES.items())
def test_a_queue_is_that_of_the_template(template: Template, name: str, logical_id: str) -> None:
    """Order, visibility, retention, encryption and redrive, with the parameters' defaults."""
    arns = {"DeadLetterQueue.Arn": "arn:dead", "PushDeadLetterQueue.Arn": "arn:dead"}
    deployed = template.properties(logical_id, arns)
    made: dict[str, Any] = queue_attributes(name, "arn:dead")
    if "RedrivePolicy" in made:
        made["RedrivePolicy"] = json.loads(made["RedrivePolicy"])
    texts = {it: str(value).lower() for it, value in deployed.items() if isinstance(value, bool)}
    numbers = {it: str(value) for it, value in deployed.items() if type(value) is int}
    hidden = {"VisibilityTimeout": "30"}  # of a queue that is told none
    assert made == {**hidden, **deployed, **texts, **numbers}


def test_provision_on_moto(moto_clients: Clients) -> None:
    """The table and the queues come to be, and a second time nothing changes."""
    made = provision(*moto_clients, names=NAMES)
    assert provision(*moto_clients, names=NAMES) == made


def test_a_table_of_an_earlier_version_keeps_its_tasks(moto_clients: Clients) -> None:
    """A missing index is named with the way to add it: nothing says that the table is to go."""
    dynamodb, sqs = moto_clients
    definition = table_definition()
    indexes = definition["GlobalSecondaryIndexes"]
    definition["GlobalSecondaryIndexes"] = [i for i in indexes if i["IndexName"] != "by-id"]
    attributes, own = definition["AttributeDefinitions"], {"id_key", "created_key"}
    definition["AttributeDefinitions"] = [a for a in attributes if a["AttributeName"] not in own]
    dynamodb.create_table(TableName=NAMES.table, **definition)
    with pytest.raises(ConfigurationError, match="has no index by-id yet: add it") as refused:
        provision(dynamodb, sqs, names=NAMES)
    assert "delete" not in str(refused.value)


def test_a_foreign_table_or_queue_is_refused(moto_clients: Clients) -> None:
    """One of that name with other keys or attributes stops the start; the sentence names it."""
    dynamodb, sqs = moto_clients
    other = {"FifoQueue": "true", "VisibilityTimeout": "1"}
    queue = sqs.create_queue(QueueName=NAMES.queue, Attributes=other)["QueueUrl"]
    with pytest.raises(ConfigurationError, match=NAMES.queue):
        provision(dynamodb, sqs, names=NAMES)
    sqs.delete_queue(QueueUrl=queue)
    dynamodb.delete_table(TableName=NAMES.table)
    dynamodb.create_table(
        TableName=NAMES.table,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )
    with pytest.raises(ConfigurationError, match=NAMES.table):
        provision(dynamodb, sqs, names=NAMES)


def test_names_come_from_the_functions_variables() -> None:
    """`A2A_TABLE` and `A2A_QUEUE`, as a name or a URL, name what is made; the rest has a prefix."""
    names = Names.from_environment(
        {"A2A_TABLE": "mine", "A2A_QUEUE": "http://127.0.0.1:1/0/mine.fifo"}
    )
    assert names.table == "mine"
    assert names.queue == "mine.fifo"
    assert names.dead_letter_queue == "a2a-dead-letters.fifo"

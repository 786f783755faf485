"""Provisioning from template.yaml, on moto and on the emulators."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.local.template import Names, Template, provision
from tests.support import emulators

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


def check(dynamodb: Any, sqs: Any, made: Names) -> None:
    """What the endpoints say of what was made."""
    table = dynamodb.describe_table(TableName=made.table)["Table"]
    time_to_live = dynamodb.describe_time_to_live(TableName=made.table)["TimeToLiveDescription"]
    queue, dead_letters, undecodable, jobs, given_up = (
        sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        for url in (
            made.queue,
            made.dead_letter_queue,
            made.undecodable_queue,
            made.push_queue,
            made.push_dead_letter_queue,
        )
    )
    assert {index["IndexName"] for index in table["GlobalSecondaryIndexes"]} == {
        "by-scope",
        "by-context",
        "by-due",
        "by-id",
        "by-line",
        "by-attention",
    }
    assert table["StreamSpecification"]["StreamViewType"] == "NEW_IMAGE"
    assert time_to_live["AttributeName"] == "expires_at"
    assert queue["VisibilityTimeout"] == "930"
    assert queue["FifoQueue"] == dead_letters["FifoQueue"] == "true"
    assert json.loads(queue["RedrivePolicy"])["deadLetterTargetArn"] == dead_letters["QueueArn"]
    assert undecodable["MessageRetentionPeriod"] == "1209600"
    assert jobs["FifoQueue"] == given_up["FifoQueue"] == "true"
    assert json.loads(jobs["RedrivePolicy"]) == {
        "deadLetterTargetArn": given_up["QueueArn"],
        "maxReceiveCount": 1000,
    }


def test_provision_on_moto(moto_clients: Clients) -> None:
    """The table and queues of the template come to be, and a second time nothing changes."""
    made = provision(*moto_clients, names=NAMES)
    assert provision(*moto_clients, names=NAMES) == made
    check(*moto_clients, made)


def test_a_table_of_an_earlier_version_keeps_its_tasks(moto_clients: Clients) -> None:
    """A missing index is named with the way to add it: nothing says that the table is to go."""
    dynamodb, sqs = moto_clients
    definition = Template.load().table(stream=True)
    indexes = definition["GlobalSecondaryIndexes"]
    definition["GlobalSecondaryIndexes"] = [i for i in indexes if i["IndexName"] != "by-id"]
    attributes, own = definition["AttributeDefinitions"], {"id_key", "created_key"}
    definition["AttributeDefinitions"] = [a for a in attributes if a["AttributeName"] not in own]
    dynamodb.create_table(TableName=NAMES.table, **definition)
    with pytest.raises(ConfigurationError, match="has no index by-id yet: add it") as refused:
        provision(dynamodb, sqs, names=NAMES)
    assert "delete" not in str(refused.value)


def test_a_foreign_table_is_refused(moto_clients: Clients) -> None:
    """A table of that name with other keys stops the start with one sentence that names it."""
    dynamodb, sqs = moto_clients
    dynamodb.create_table(
        TableName=NAMES.table,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )
    with pytest.raises(ConfigurationError, match=NAMES.table):
        provision(dynamodb, sqs, names=NAMES)


def test_a_foreign_queue_is_refused(moto_clients: Clients) -> None:
    """A queue of that name with other attributes stops the start with one sentence."""
    dynamodb, sqs = moto_clients
    sqs.create_queue(
        QueueName=NAMES.queue, Attributes={"FifoQueue": "true", "VisibilityTimeout": "1"}
    )
    with pytest.raises(ConfigurationError, match=NAMES.queue):
        provision(dynamodb, sqs, names=NAMES)


def test_names_come_from_the_functions_variables() -> None:
    """`A2A_TABLE` and `A2A_QUEUE`, as a name or a URL, name what is made; the rest has a prefix."""
    names = Names.from_environment(
        {"A2A_TABLE": "mine", "A2A_QUEUE": "http://127.0.0.1:1/0/mine.fifo"}
    )
    assert names.table == "mine"
    assert names.queue == "mine.fifo"
    assert names.dead_letter_queue == "a2a-dead-letters.fifo"

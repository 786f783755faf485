"""Functions' sources, queues, table and stage: in the template, and as `provision` makes them."""

import json
from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from typing import Any, get_args

import boto3
import pytest
from moto import mock_aws

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.push.function import _committed_by
from a2a_serverless.push.signing import _signing_key
from a2a_serverless.settings import SHARED_SPARE_S, Settings, load_settings
from a2a_serverless.tasks.attempts import MOST_STARTS
from a2a_serverless.tasks.head import KNOWN, state_name
from a2a_serverless.tasks.push import PushEvents
from a2a_serverless_tools.local import provision
from a2a_serverless_tools.local.sources import BATCH
from tests.support import emulators
from tests.support.handlers import event_file
from tests.support.template import Template, of_type, stream_filter, webhooks_set

Json = dict[str, Any]

NOTHING = {"Ref": "AWS::NoValue"}
REPORTED = {"FunctionResponseTypes": ["ReportBatchItemFailures"]}
"""A function says which messages of a batch have failed."""


def source(arn: str, of: str = "Arn", **more: Any) -> Json:
    return {"EventSourceArn": {"Fn::GetAtt": [arn, of]}, **REPORTED, **more}


def choice(condition: str, then: Any, otherwise: Any = None) -> Json:
    return {"Fn::If": [condition, then, NOTHING if otherwise is None else otherwise]}


def at_once(value: Any) -> Json:
    return {"MaximumConcurrency": value}


THROTTLED = {f"Throttling{kind}Limit": {"Ref": "ThrottleRate"} for kind in ("Rate", "Burst")}
SAYS: dict[str, Json] = {
    # Messages come to a worker one by one. A disabled source leaves function and queue in place.
    "WorkerFunctionOperations": source(
        "OperationsQueue",
        BatchSize=1,
        ScalingConfig=at_once({"Ref": "WorkerConcurrency"}),
        Enabled=choice("HasLambdaWorker", True, False),  # noqa: FBT003 - a value of the template
    ),
    # Turns that must not share a worker have invocations of their own, as many as one death leaves.
    "WorkerFunctionQuarantine": source(
        "QuarantineQueue",
        BatchSize=1,
        ScalingConfig=at_once(choice("SharesWorkers", {"Ref": "WorkerTurns"}, 2)),
        Enabled=choice("HasLambdaWorker", choice("SharesWorkers", True, False), False),  # noqa: FBT003
    ),
    "SweeperFunctionDeadLetters": source("DeadLetterQueue"),
    "SweeperFunctionEveryMinute": {"ScheduleExpression": "rate(1 minute)"},
    # A record that fails is tried for 23 of the stream's 24 hours, and what is left is reported.
    # Lambda waits up to a minute between attempts: their number never ends it before the age does.
    "PushFunctionCommits": source(
        "TaskTable",
        "StreamArn",
        StartingPosition="TRIM_HORIZON",
        BisectBatchOnFunctionError=True,
        MaximumRecordAgeInSeconds=23 * 3600,
        MaximumRetryAttempts=10_000,
        BatchSize=BATCH,
    ),
    # A slow webhook holds up nobody.
    "PushFunctionDeliveries": source(
        "PushQueue", BatchSize=1, ScalingConfig=at_once({"Ref": "PushConcurrency"})
    ),
    # DynamoDB encrypts without a key of the user's too. A bad write can be undone.
    "TaskTable": {
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
        "DeletionProtectionEnabled": {"Ref": "DeletionProtection"},
        "SSESpecification": choice(
            "HasKmsKey",
            {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": {"Ref": "KmsKeyArn"}},
        ),
    },
    "WorkerFunction": {"Timeout": {"Ref": "WorkerTimeout"}},
    "RestApia2aStage": {
        "StageName": "a2a",
        "MethodSettings": [{"ResourcePath": "/*", "HttpMethod": "*", **THROTTLED}],
    },
    # Compression and binary types do not work with streams. API Gateway counts by the API's name.
    "RestApi": {
        "MinimumCompressionSize": None,
        "BinaryMediaTypes": None,
        "Name": {"Ref": "AWS::StackName"},
    },
    "UndecodableQueue": {"FifoQueue": None},
}
"""Properties of resources; None: there is none."""


@pytest.mark.parametrize("resource", SAYS)
def test_a_resource_is_as_it_has_to_be(transformed: Json, resource: str) -> None:
    """The properties of this resource are those of the table, whose comments say why."""
    properties = transformed[resource]["Properties"]
    assert {name: properties.get(name) for name in SAYS[resource]} == SAYS[resource]


def test_there_is_one_of_each(document: Json, transformed: Json) -> None:
    """SAM adds no second stage, and each deployment of the API reaches it.

    What cannot be read is kept for a person, in a queue that feeds no function. Order, visibility
    and dead letters of a turn are the same in both queues of workers.
    """
    assert len(of_type(transformed, "AWS::ApiGateway::Stage")) == 1
    (deployed,) = of_type(transformed, "AWS::ApiGateway::Deployment").values()
    assert "StageName" not in deployed
    assert document["Resources"]["RestApi"]["Properties"]["AlwaysDeploy"] is True
    body = transformed["RestApi"]["Properties"]["Body"]
    assert "x-amazon-apigateway-binary-media-types" not in body
    fed = [it["Properties"].get("EventSourceArn") for it in transformed.values()]
    assert {"Fn::GetAtt": ["UndecodableQueue", "Arn"]} not in fed
    assert {"Fn::GetAtt": ["OperationsQueue", "Arn"]} in fed
    resources = document["Resources"]
    assert resources["QuarantineQueue"] == resources["OperationsQueue"]
    shares = {"Fn::Not": [{"Fn::Equals": [{"Ref": "WorkerTurns"}, "1"]}]}
    assert document["Conditions"]["SharesWorkers"] == shares


def test_messages_are_encrypted(transformed: Json) -> None:
    """Every queue encrypts what it holds: with the user's key if there is one, else with SQS's."""
    queues = of_type(transformed, "AWS::SQS::Queue").values()
    assert len(queues) == 6
    for queue in queues:
        assert queue["KmsMasterKeyId"] == choice("HasKmsKey", {"Ref": "KmsKeyArn"})
        assert queue["SqsManagedSseEnabled"] == {"Fn::If": ["HasKmsKey", NOTHING, True]}


def test_receives_and_visibility_follow_the_parameters(document: Json) -> None:
    """A message has ten receives beyond its attempts and its starts that may meet a fault.

    It is hidden for the time-out of the function that works on it, and 30 s.
    """

    def queue(name: str, **given: str) -> Json:
        return Template(document, given).properties(name, {"DeadLetterQueue.Arn": "arn:dlq"})

    parameters, resources = document["Parameters"], document["Resources"]
    for attempts in parameters["MaxAttempts"]["AllowedValues"]:
        assert queue("OperationsQueue", MaxAttempts=attempts)["RedrivePolicy"] == {
            "deadLetterTargetArn": "arn:dlq",
            "maxReceiveCount": int(attempts) + MOST_STARTS + 10,
        }
    for timeout in parameters["WorkerTimeout"]["AllowedValues"]:
        hidden_s = queue("OperationsQueue", WorkerTimeout=timeout)["VisibilityTimeout"]
        assert hidden_s == int(timeout) + 30
    timeout_s = resources["SweeperFunction"]["Properties"]["Timeout"]
    assert queue("DeadLetterQueue")["VisibilityTimeout"] == timeout_s + 30


WARM = [({}, None), ({"WarmWriteUnits": "8000"}, {"WriteUnitsPerSecond": "8000"})]


@pytest.mark.parametrize(("given", "warm"), WARM)
def test_a_table_that_is_warm_at_once(document: Json, given: Json, warm: Json | None) -> None:
    """WarmWriteUnits is that of the table and of the indexes that a task in any context writes.

    By default the deletion of the table is not refused: CloudFormation could not take back a first
    deployment that fails.
    """
    properties = Template(document, given).properties("TaskTable")
    indexes = properties["GlobalSecondaryIndexes"]
    found = {it["IndexName"]: it.get("WarmThroughput") for it in indexes}
    busiest = {"by-scope", "by-context", "by-due", "by-id"}
    assert properties.get("WarmThroughput") == warm
    assert found == {name: warm if name in busiest else None for name in found}
    assert busiest < found.keys()
    assert properties["DeletionProtectionEnabled"] == "false"


def test_every_pair_of_timeouts_is_decided(document: Json) -> None:
    """A turn's limit is at least 75 s below its worker's, here and at the function's start."""
    parameters = document["Parameters"]
    names = ("WorkerTimeout", "TurnTimeout")
    for worker, turn in product(*(parameters[name]["AllowedValues"] for name in names)):
        chosen = {"WorkerTimeout": worker, "TurnTimeout": turn, "WorkerTurns": "2"}
        fits = bool(turn) and int(turn) + SHARED_SPARE_S <= int(worker)
        assert (Template(document, chosen).broken_rules() == []) is fits, chosen
        limit = {"A2A_TURN_LIMIT_S": turn} if turn else {}
        settings = load_settings({"A2A_WORKER_TURNS": "2", "A2A_RUN_LIMIT_S": worker, **limit})
        if fits:
            settings.check_sharing()
        else:
            with pytest.raises(ConfigurationError, match="A2A_TURN_LIMIT_S"):
                settings.check_sharing()


def test_the_bounds_of_turns_are_those_of_the_setting(document: Json) -> None:
    """Defaults agree, and a value beyond the bounds is refused in both places."""
    parameter = document["Parameters"]["WorkerTurns"]
    assert load_settings({}).worker_turns == parameter["Default"]
    for value in (parameter["MinValue"] - 1, parameter["MaxValue"] + 1):
        with pytest.raises(ConfigurationError, match="A2A_WORKER_TURNS"):
            load_settings({"A2A_WORKER_TURNS": str(value)})


# -- what wakes PushFunction, its queue, its secret ----------------------------------------

CHOICES = get_args(PushEvents)
RECORD = event_file("push-dynamodb-commit")["Records"][0]


def record(
    *,
    name: str = "INSERT",
    sort: str = "",
    state: str | None = None,
    mark: int = 0,
    answered_at: int = 0,
) -> Json:
    """A record as the stream has it, of an item with another key or other attributes."""
    changed: Json = json.loads(json.dumps(RECORD)) | {"eventName": name}
    keys, image = changed["dynamodb"]["Keys"], changed["dynamodb"]["NewImage"]
    if sort:
        keys["SK"]["S"] = image["SK"]["S"] = sort
    image.pop("state")
    if state is not None:
        image["state"] = {"S": state}
    image |= {"set_mark": {"N": str(mark)}} if mark else {}
    image |= {"answered_at": {"N": str(answered_at)}} if answered_at else {}
    return changed


WEBHOOK_SET = record(sort="PUSH#qW3rTy-uI_0p#mine", mark=7)
COMMITS = [record(), *(record(state=state_name(state)) for state in sorted(KNOWN))]
OTHERS = [
    record(name="MODIFY", sort="HEAD", state="TASK_STATE_COMPLETED"),
    record(name="INSERT", sort="HEAD", state="TASK_STATE_COMPLETED"),
    record(name="REMOVE", state="TASK_STATE_COMPLETED"),
    record(name="INSERT", sort="PUSH#qW3rTy-uI_0p#mine"),
    record(name="INSERT", sort="CANCEL"),
    record(name="REMOVE", sort="PUSH#qW3rTy-uI_0p#mine"),
    record(name="MODIFY", sort="PUSH#qW3rTy-uI_0p#mine", mark=7, answered_at=5),
    record(name="MODIFY", sort="PUSH#qW3rTy-uI_0p#mine", answered_at=5),
    record(name="MODIFY", sort="HEAD", mark=7),
]


@pytest.mark.parametrize("which", CHOICES)
def test_the_filter_drops_what_the_function_would_drop(which: PushEvents) -> None:
    """For each choice a record wakes PushFunction exactly if the function would use it."""
    passes = stream_filter(which)
    for each in [*COMMITS, WEBHOOK_SET, WEBHOOK_SET | {"eventName": "MODIFY"}, *OTHERS]:
        assert passes(each) is bool(list(_committed_by([each], which))), each
    assert any(map(passes, COMMITS))
    assert passes(WEBHOOK_SET)
    assert not any(map(passes, OTHERS))


def test_the_filter_is_chosen_with_the_setting(document: Json, transformed: Json) -> None:
    """One parameter chooses what wakes the function and what it sends."""
    source = transformed["PushFunctionCommits"]["Properties"]
    assert source["FilterCriteria"]["Filters"] == [
        {"Pattern": {"Fn::FindInMap": ["PushFilters", {"Ref": "PushEvents"}, "Pattern"]}},
        {"Pattern": webhooks_set()},
    ]
    assert tuple(document["Parameters"]["PushEvents"]["AllowedValues"]) == CHOICES
    assert set(document["Mappings"]["PushFilters"]) == set(CHOICES)


def test_a_job_waits_as_long_as_it_has_to(template: Template, transformed: Json) -> None:
    """Visibility is the function's time-out and 30 s; two slow webhooks fit into the time-out.

    A webhook may fail as long as its setting says: neither receives nor the queue's time run out
    before, as 15 minutes lie between two at most.
    """
    timeout = transformed["PushFunction"]["Properties"]["Timeout"]
    (most,) = [it.le for it in Settings.model_fields["push_retry_s"].metadata if hasattr(it, "le")]
    queue = template.properties("PushQueue", {"PushDeadLetterQueue.Arn": "arn:dlq"})
    assert queue["VisibilityTimeout"] == timeout + 30
    assert timeout >= 2 * Settings().push_timeout_s + 10
    assert queue["MessageRetentionPeriod"] > most
    assert queue["RedrivePolicy"] == {"deadLetterTargetArn": "arn:dlq", "maxReceiveCount": 1000}
    assert most < 1000 * 15 * 60


def test_the_generated_secret_is_a_key(transformed: Json) -> None:
    """A text as long as Secrets Manager generates makes a signing key."""
    generated = transformed["SigningSecret"]["Properties"]["GenerateSecretString"]
    assert generated == {"PasswordLength": 64, "ExcludePunctuation": True}
    assert _signing_key("k" * generated["PasswordLength"]).kid


# -- what `provision` makes, on moto ---------------------------------------------------------------

NAMES = provision.Names.with_prefix("provision-test")

Clients = tuple[Any, Any]


@pytest.fixture
def moto_clients() -> Iterator[Clients]:
    with mock_aws():
        yield (
            boto3.client("dynamodb", region_name=emulators.REGION),
            boto3.client("sqs", region_name=emulators.REGION),
        )


QUEUES = {"queue": "OperationsQueue", "quarantine_queue": "QuarantineQueue"} | {
    name: name.title().replace("_", "")
    for name in ("dead_letter_queue", "undecodable_queue", "push_queue", "push_dead_letter_queue")
}
"""The queues by their settings, and as template.yaml calls them."""
GUARDS = {"DeletionProtectionEnabled", "PointInTimeRecoverySpecification"}
GUARDS |= {"Tags", "TimeToLiveSpecification"}
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
    assert unordered(provision.table_definition()) == unordered(made)
    assert deployed["TimeToLiveSpecification"] == {"AttributeName": "expires_at", "Enabled": True}


@pytest.mark.parametrize(("name", "logical_id"), QUEUES.items())
def test_a_queue_is_that_of_the_template(template: Template, name: str, logical_id: str) -> None:
    """Order, visibility, retention, encryption and redrive, with the parameters' defaults."""
    arns = {"DeadLetterQueue.Arn": "arn:dead", "PushDeadLetterQueue.Arn": "arn:dead"}
    deployed = template.properties(logical_id, arns)
    made: dict[str, Any] = provision.queue_attributes(name, "arn:dead")
    if "RedrivePolicy" in made:
        made["RedrivePolicy"] = json.loads(made["RedrivePolicy"])
    texts = {it: str(value).lower() for it, value in deployed.items() if isinstance(value, bool)}
    numbers = {it: str(value) for it, value in deployed.items() if type(value) is int}
    hidden = {"VisibilityTimeout": "30"}  # of a queue that is told none
    assert made == {**hidden, **deployed, **texts, **numbers}


def test_provision_on_moto(moto_clients: Clients) -> None:
    """The table and the queues come to be, and a second time nothing changes."""
    made = provision.provision(*moto_clients, names=NAMES)
    assert provision.provision(*moto_clients, names=NAMES) == made


def test_a_table_of_an_earlier_version_keeps_its_tasks(moto_clients: Clients) -> None:
    """A missing index is named with the way to add it: nothing says that the table is to go."""
    dynamodb, sqs = moto_clients
    definition = provision.table_definition()
    indexes = definition["GlobalSecondaryIndexes"]
    definition["GlobalSecondaryIndexes"] = [i for i in indexes if i["IndexName"] != "by-id"]
    attributes, own = definition["AttributeDefinitions"], {"id_key", "created_key"}
    definition["AttributeDefinitions"] = [a for a in attributes if a["AttributeName"] not in own]
    dynamodb.create_table(TableName=NAMES.table, **definition)
    with pytest.raises(ConfigurationError, match="has no index by-id yet: add it") as refused:
        provision.provision(dynamodb, sqs, names=NAMES)
    assert "delete" not in str(refused.value)


def test_a_foreign_table_or_queue_is_refused(moto_clients: Clients) -> None:
    """One of that name with other keys or attributes stops the start; the sentence names it."""
    dynamodb, sqs = moto_clients
    other = {"FifoQueue": "true", "VisibilityTimeout": "1"}
    queue = sqs.create_queue(QueueName=NAMES.queue, Attributes=other)["QueueUrl"]
    with pytest.raises(ConfigurationError, match=NAMES.queue):
        provision.provision(dynamodb, sqs, names=NAMES)
    sqs.delete_queue(QueueUrl=queue)
    dynamodb.delete_table(TableName=NAMES.table)
    dynamodb.create_table(
        TableName=NAMES.table,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )
    with pytest.raises(ConfigurationError, match=NAMES.table):
        provision.provision(dynamodb, sqs, names=NAMES)


def test_names_come_from_the_functions_variables() -> None:
    """`A2A_TABLE` and `A2A_QUEUE`, as a name or a URL, name what is made; the rest has a prefix."""
    given = {"A2A_TABLE": "mine", "A2A_QUEUE": "http://127.0.0.1:1/0/mine.fifo"}
    names = provision.Names.from_environment(given)
    assert names.table == "mine"
    assert names.queue == "mine.fifo"
    assert names.dead_letter_queue == "a2a-dead-letters.fifo"

"""The calls that the functions may make; the whole suite shows that they make them."""

from typing import Any

import pytest

from tests.support.permissions import (
    NETWORK,
    as_list,
    functions,
    granted,
    implied,
    in_a_vpc,
    name_of,
    role_of,
    statements,
)
from tests.support.recorded_calls import WRITES, Permission
from tests.support.template import Template, of_type

Json = dict[str, Any]

CONSUMERS = {
    "OperationsQueue": {"WorkerFunction"},
    "QuarantineQueue": {"WorkerFunction"},
    "DeadLetterQueue": {"SweeperFunction"},
    "PushQueue": {"PushFunction"},
    "PushDeadLetterQueue": set[str](),
    "UndecodableQueue": set[str](),
}
SENDERS = {
    "OperationsQueue": {"ApiFunction", "StreamFunction", "SweeperFunction", "WorkerFunction"},
    "QuarantineQueue": {"WorkerFunction"},
    "DeadLetterQueue": set[str](),
    "PushQueue": {"PushFunction", "SweeperFunction"},
    "PushDeadLetterQueue": {"PushFunction"},
    "UndecodableQueue": {"SweeperFunction", "PushFunction"},
}
READERS = {
    "ApiKeys": {"ApiFunction", "StreamFunction"},
    "SigningSecret": {"PushFunction"},
    "AgentSecretArn": {"WorkerFunction"},
}


@pytest.fixture
def permissions(transformed: Json) -> set[Permission]:
    return granted(transformed)


def holders(permissions: set[Permission], action: str, resource: str) -> set[str]:
    return {who for who, what, where in permissions if (what, where) == (action, resource)}


def test_one_role_per_function(transformed: Json) -> None:
    """No two functions share a role, and none has a policy of AWS's, which would open more."""
    roles = [role_of(transformed, function) for function in functions(transformed)]
    assert len(roles) == len(set(roles)) == 5
    for role in roles:
        actions = [a for s in statements(transformed, role) for a in as_list(s["Action"])]
        assert not [action for action in actions if "iam::aws:policy" in action]


def test_no_wildcards(permissions: set[Permission]) -> None:
    """Each permission names its action and its resource, but for services that know none."""
    assert {action for _, action, where in permissions if where == "*"} == {*NETWORK}
    assert not [action for _, action, _ in permissions if "*" in action]
    assert {where for _, _, where in permissions if "*" in where} == {"*"}


def test_nobody_scans(transformed: Json, permissions: set[Permission]) -> None:
    """Every function reads and writes items by key; none may scan, change or delete the table.

    Each has the permissions that its event sources and its runtime need.
    """
    actions = {action for _, action, where in permissions if where.startswith("TaskTable")}
    forbidden = ("Scan", "UpdateTable", "DeleteTable", "CreateTable")
    assert actions.isdisjoint(f"dynamodb:{it}" for it in forbidden)
    users = {who for who, _, where in permissions if where == "TaskTable"}
    assert holders(permissions, "dynamodb:GetItem", "TaskTable") == users
    assert implied(transformed) <= permissions


def test_queues_have_one_consumer(permissions: set[Permission]) -> None:
    """Each queue is read by its one consumer; what was given up is read by people alone."""
    for action in ("sqs:ReceiveMessage", "sqs:DeleteMessage"):
        assert {it: holders(permissions, action, it) for it in CONSUMERS} == CONSUMERS


def test_queues_have_their_senders(permissions: set[Permission]) -> None:
    """Only the functions in SENDERS may send."""
    assert {it: holders(permissions, "sqs:SendMessage", it) for it in SENDERS} == SENDERS


def test_secrets_have_their_readers(permissions: set[Permission]) -> None:
    """The API alone reads its keys, PushFunction its signing secret, the worker the agent's."""
    reads = "secretsmanager:GetSecretValue"
    assert {it: holders(permissions, reads, it) for it in READERS} == READERS


@pytest.mark.parametrize(
    ("key", "secret", "policies"),
    [("", "", ""), ("arn:key", "", "arn:one"), ("", "arn:secret", "arn:one,arn:two")],
)
def test_the_workers_policies(document: Json, key: str, secret: str, policies: str) -> None:
    """The worker's role has the stack's policies that it needs, and those of AgentPolicyArns."""
    own = {"KmsKeyArn": key, "AgentSecretArn": secret, "AgentPolicyArns": policies}
    names = ("TelemetryPolicy", "PublishedKeysPolicy", "KeyPolicy", "AgentSecretPolicy")
    made = {name: name for name in names}
    made |= {f"{queue}.Arn": queue for queue in ("OperationsQueue", "QuarantineQueue")}
    made |= {"TaskTable.Arn": "table", "BlobBucket.Arn": "bucket"}

    role = Template(document, own).properties("WorkerRole", made)

    assert role["ManagedPolicyArns"] == [
        "TelemetryPolicy",
        "PublishedKeysPolicy",
        *(["KeyPolicy"] if key else []),
        *(["AgentSecretPolicy"] if secret else []),
        *(policies.split(",") if policies else []),
    ]


BOUNDARY = {"Fn::If": ["HasBoundary", {"Ref": "PermissionsBoundaryArn"}, {"Ref": "AWS::NoValue"}]}


def test_a_boundary_is_every_roles(document: Json) -> None:
    """No role is without the PermissionsBoundaryArn."""
    roles = of_type(document["Resources"], "AWS::IAM::Role").values()
    assert [role["PermissionsBoundary"] for role in roles] == 5 * [BOUNDARY]


def test_the_agents_parameters_reach_the_worker_alone(document: Json) -> None:
    """No other resource is told of the agent's secret, policies or variables.

    The layer names all parameters, so that it is a new one for other values, and has none of them.
    """
    parameters = ("AgentSecretArn", "AgentPolicyArns", "AgentEnvironment")
    told = {
        name
        for name, resource in document["Resources"].items()
        if any(f"'{parameter}'" in str(resource) for parameter in parameters)
    }
    assert told == {"WorkerFunction", "WorkerRole", "AgentSecretPolicy", "RuntimeLayer"}
    taken, values = document["Resources"]["RuntimeLayer"]["Properties"]["Description"]["Fn::Select"]
    assert isinstance(values[taken], str)
    assert "AgentSecretArn" not in str(document["Globals"])


def test_only_lambda_attaches_functions_to_the_vpc(transformed: Json) -> None:
    """Worker and PushFunction may be in a VPC; their own code may not touch its interfaces."""
    assert in_a_vpc(transformed) == ["PushFunction", "WorkerFunction"]
    from_code = {"Null": {"lambda:SourceFunctionArn": "false"}}
    its = [("Allow", NETWORK, None), ("Deny", NETWORK, from_code)]
    for function in functions(transformed):
        about_network = [
            (it["Effect"], tuple(as_list(it["Action"])), it.get("Condition"))
            for it in statements(transformed, role_of(transformed, function))
            if str(it["Action"]).count("ec2:")
        ]
        wanted = its if function in in_a_vpc(transformed) else []
        assert sorted(about_network, key=str) == wanted, function


def test_a_key_of_the_users_is_usable_by_all(transformed: Json) -> None:
    """With KmsKeyArn each function may use that key, and no other one."""
    for function in functions(transformed):
        keys = [
            (action, statement["Resource"])
            for statement in statements(transformed, role_of(transformed, function))
            for action in as_list(statement["Action"])
            if action.startswith("kms:")
        ]
        assert {resource["Ref"] for _, resource in keys} == {"KmsKeyArn"}
        assert {"kms:Decrypt", "kms:GenerateDataKey", "kms:DescribeKey"} <= {a for a, _ in keys}


def test_published_keys_have_one_writer(permissions: set[Permission]) -> None:
    """PushFunction may write what receivers trust; no other function may, in any way."""
    written = {(who, what) for who, what, where in permissions if where == "TaskTable[JWKS]"}
    ways = ("dynamodb:PutItem", "dynamodb:UpdateItem")
    assert written == {("PushFunction", way) for way in ways}


@pytest.mark.parametrize("role", ["ApiRole", "StreamRole", "WorkerRole", "SweeperRole"])
def test_other_roles_are_denied_the_keys(transformed: Json, role: str) -> None:
    """A Deny names every way to write an item, and holds whatever else the role gets."""
    of_table = [s for s in statements(transformed, role) if name_of(s["Resource"]) == "TaskTable"]
    denied = [s for s in of_table if s["Effect"] == "Deny"]
    assert [(s["Condition"], name_of(s["Resource"])) for s in denied] == [
        ({"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": ["JWKS"]}}, "TaskTable")
    ]
    partiql = (f"dynamodb:PartiQL{way}" for way in ("Delete", "Insert", "Update"))
    assert {*WRITES, *partiql} == {*denied[0]["Action"]}

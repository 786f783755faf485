"""What the functions may do."""

from collections.abc import Iterator
from typing import Any

import pytest

Json = dict[str, Any]

ROLES = {
    "ApiFunction": "ApiFunctionRole",
    "StreamFunction": "StreamFunctionRole",
    "WorkerFunction": "WorkerRole",
    "SweeperFunction": "SweeperRole",
}
WRITES = {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"}
CONSUMES = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}


def as_list(value: Any) -> list[Any]:
    """One or several, as IAM writes them."""
    return value if isinstance(value, list) else [value]


def statements(transformed: Json, role: str) -> Iterator[Json]:
    """The statements of a role's own policies."""
    for policy in transformed[role]["Properties"]["Policies"]:
        yield from policy["PolicyDocument"]["Statement"]


def allowed(transformed: Json, role: str, resource: Any) -> set[str]:
    """The actions that a role has on a resource."""
    return {
        action
        for statement in statements(transformed, role)
        if resource in as_list(statement["Resource"])
        for action in as_list(statement["Action"])
    }


def arn(name: str) -> Json:
    """A reference to a resource's ARN."""
    return {"Fn::GetAtt": [name, "Arn"]}


def index(name: str) -> Json:
    """A reference to an index of the table."""
    return {"Fn::Sub": f"${{TaskTable.Arn}}/index/{name}"}


@pytest.mark.parametrize("role", ROLES.values())
def test_no_wildcards(transformed: Json, role: str) -> None:
    """Each permission names its actions and its resource."""
    for statement in statements(transformed, role):
        assert statement["Effect"] == "Allow"
        assert not any("*" in action for action in as_list(statement["Action"]))
        assert not any("*" in str(resource) for resource in as_list(statement["Resource"]))


@pytest.mark.parametrize(("function", "role"), ROLES.items())
def test_only_the_basic_managed_policy(transformed: Json, function: str, role: str) -> None:
    """Beside its own policy a function may write its log; no policy of AWS's opens more queues."""
    managed = transformed[role]["Properties"]["ManagedPolicyArns"]
    assert transformed[function]["Properties"]["Role"] == arn(role)
    assert len(managed) == 1
    assert "AWSLambdaBasicExecutionRole" in str(managed[0])


@pytest.mark.parametrize("role", ROLES.values())
def test_nobody_scans(transformed: Json, role: str) -> None:
    """Every function reads and writes items by key; none may scan or change the table."""
    actions = allowed(transformed, role, arn("TaskTable"))
    assert {"dynamodb:GetItem", "dynamodb:Query"} | WRITES <= actions
    assert actions.isdisjoint({"dynamodb:Scan", "dynamodb:UpdateTable", "dynamodb:DeleteTable"})


@pytest.mark.parametrize("role", ["ApiFunctionRole", "StreamFunctionRole"])
def test_endpoints_send_and_list(transformed: Json, role: str) -> None:
    """The endpoints send operations and list tasks; they consume nothing."""
    assert allowed(transformed, role, arn("OperationsQueue")) == {"sqs:SendMessage"}
    assert allowed(transformed, role, index("by-scope")) == {"dynamodb:Query"}
    assert allowed(transformed, role, index("by-context")) == {"dynamodb:Query"}
    assert allowed(transformed, role, arn("DeadLetterQueue")) == set()


def test_worker_consumes_operations(transformed: Json) -> None:
    """The worker consumes operations, prolongs them, and sets aside what it cannot read."""
    role = "WorkerRole"
    operations = allowed(transformed, role, arn("OperationsQueue"))
    assert operations == CONSUMES | {"sqs:ChangeMessageVisibility"}
    assert allowed(transformed, role, arn("UndecodableQueue")) == {"sqs:SendMessage"}


def test_sweeper_repairs(transformed: Json) -> None:
    """The sweeper finds what is due, sends operations again, and consumes dead letters."""
    role = "SweeperRole"
    dead_letters = allowed(transformed, role, arn("DeadLetterQueue"))
    assert allowed(transformed, role, index("by-due")) == {"dynamodb:Query"}
    assert allowed(transformed, role, arn("OperationsQueue")) == {"sqs:SendMessage"}
    assert dead_letters == CONSUMES | {"sqs:ChangeMessageVisibility"}

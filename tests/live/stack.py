"""A deployed stack of this project, and the refusal of every other one. Nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from tests.live.account import ERRORS, Account, credentials_fault

FUNCTIONS: Final = (
    "ApiFunction",
    "StreamFunction",
    "WorkerFunction",
    "SweeperFunction",
    "PushFunction",
)
ROLES: Final = ("ApiRole", "StreamRole", "WorkerRole", "SweeperRole", "PushRole")
RESOURCES: Final = (*FUNCTIONS, *ROLES, "RestApi", "TaskTable", "OperationsQueue", "SigningSecret")
"""What makes a stack ours, by the logical ids of `template.yaml`."""

_AT_REST: Final = frozenset(
    {
        "CREATE_COMPLETE",
        "IMPORT_COMPLETE",
        "IMPORT_ROLLBACK_COMPLETE",
        "UPDATE_COMPLETE",
        "UPDATE_ROLLBACK_COMPLETE",
    }
)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack: outputs and parameters by name, physical ids by logical ones."""

    name: str
    region: str
    outputs: Mapping[str, str]
    parameters: Mapping[str, str]
    resources: Mapping[str, str]

    @property
    def endpoint(self) -> str:
        """The agent's URL; it ends with a slash."""
        return self.outputs["Endpoint"]


async def read_stack(account: Account, name: str) -> Stack:
    """Read a stack.

    Raises:
        ConfigurationError: there is none, it cannot be read, it is not ours, or it is changing.
    """
    try:
        (found,) = (await account.call("cloudformation", "describe_stacks", StackName=name))[
            "Stacks"
        ]
        resources = await _resources(account, name)
    except ERRORS as error:
        raise ConfigurationError(_fault(error, name, account.region)) from error
    outputs = {one["OutputKey"]: one["OutputValue"] for one in found.get("Outputs", ())}
    if found["StackStatus"] not in _AT_REST:
        msg = f"The stack {name} is {found['StackStatus']}: run the checks when it is deployed."
        raise ConfigurationError(msg)
    if "Endpoint" not in outputs or not resources.keys() >= set(RESOURCES):
        msg = (
            f"The stack {name} in {account.region} is not one of a2a-serverless's template.yaml: "
            "name one that `sam deploy` has made of it. Nothing was touched."
        )
        raise ConfigurationError(msg)
    return Stack(
        name=name,
        region=account.region,
        outputs=outputs,
        parameters={
            one["ParameterKey"]: one["ParameterValue"] for one in found.get("Parameters", ())
        },
        resources=resources,
    )


async def first_key(account: Account, stack: Stack) -> str:
    """Read a key of the stack's clients: that of `default`, else the first that can be read.

    Raises:
        ConfigurationError: the stack takes no keys, or they cannot be read.
    """
    way_out = "set A2A_LIVE_CREDENTIAL to a key or token that it takes."
    if "api-key" not in stack.parameters["Auth"]:
        msg = f"The stack {stack.name} takes no API keys (Auth): {way_out}"
        raise ConfigurationError(msg)
    try:
        answer = await account.call(
            "secretsmanager", "get_secret_value", SecretId=stack.outputs["ApiKeys"]
        )
    except ERRORS as error:
        msg = f"The keys of {stack.name} cannot be read ({aws.error_code(error)}): {way_out}"
        raise ConfigurationError(msg) from error
    keys: dict[str, Any] = json.loads(answer["SecretString"])
    named = [keys.pop("default", None), *keys.values()]
    flat = [key for one in named for key in (one if isinstance(one, list) else [one])]
    for key in flat:
        if isinstance(key, str) and not key.startswith(("sha256:", "oidc:")):
            return key
    raise ConfigurationError(f"The secret of {stack.name} has digests of keys alone: {way_out}")


async def _resources(account: Account, name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    page: dict[str, str] = {}
    while True:
        answer = await account.call(
            "cloudformation", "list_stack_resources", StackName=name, **page
        )
        for one in answer["StackResourceSummaries"]:
            found[one["LogicalResourceId"]] = one.get("PhysicalResourceId", "")
        if "NextToken" not in answer:
            return found
        page = {"NextToken": answer["NextToken"]}


def _fault(error: Exception, name: str, region: str) -> str:
    if (sentence := credentials_fault(error)) is not None:
        return sentence
    if aws.error_code(error) == "ValidationError":
        return f"There is no stack {name} in {region}: `aws cloudformation list-stacks` names them."
    return (
        f"The stack {name} in {region} cannot be read ({aws.error_code(error)}): the credentials "
        "need what the page `live` lists, and a way to AWS."
    )

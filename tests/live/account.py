"""An AWS account by the credentials of the environment, and a stack in it. Nothing here writes."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import boto3
from botocore.config import Config

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError

ERRORS: Final = aws.ERRORS
FUNCTIONS: Final = tuple(f"{it}Function" for it in ("Api", "Stream", "Worker", "Sweeper", "Push"))
RESOURCES: Final = (*FUNCTIONS, "RestApi", "TaskTable", "OperationsQueue", "SigningSecret")
"""What makes a stack ours, by the logical ids of `template.yaml`."""

_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
_GONE = ("NotFound", "NonExistent", "NoSuchEntity", "QueueDoesNotExist")


class Account:
    """One region of an AWS account; `options` are those of each client, such as `endpoint_url`."""

    def __init__(self, region: str, **options: Any) -> None:
        self.region = region
        self._options = options
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """Return the client of a service, such as `iam`."""
        if service not in self._clients:
            config = Config(retries={"mode": "standard", "total_max_attempts": 5})
            options = {"config": config, **self._options}
            self._clients[service] = boto3.client(service, self.region, **options)
        return self._clients[service]

    async def call(self, service: str, operation: str, **params: Any) -> Any:
        """Call an operation, named as boto3 names it, in a thread; return its answer."""
        return await aws.call(getattr(self.client(service), operation), **params)

    async def pages(self, service: str, operation: str, member: str, **params: Any) -> list[Any]:
        """Call an operation for all its pages; return what a member of the answers lists."""
        client = self.client(service)
        if not client.can_paginate(operation):
            answer = await self.call(service, operation, **params)
            return list(answer.get(member, ()))
        pages = client.get_paginator(operation).paginate(**params)
        found = await asyncio.to_thread(lambda: [page.get(member, ()) for page in pages])
        return [one for page in found for one in page]


def is_gone(error: Exception) -> bool:
    """Return True if an error says that its subject does not exist."""
    return any(word in aws.error_code(error) for word in _GONE)


def is_denied(error: Exception) -> bool:
    """Return True if an error says that the caller may not do this."""
    return aws.error_code(error) in _DENIED


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
        answer = await account.call("cloudformation", "describe_stacks", StackName=name)
        asked = ("cloudformation", "list_stack_resources", "StackResourceSummaries")
        listed = await account.pages(*asked, StackName=name)
    except ERRORS as error:
        msg = f"The stack {name} in {account.region} cannot be read: {error}"
        raise ConfigurationError(msg) from error
    (found,) = answer["Stacks"]
    if not found["StackStatus"].endswith("_COMPLETE"):
        msg = f"The stack {name} is {found['StackStatus']}: run the checks when it is deployed."
        raise ConfigurationError(msg)
    resources = {it["LogicalResourceId"]: it.get("PhysicalResourceId", "") for it in listed}
    if not resources.keys() >= set(RESOURCES):
        msg = (
            f"The stack {name} in {account.region} is not one of a2a-serverless's template.yaml: "
            "name one that `sam deploy` has made of it. Nothing was touched."
        )
        raise ConfigurationError(msg)
    parameters = found.get("Parameters", ())
    return Stack(
        name=name,
        region=account.region,
        outputs={it["OutputKey"]: it["OutputValue"] for it in found.get("Outputs", ())},
        parameters={it["ParameterKey"]: it["ParameterValue"] for it in parameters},
        resources=resources,
    )


async def first_key(account: Account, stack: Stack) -> str:
    """Read a key of the stack's clients: that of `default`, else the first.

    Raises:
        ConfigurationError: there is none that can be read.
    """
    way_out = "set A2A_LIVE_CREDENTIAL to a key or token that it takes."
    try:
        named = {"SecretId": stack.outputs["ApiKeys"]}
        answer = await account.call("secretsmanager", "get_secret_value", **named)
    except ERRORS as error:
        msg = f"The keys of {stack.name} cannot be read ({aws.error_code(error)}): {way_out}"
        raise ConfigurationError(msg) from error
    keys = json.loads(answer["SecretString"])
    first = keys.get("default", next(iter(keys.values())))
    key: str = first[0] if isinstance(first, list) else first
    if key.startswith(("sha256:", "oidc:")):
        raise ConfigurationError(f"The secret of {stack.name} has no key itself: {way_out}")
    return key

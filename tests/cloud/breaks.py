"""Breaks of a deployed stack, each with the check that has to find it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.cloud.deployment import Deployment
from tests.live.stack import Stack

Undo = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Break:
    """What is broken, the check that finds it, and how; `does` returns how it is mended."""

    name: str
    check: str
    does: Callable[[Deployment, Stack], Awaitable[Undo]]


def _source(logical: str) -> Callable[[Deployment, Stack], Awaitable[Undo]]:
    async def disable(deployment: Deployment, stack: Stack) -> Undo:
        uuid = stack.resources[logical]

        async def set_to(*, enabled: bool) -> None:
            await deployment.account.call(
                "lambda", "update_event_source_mapping", UUID=uuid, Enabled=enabled
            )

        await set_to(enabled=False)
        return lambda: set_to(enabled=True)

    return disable


def _grant(role: str, action: str, resource: str) -> Callable[[Deployment, Stack], Awaitable[Undo]]:
    async def allow(deployment: Deployment, stack: Stack) -> Undo:
        account, named = deployment.account, {"RoleName": stack.resources[role], "PolicyName": "b"}
        found = stack.outputs.get(resource, "*")
        statement = {"Effect": "Allow", "Action": action, "Resource": found}
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        await account.call("iam", "put_role_policy", PolicyDocument=document, **named)
        return lambda: account.call("iam", "delete_role_policy", **named)

    return allow


async def _no_route(deployment: Deployment, stack: Stack) -> Undo:
    account, api = deployment.account, stack.resources["RestApi"]
    found = await account.call("apigateway", "get_resources", restApiId=api, limit=500)
    (node,) = (each for each in found["items"] if each["path"] == "/message:stream")
    method = {"restApiId": api, "resourceId": node["id"], "httpMethod": "POST"}
    integration = (await account.call("apigateway", "get_method", **method))["methodIntegration"]
    await account.call("apigateway", "delete_method", **method)
    await deployment.door.show(stack.resources)

    async def undo() -> None:
        await account.call("apigateway", "put_method", authorizationType="NONE", **method)
        await account.call(
            "apigateway",
            "put_integration",
            type="AWS_PROXY",
            integrationHttpMethod="POST",
            uri=integration["uri"],
            **method,
        )
        await deployment.door.show(stack.resources)

    return undo


async def _no_redrive(deployment: Deployment, stack: Stack) -> Undo:
    account, queue = deployment.account, stack.resources["OperationsQueue"]
    found = await account.call(
        "sqs", "get_queue_attributes", QueueUrl=queue, AttributeNames=["RedrivePolicy"]
    )

    async def set_to(policy: str) -> None:
        await account.call(
            "sqs", "set_queue_attributes", QueueUrl=queue, Attributes={"RedrivePolicy": policy}
        )

    await set_to("")
    return lambda: set_to(found["Attributes"]["RedrivePolicy"])


async def _no_permission(deployment: Deployment, stack: Stack) -> Undo:
    account = deployment.account
    named = {
        "RoleName": stack.resources["ApiRole"],
        "PolicyArn": stack.resources["EndpointPolicy"],
    }
    await account.call("iam", "detach_role_policy", **named)
    return lambda: account.call("iam", "attach_role_policy", **named)


async def _nothing(_: Deployment, __: Stack) -> Undo:
    return lambda: asyncio.sleep(0)


BREAKS: Final = (
    Break("a streaming route is taken out", "stream-python", _no_route),
    Break("the worker may scan", "role-refused", _grant("WorkerRole", "dynamodb:Scan", "")),
    Break(
        "the API may read the signing secret",
        "refused-calls",
        _grant("ApiRole", "secretsmanager:GetSecretValue", "SigningSecret"),
    ),
    Break("the operations queue has no redrive", "dead-letter", _no_redrive),
    Break(
        "the worker's event source is disabled", "follow-up", _source("WorkerFunctionOperations")
    ),
    Break("the table's stream is not read", "webhook", _source("PushFunctionCommits")),
    Break("the push queue is not read", "webhook", _source("PushFunctionDeliveries")),
    Break("the API's role has lost its table", "follow-up", _no_permission),
    Break("a call was refused, as just now", "logs", _nothing),
)
"""The last one finds what the one before has left in the logs."""

"""Small things of the program's own in the account: queues, and functions with a URL."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any, Final

from a2a_serverless import aws
from tests.live.account import ERRORS, Account, is_denied
from tests.live.findings import NotPossibleError
from tests.live.subject import Subject

KNOWN_S: Final = 60.0
"""How long a new role may be unknown to Lambda."""

_ASSUME: Final = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "lambda.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


class Workshop:
    """Makes things in the owner's account, each noted before it is made.

    Raises (each method):
        NotPossibleError: the credentials do not allow it.
    """

    def __init__(self, subject: Subject, account: Account) -> None:
        self._subject = subject
        self._account = account

    async def queue(self, purpose: str) -> str:
        """Make a queue and return its URL."""
        name = self._subject.name(purpose)

        async def undo() -> None:
            found = await self._account.call("sqs", "get_queue_url", QueueName=name)
            await self._account.call("sqs", "delete_queue", QueueUrl=found["QueueUrl"])

        self._subject.made.note("queue", name, undo)
        answer = await self._make("sqs", "create_queue", QueueName=name)
        return str(answer["QueueUrl"])

    async def arn(self, queue_url: str) -> str:
        """Return a queue's ARN."""
        answer = await self._account.call(
            "sqs", "get_queue_attributes", QueueUrl=queue_url, AttributeNames=["QueueArn"]
        )
        return str(answer["Attributes"]["QueueArn"])

    async def function(
        self,
        purpose: str,
        code: str,
        *,
        allow: Mapping[str, list[str]],
        variables: Mapping[str, str],
        timeout_s: int,
    ) -> str:
        """Make a function, with a role that allows the actions of each ARN; return its name."""
        name = self._subject.name(purpose)
        role = await self._role(name, allow)

        async def undo() -> None:
            await self._account.call("lambda", "delete_function", FunctionName=name)

        self._subject.made.note("function", name, undo)

        await self._once_known(
            "create_function",
            FunctionName=name,
            Runtime="python3.13",
            Architectures=["arm64"],
            Role=role,
            Handler="index.handler",
            Code={"ZipFile": zipped(code)},
            Timeout=timeout_s,
            MemorySize=256,
            Environment={"Variables": dict(variables)},
        )
        await self._subject.until(
            f"the start of {name}", lambda: self._active(name), within_s=120, every_s=1
        )
        return name

    async def public_url(self, function: str) -> str:
        """Give a function a URL that everybody may call; it goes with the function."""
        for action, extra in (
            ("lambda:InvokeFunctionUrl", {"FunctionUrlAuthType": "NONE"}),
            ("lambda:InvokeFunction", {"InvokedViaFunctionUrl": True}),
        ):
            await self._make(
                "lambda",
                "add_permission",
                FunctionName=function,
                StatementId=action.partition(":")[2],
                Action=action,
                Principal="*",
                **extra,
            )
        answer = await self._make(
            "lambda", "create_function_url_config", FunctionName=function, AuthType="NONE"
        )
        return str(answer["FunctionUrl"])

    async def take(self, queue_url: str) -> list[dict[str, Any]]:
        """Take what is in a queue: the bodies, as JSON."""
        answer = await self._account.call(
            "sqs",
            "receive_message",
            QueueUrl=queue_url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=5,
        )
        messages = answer.get("Messages", [])
        for message in messages:
            await self._account.call(
                "sqs",
                "delete_message",
                QueueUrl=queue_url,
                ReceiptHandle=message["ReceiptHandle"],
            )
        return [json.loads(message["Body"]) for message in messages]

    async def _role(self, name: str, allow: Mapping[str, list[str]]) -> str:
        async def undo_role() -> None:
            await self._account.call("iam", "delete_role", RoleName=name)

        async def undo_policy() -> None:
            await self._account.call("iam", "delete_role_policy", RoleName=name, PolicyName="live")

        self._subject.made.note("role", name, undo_role)
        answer = await self._make(
            "iam", "create_role", RoleName=name, AssumeRolePolicyDocument=json.dumps(_ASSUME)
        )
        self._subject.made.note("policy of role", name, undo_policy)
        document = {
            "Version": "2012-10-17",
            "Statement": [
                {"Effect": "Allow", "Action": actions, "Resource": arn}
                for arn, actions in allow.items()
            ],
        }
        await self._make(
            "iam",
            "put_role_policy",
            RoleName=name,
            PolicyName="live",
            PolicyDocument=json.dumps(document),
        )
        return str(answer["Role"]["Arn"])

    async def _active(self, name: str) -> bool | None:
        found = await self._account.call("lambda", "get_function_configuration", FunctionName=name)
        return found["State"] == "Active" or None

    async def _once_known(self, operation: str, **params: Any) -> Any:
        """Call Lambda until it knows the role and what the role may do, which takes a moment."""
        deadline = self._subject.clock.monotonic() + KNOWN_S
        while True:
            try:
                return await self._make("lambda", operation, **params)
            except ERRORS as error:
                is_unknown = aws.error_code(error) == "InvalidParameterValueException"
                if not is_unknown or self._subject.clock.monotonic() >= deadline:
                    raise
            await self._subject.clock.sleep(2)

    async def _make(self, service: str, operation: str, **params: Any) -> Any:
        try:
            return await self._account.call(service, operation, **params)
        except ERRORS as error:
            if is_denied(error):
                msg = f"the credentials may not {operation} of {service}"
                raise NotPossibleError(msg) from error
            raise


def zipped(code: str) -> bytes:
    """A function's package with one module."""
    package = io.BytesIO()
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("index.py", code)
    return package.getvalue()

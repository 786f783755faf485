"""A deployed stack as an operator reaches it: the names in its outputs, and its logs."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import Settings
from a2a_serverless_tools.console.lines import LogLine, Logs

_OUTPUTS: Final[Mapping[str, str]] = {
    "Table": "table",
    "Queue": "queue",
    "UndecodableQueue": "undecodable_queue",
    "DeadLetterQueue": "dead_letter_queue",
    "PushDeadLetterQueue": "push_dead_letter_queue",
}
"""The settings that a stack's outputs name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedStack:
    """A stack of template.yaml, by its outputs."""

    name: str
    outputs: Mapping[str, str]

    def settings(self, settings: Settings) -> Settings:
        """Return `settings` with the names of the stack's table and queues."""
        names = {field: self.outputs.get(output, "") for output, field in _OUTPUTS.items()}
        return settings.model_copy(update=names)

    @property
    def endpoint(self) -> str:
        """Return the agent's URL, without a `/` at its end."""
        return self.outputs.get("Endpoint", "").rstrip("/")


async def read_stack(name: str) -> DeployedStack:
    """Return a stack of the region that boto3 takes from the environment.

    Raises:
        ConfigurationError: there is no stack of this name there, it cannot be read, or it was not
            made from our template.
    """
    region = os.environ.get("AWS_DEFAULT_REGION", "this region")
    try:
        client = aws.client("cloudformation")
        region = client.meta.region_name
        answer = await aws.call(client.describe_stacks, StackName=name)
    except aws.ERRORS as error:
        code = aws.error_code(error)
        if code == "ValidationError":
            msg = f"There is no stack {name} in {region}: check --stack and --region."
        else:
            reason = code or str(error).rstrip(".")
            msg = (
                f"The stack {name} in {region} cannot be read ({reason}): check the credentials,"
                " their right cloudformation:DescribeStacks, and --region."
            )
        raise ConfigurationError(msg) from error
    outputs = {
        one["OutputKey"]: one["OutputValue"] for one in answer["Stacks"][0].get("Outputs", ())
    }
    if not outputs.keys() >= {"Table", "Queue"}:
        msg = (
            f"The stack {name} in {region} has no outputs Table and Queue: name a stack that"
            " was deployed from template.yaml."
        )
        raise ConfigurationError(msg)
    return DeployedStack(name=name, outputs=outputs)


class StackLogs(Logs):
    """The log group of a stack, in CloudWatch.

    Args:
        stack: the stack whose functions log into the group.
    """

    is_at_hand = False

    def __init__(self, stack: DeployedStack) -> None:
        self._stack = stack

    async def about(self, task_id: str, since_ms: int) -> AsyncIterator[LogLine]:
        group = self._stack.outputs.get("LogGroup")
        if not group:
            msg = f"The stack {self._stack.name} has no output LogGroup: deploy it again."
            raise ConfigurationError(msg)
        asked: dict[str, Any] = {
            "logGroupName": group,
            "startTime": since_ms,
            "filterPattern": f'{{ $.task_id = "{task_id}" }}',
        }
        client = aws.client("logs")
        while True:
            try:
                page = await aws.call(client.filter_log_events, **asked)
            except aws.ERRORS as error:
                code = aws.error_code(error) or str(error).rstrip(".")
                msg = f"The log group {group} cannot be read ({code}): check logs:FilterLogEvents."
                raise ConfigurationError(msg) from error
            for event in page.get("events", ()):
                yield _line(event)
            token = page.get("nextToken")
            if not token:
                return
            asked["nextToken"] = token


def _line(event: Mapping[str, Any]) -> LogLine:
    text = str(event.get("message", ""))
    try:
        fields = json.loads(text)
    except ValueError:
        fields = {}
    if not isinstance(fields, dict):
        fields = {}
    return LogLine(
        at=int(event.get("timestamp", 0)),
        level=str(fields.get("level", "")),
        action=str(fields.get("action", "")),
        message=str(fields.get("message", text)),
        fields=fields,
    )

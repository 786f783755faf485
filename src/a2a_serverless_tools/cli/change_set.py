"""What a deployment would do to a stack, by a change set of SAM's that is not executed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.stacks import described
from a2a_serverless_tools.cli.text import say

_SECRET: Final = "AWS::SecretsManager::Secret"  # noqa: S105 - a type
_KEEPS_DATA: Final = ("AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::SQS::Queue", _SECRET)
_WRITTEN_BY_HAND: Final = "TraceHeaders"
"""A secret that goes with OtelEndpoint, and has nothing that the stack has made."""
_RECREATED: Final = ("Always", "Conditionally")
_NEW_VALUE: Final = "GenerateSecretString"
"""A secret gets another value if this is another; to CloudFormation that is no replacement."""
_KEYS: Final = "AttributeDefinitions"
"""A table is replaced if one of these has another type, and not if one is added."""
_NAMED_BY_SAM: Final = "samcli-deploy"
_TOLD: Final = re.compile(r"Changeset created successfully\. (\S+)")
_SAM: Final = Path(".venv", "sam", "bin")
"""Where a project has SAM, by its Makefile."""
_PATIENCE: Final = {"Delay": 1, "MaxAttempts": 300}


@dataclass(frozen=True, kw_only=True)
class ChangeSet:
    """What an update would change."""

    changes: Sequence[Mapping[str, Any]]
    """CloudFormation's `ResourceChange`, with the values before and after where it tells them."""

    def losses(self) -> Iterator[str]:
        """Yield what would be replaced by something empty, or taken out, of what keeps data."""
        for change in self.changes:
            name, action = change["LogicalResourceId"], change["Action"]
            if change["ResourceType"] not in _KEEPS_DATA or name == _WRITTEN_BY_HAND:
                continue
            if action == "Remove":
                what = f"take {name} out of the stack"
                yield f"The update would {what}: put it back into the template"
            elif replacing := [*_replacing(change)]:
                yield (
                    f"The update would replace {name} by a new one without its content, as "
                    f"{', '.join(replacing)} would be another: take that change back, or deploy it "
                    "as a stack of its own"
                )


def _replacing(change: Mapping[str, Any]) -> Iterator[str]:
    """Yield the properties by which a resource would be another one."""
    targets = [detail["Target"] for detail in change.get("Details", ())]
    named = {it["Name"]: it.get("RequiresRecreation") for it in targets if "Name" in it}
    # CloudFormation calls another KeySchema a condition, but no table takes one.
    other = [name for name, it in named.items() if name != _KEYS and it in _RECREATED]
    yield from other
    if not other and change.get("Replacement") == "True":
        yield "its type"
    if change["ResourceType"] == _SECRET and _NEW_VALUE in named:
        yield _NEW_VALUE
    before, after = _types(change.get("BeforeContext")), _types(change.get("AfterContext"))
    both = before.keys() & after.keys()
    yield from (f"the type of {key}" for key in sorted(both) if before[key] != after[key])


def _types(context: str | None) -> dict[str, str]:
    """Return the types of a table's keys by their names; none of another resource."""
    properties = json.loads(context or "{}").get("Properties", {})
    return {it["AttributeName"]: it["AttributeType"] for it in properties.get(_KEYS, ())}


@contextmanager
def change_set(folder: Path, stack: str, options: Sequence[str]) -> Iterator[ChangeSet]:
    """Yield what `sam deploy` with these options would change of a stack, for the block.

    At its end the change set is deleted, and with it a stack that is there for it alone; also
    after a failure. Ctrl-C and SIGTERM take effect after that: what SAM has asked CloudFormation
    for may be there only when SAM has ended.

    Raises:
        ConfigurationError: there is no SAM, or SAM or CloudFormation refuses to deploy.
        ClientError: what SAM has made cannot be read or deleted.
        KeyboardInterrupt: a signal has come.
    """
    command = [_sam(folder), "deploy", "--no-execute-changeset", "--no-fail-on-empty-changeset"]
    client = aws.client("cloudformation")
    is_new = described(stack) is None
    others = _listed(client, stack)
    with _signals_later():
        say(
            "sam deploy uploads what was built, and asks CloudFormation what would change; Ctrl-C"
            " takes effect when it has ended"
        )
        ended = subprocess.run(  # noqa: S603 - a program that the user has installed
            [*command, "--stack-name", stack, *options],
            check=False,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,  # a terminal's Ctrl-C is not for SAM
        )
        # SAM names a change set only if it can be executed. Otherwise those count that were not
        # there before: one that somebody else makes at the same time may be among them.
        made = {*_TOLD.findall(ended.stdout)} or _listed(client, stack) - others
        try:
            if ended.returncode != 0:
                raise ConfigurationError(_refusal(ended.stdout))
            yield _described(client, made)
        finally:
            _delete(client, made)
            if is_new and not _listed(client, stack):
                _delete_stack(client, stack)


@contextmanager
def _signals_later() -> Iterator[None]:
    """Have SIGINT and SIGTERM end the command behind a block, and not in it."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            raise KeyboardInterrupt


def _sam(folder: Path) -> str:
    found = shutil.which("sam", path=f"{folder / _SAM}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise ConfigurationError("There is no sam: `make build` of a project installs it.")
    return found


def _refusal(output: str) -> str:
    """Return why SAM has failed, in its own words."""
    _, found, reason = output.rpartition("Error: ")
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    reason = " ".join(lines if found else lines[-1:])
    return f"sam deploy was refused: {reason} Nothing was changed."


def _listed(client: Any, stack: str) -> set[str]:
    """Return the ids of the change sets of a stack that any `sam deploy` has made."""
    if described(stack) is None:
        return set()
    pages = client.get_paginator("list_change_sets").paginate(StackName=stack)
    listed = pages.search("Summaries[]")
    return {it["ChangeSetId"] for it in listed if it["ChangeSetName"].startswith(_NAMED_BY_SAM)}


def _described(client: Any, made: set[str]) -> ChangeSet:
    changes: list[Mapping[str, Any]] = []
    describe = client.get_paginator("describe_change_set")
    for name in made:
        for page in describe.paginate(ChangeSetName=name, IncludePropertyValues=True):
            changes += [it["ResourceChange"] for it in page.get("Changes", ())]
    return ChangeSet(changes=changes)


def _delete(client: Any, made: set[str]) -> None:
    """Delete change sets."""
    from botocore.exceptions import WaiterError

    for name in made:
        with suppress(WaiterError):  # it has failed, as one without changes does
            client.get_waiter("change_set_create_complete").wait(
                ChangeSetName=name, WaiterConfig=_PATIENCE
            )
        client.delete_change_set(ChangeSetName=name)


def _delete_stack(client: Any, stack: str) -> None:
    """Delete a stack that CloudFormation has made for a change set."""
    found = described(stack)
    if found and found["StackStatus"] == "REVIEW_IN_PROGRESS":
        client.delete_stack(StackName=found["StackId"])
        client.get_waiter("stack_delete_complete").wait(
            StackName=found["StackId"], WaiterConfig=_PATIENCE
        )

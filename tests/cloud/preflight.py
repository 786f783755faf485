"""`preflight` on the emulator: the change sets are SAM's and CloudFormation's own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import ClientError

from a2a_serverless_tools.cloud.emulator import REGION
from a2a_serverless_tools.cloud.stack import PhaseError, run
from tests.cloud.deployment import ROOT, SAM, Deployment
from tests.live.subject import Subject, require

COMMAND_S: Final = 240.0
REFUSED: Final = {
    "Wroker=external": "There is no parameter Wroker",
    "WorkerConcurrency=1": "WorkerConcurrency",
    "Rollout=canary": "Rollout canary or linear needs AlarmTopicArn",
}
"""Parameters, and what is said of them."""
SETTINGS: Final = """\
version = 0.1

[default.global.parameters]
stack_name = "{name}"
region = "{region}"

[default.deploy.parameters]
template_file = "{template}"
resolve_s3 = true
capabilities = "CAPABILITY_IAM"
confirm_changeset = {confirms}
"""


async def preflight(deployment: Deployment, subject: Subject) -> None:
    """Ask it of the stack as it is, of edits that lose data, and of a new stack."""
    before = await _change_sets(deployment, deployment.name)
    said = await _preflight(deployment)
    require("keeps its table, bucket, queues and secrets" in said, f"of the stack as it is: {said}")
    for argument, words in REFUSED.items():
        said = await _preflight(deployment, argument)
        require(words in said, f"of {argument}: {said}")
    document = json.loads(deployment.template.read_text(encoding="utf-8"))
    document["Resources"]["TaskTable"]["Properties"]["KeySchema"].pop()
    del document["Resources"]["UndecodableQueue"]["Properties"]["MessageRetentionPeriod"]
    document["Resources"]["PushQueue"]["Properties"]["QueueName"] = "jobs.fifo"
    said = await _preflight(deployment, document=document)
    for name, property_ in {"TaskTable": "KeySchema", "PushQueue": "QueueName"}.items():
        words = f"replace {name} by a new one without its content, as {property_} would be another"
        require(words in said, f"of another {property_}: {said}")
    require("UndecodableQueue" not in said, f"of a property that may change: {said}")
    after = await _change_sets(deployment, deployment.name)
    require(before == after, f"change sets remain: {after}")
    new = f"new-{subject.run}"
    said = await _preflight(deployment, "--stack", new)
    require(f"no stack {new} in {REGION} yet, so it is new" in said, f"of a new stack: {said}")
    require(await _change_sets(deployment, new) is None, "the stack of a change set remains")


async def _preflight(
    deployment: Deployment, *arguments: str, document: Mapping[str, Any] | None = None
) -> str:
    """Return what the command says, in a project whose build is the emulator's template."""
    folder = deployment.build / "project"
    folder.mkdir(exist_ok=True)
    (folder / "template.yaml").write_bytes((ROOT / "template.yaml").read_bytes())
    template = deployment.template
    if document is not None:  # beside the other, by which the functions' code is found
        template = template.with_name("edited.json")
        template.write_text(json.dumps(document), encoding="utf-8")
    (folder / "samconfig.toml").write_text(
        SETTINGS.format(name=deployment.name, region=REGION, template=template, confirms="true"),
        encoding="utf-8",
    )
    command = [str(ROOT / ".venv" / "bin" / "a2a-serverless"), "preflight", *arguments]
    environment = {**os.environ, **deployment.emulator.environment(), "SAM_CLI_TELEMETRY": "0"}
    environment["PATH"] = f"{Path(SAM).parent}{os.pathsep}{environment['PATH']}"
    try:
        return await run(command, environment, within_s=COMMAND_S, folder=folder)
    except PhaseError as error:
        return str(error)


async def _change_sets(deployment: Deployment, stack: str) -> set[str] | None:
    """Return the ids of a stack's change sets; None: there is no stack."""
    try:
        found = await deployment.account.call("cloudformation", "list_change_sets", StackName=stack)
        await deployment.account.call("cloudformation", "describe_stacks", StackName=stack)
    except ClientError:
        return None
    return {it["ChangeSetId"] for it in found["Summaries"]}

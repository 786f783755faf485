"""`preflight`, whose change sets are SAM's and CloudFormation's own, and `sam deploy --guided`."""

import asyncio
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import ClientError

from a2a_serverless_tools.cloud import template
from a2a_serverless_tools.cloud.emulator import REGION
from a2a_serverless_tools.cloud.stack import DEPLOY_S, PhaseError, run
from tests.cloud.deployment import PROGRAM, SAM, Deployment
from tests.cloud.own import wrong_remains
from tests.live.subject import Subject, require

COMMAND_S: Final = 240.0
REFUSED: Final = {
    "Wroker=external": "There is no parameter Wroker",
    "WorkerConcurrency=1": "WorkerConcurrency",
    "Rollout=canary": "Rollout canary or linear needs AlarmTopicArn",
}
"""Parameters, and what is said of them."""


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
    template = deployment.template
    if document is not None:  # beside the other, by which the functions' code is found
        template = template.with_name("edited.json")
        template.write_text(json.dumps(document), encoding="utf-8")
    folder = deployment.project("project", template, confirms=True)
    command, environment = [PROGRAM, "preflight", *arguments], deployment.environment(SAM.parent)
    try:
        return await run([*map(str, command)], environment, within_s=COMMAND_S, folder=folder)
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


PROMPT: Final = re.compile(r"([^\n\r]+?)(?: \[[^\n\r]*\])?: ?$")
COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TWICE: Final = 2


async def guided(deployment: Deployment, subject: Subject) -> None:
    """Deploy a stack of its own with all defaults, press Enter at each prompt, and delete it."""
    name = f"guided-{subject.run}"
    folder = deployment.door.folder / name
    await asyncio.to_thread(folder.mkdir)
    # Beside the other template, by which the functions' code is found.
    built = deployment.build / "guided.json"
    template.write(deployment.build / "template.yaml", built, {})
    command = [str(SAM), "deploy", "--guided", "--template-file", str(built)]
    command += ["--stack-name", name, "--resolve-s3"]
    asked = await asyncio.to_thread(_entered, command, folder, deployment.environment())
    other = replace(deployment, name=name, made={})
    stack = await other.stack()
    other.made.update(stack.resources)
    parameters = sum(prompt.startswith("Parameter ") for prompt in asked)
    require(parameters == len(stack.parameters), f"{parameters} of {len(stack.parameters)} asked")
    wrong = wrong_remains(await other.delete(deployment.made.values()))
    require(not wrong, f"of {name}: {'; '.join(wrong)}")


def _entered(command: list[str], folder: Path, environment: dict[str, str]) -> Counter[str]:
    """Run a command in a terminal, and press Enter at each prompt; return the prompts.

    Raises:
        PhaseError: a prompt came again, the command failed, or it did not end in time.
    """
    terminal, side = pty.openpty()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=side, stdout=side, stderr=side, process_group=0
    )
    os.close(side)
    asked, said, until = Counter[str](), "", time.monotonic() + DEPLOY_S
    try:
        while time.monotonic() < until and (more := _read(terminal)) is not None:
            said = (said + COLOURS.sub("", more))[-20_000:]
            if more and (found := PROMPT.search(said)):
                prompt = found[1].strip()
                asked[prompt] += 1
                if asked[prompt] == TWICE:
                    raise PhaseError(f"sam deploy --guided asks again: {prompt}")
                os.write(terminal, b"\r")
                said += "\n"
        if (code := process.wait(max(1, until - time.monotonic()))) != 0:
            raise PhaseError(f"sam deploy --guided ended with {code}: {said[-1500:]}")
    except subprocess.TimeoutExpired as error:
        raise PhaseError(f"sam deploy --guided did not end: {said[-1500:]}") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(terminal)
    return asked


def _read(terminal: int) -> str | None:
    """Return what a terminal shows, empty where nothing comes; None: the program has ended."""
    if not select.select([terminal], [], [], 1.0)[0]:
        return ""
    try:
        return os.read(terminal, 65_536).decode(errors="replace") or None
    except OSError:
        return None

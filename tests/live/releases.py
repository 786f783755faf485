"""Versions behind the functions' aliases: swapped by hand, and rolled out by CodeDeploy."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Final

from tests.live.account import Account
from tests.live.findings import Check, Figures, NotPossibleError, require
from tests.live.stack import Stack
from tests.live.streams import arrivals, steps_in
from tests.live.subject import Subject, artifact_text, ordered, state

ALIAS: Final = "live"
BROKEN: Final = "LIVE_BROKEN"
"""The variable with which the live agent cannot be imported."""
STEPS: Final = 40
GAP_S: Final = 1.0
"""A turn of 40 s: the stack's worker has 60."""
NAP_S: Final = 60
"""The shortest sleep for which a turn leaves its worker."""
ROLLED_S: Final = 1200.0
"""A rollout takes 15 or 30 minutes; the alarm of an agent that cannot be loaded rings before."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version that was published beside the one behind the alias."""

    account: Account
    function: str
    former: str
    number: str

    async def take(self) -> None:
        """Put it behind the alias."""
        await _point(self.account, self.function, self.number)

    async def give_back(self) -> None:
        """Put the former version behind the alias again."""
        await _point(self.account, self.function, self.former)


async def _point(account: Account, function: str, number: str) -> None:
    await account.call(
        "lambda", "update_alias", FunctionName=function, Name=ALIAS, FunctionVersion=number
    )


async def published(
    subject: Subject, account: Account, stack: Stack, logical: str, **variables: str
) -> Version:
    """Publish a version of a function with more variables; at the end all is as it was."""
    call, function = account.call, stack.resources[logical]
    alias = await call("lambda", "get_alias", FunctionName=function, Name=ALIAS)
    found = await call("lambda", "get_function_configuration", FunctionName=function)
    before: dict[str, str] = found["Environment"]["Variables"]
    made: list[str] = []

    async def give(**more: str) -> None:
        await call(
            "lambda",
            "update_function_configuration",
            FunctionName=function,
            Environment={"Variables": {**before, **more}},
        )

    async def undo() -> None:
        await _point(account, function, alias["FunctionVersion"])
        for number in made:
            await call("lambda", "delete_function", FunctionName=function, Qualifier=number)
        await give()

    async def updated() -> bool | None:
        now = await call("lambda", "get_function_configuration", FunctionName=function)
        return now.get("LastUpdateStatus") == "Successful" or None

    async def active() -> bool | None:
        now = await call(
            "lambda", "get_function_configuration", FunctionName=function, Qualifier=made[0]
        )
        return now.get("State") == "Active" or None

    subject.made.note("alias, version and variables of", function, undo)
    await give(**variables)
    await subject.until(f"the change of {logical}", updated, within_s=120, every_s=1)
    made.append((await call("lambda", "publish_version", FunctionName=function))["Version"])
    await subject.until(f"the version of {logical}", active, within_s=120, every_s=1)
    return Version(
        account=account, function=function, former=alias["FunctionVersion"], number=made[0]
    )


async def swapped(subject: Subject) -> Figures:
    """Put a version behind the worker's alias whose agent cannot be imported, and the former back.

    Before it there are a turn that runs, one that is streamed, one that sleeps without a worker and
    one that waits for its client. New turns fail on the bad version until the former one is back.
    """
    account, stack = _changeable(subject)
    bad = await published(subject, account, stack, "WorkerFunction", **{BROKEN: "1"})
    asked = await subject.begin("ask")
    await _until_state(subject, asked, "INPUT_REQUIRED")
    asleep = await subject.begin("nap", seconds=NAP_S)
    await subject.working(asleep)
    running = await subject.begin("steps", count=STEPS, gap_s=GAP_S)
    await subject.working(running)
    streaming = asyncio.ensure_future(_streamed(subject))
    try:
        told = await _told(subject, running)
        await bad.take()
        failed = await _failed(subject)
        late = await subject.begin("say")  # its first attempt is the bad version's, or the next
        flying = state(await subject.task(running)) == "WORKING"
        await bad.give_back()
        ended = await subject.ended(running, within_s=100)
        seen = await streaming
    finally:
        streaming.cancel()
    said = ordered("say")
    context = (await subject.task(asked))["contextId"]
    message = {**said, "taskId": asked, "contextId": context}
    await subject.agent.call("SendMessage", {"message": message})
    ends = {
        name: state(await subject.ended(task_id, within_s=240, every_s=1))
        for name, task_id in (("late", late), ("asked", asked), ("asleep", asleep))
    }
    figures = {"failed on it": failed, "in flight at the swap back": flying, **ends}
    lines = [int(line.split()[0]) for line in artifact_text(ended).splitlines()]
    whole = [*range(STEPS)]
    require(
        state(ended) == "COMPLETED" and lines == whole,
        f"the turn that ran ended as {state(ended)} with the steps {lines}",
        **figures,
    )
    require(artifact_text(ended).startswith(told), "the turn that ran began again", **figures)
    require(flying, "the turn that ran had ended before the swap back: nothing is shown", **figures)
    require(seen == whole, f"the steps of the stream are {seen}", **figures)
    wrong = [name for name, end in ends.items() if end != "COMPLETED"]
    require(not wrong, f"turns that did not complete: {wrong}", **figures)
    return figures


async def rolled_back(subject: Subject) -> Figures:
    """Have CodeDeploy roll out that version, and wait until an alarm has rolled it back."""
    account, stack = _changeable(subject)
    if stack.parameters.get("Rollout", "all-at-once") == "all-at-once":
        raise NotPossibleError("needs a stack with Rollout=canary or linear")
    began = subject.clock.monotonic()
    bad = await published(subject, account, stack, "WorkerFunction", **{BROKEN: "1"})
    properties = {
        "Name": bad.function,
        "Alias": ALIAS,
        "CurrentVersion": bad.former,
        "TargetVersion": bad.number,
    }
    resource = {"worker": {"Type": "AWS::Lambda::Function", "Properties": properties}}
    content = json.dumps({"version": 0.0, "Resources": [resource]})
    answer = await account.call(
        "codedeploy",
        "create_deployment",
        applicationName=stack.resources["ServerlessDeploymentApplication"],
        deploymentGroupName=stack.resources["WorkerFunctionDeploymentGroup"],
        revision={"revisionType": "AppSpecContent", "appSpecContent": {"content": content}},
    )
    named = {"deploymentId": answer["deploymentId"]}

    async def stop() -> None:
        await account.call("codedeploy", "stop_deployment", **named, autoRollbackEnabled=True)

    subject.made.note("deployment", answer["deploymentId"], stop)
    ids: list[str] = []

    async def over() -> str | None:
        ids.append(await subject.begin("say"))
        found = await account.call("codedeploy", "get_deployment", **named)
        status = str(found["deploymentInfo"]["status"])
        return status if status in {"Succeeded", "Failed", "Stopped"} else None

    async def back() -> bool | None:
        alias = await account.call("lambda", "get_alias", FunctionName=bad.function, Name=ALIAS)
        weights = alias.get("RoutingConfig", {}).get("AdditionalVersionWeights")
        return (alias["FunctionVersion"] == bad.former and not weights) or None

    status = await subject.until("the rollback", over, within_s=ROLLED_S, every_s=1)
    rolled_s = round(subject.clock.monotonic() - began)
    require(status != "Succeeded", "the bad version was rolled out: no alarm has stopped it")
    await subject.until("the former version behind the alias", back, within_s=120, every_s=1)
    ends = [state(await subject.ended(task_id, within_s=120)) for task_id in ids]
    after = state(await subject.ended(await subject.begin("say"), within_s=60))
    figures = {
        "rolled back after s": rolled_s,
        "turns meanwhile": len(ends),
        "failed of them": ends.count("FAILED"),
    }
    require(after == "COMPLETED", f"after the rollback a task ended as {after}", **figures)
    return figures


def _changeable(subject: Subject) -> tuple[Account, Stack]:
    account, stack = subject.on_aws()
    if not subject.consent.changes:
        raise NotPossibleError("needs --allow-changes: it puts a bad version behind the alias")
    return account, stack


async def _told(subject: Subject, task_id: str) -> str:
    """Wait for the first steps of a turn."""

    async def look() -> str | None:
        return artifact_text(await subject.task(task_id)) or None

    return await subject.until("the first step", look, within_s=30, every_s=0.5)


async def _until_state(subject: Subject, task_id: str, wanted: str) -> None:
    async def look() -> bool | None:
        return state(await subject.task(task_id)) == wanted or None

    await subject.until(f"{wanted} of {task_id}", look, within_s=60, every_s=0.5)


async def _streamed(subject: Subject) -> list[int]:
    """Read a streamed turn to its end; return its steps."""
    came = [it async for it in arrivals(subject, "/message:stream", count=STEPS, gap_s=GAP_S)]
    return [number for each in came for number, _ in steps_in(each)]


async def _failed(subject: Subject) -> int:
    """Send turns until one has failed, as the bad version is behind the alias; return how many."""
    sent = 0

    async def look() -> int | None:
        nonlocal sent
        sent += 1
        task = await subject.ended(await subject.begin("say"), within_s=60)
        return sent if state(task) == "FAILED" else None

    return await subject.until("a turn on the bad version", look, within_s=60, every_s=1)


CHECKS = (
    Check("bad-version", "turns in flight outlive a bad version and its way back", swapped),
    Check("rollout", "an alarm rolls a bad version back that CodeDeploy rolls out", rolled_back),
)

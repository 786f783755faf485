"""Versions behind the functions' aliases: swapped by hand, and rolled out by CodeDeploy."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.live.account import Account
from tests.live.findings import Check, Figures, NotPossibleError, require
from tests.live.stack import Stack
from tests.live.streams import Arrival, arrivals, resumed, steps_in
from tests.live.subject import Subject, artifact_text, ordered, state
from tests.support.a2a_calls import JSONRPC, Agent

ALIAS: Final = "live"
BROKEN: Final = "LIVE_BROKEN"
"""The variable with which the live agent cannot be imported."""
STEPS: Final = 40
GAP_S: Final = 1.0
"""A turn of 40 s: the stack's worker has 60."""
NAP_S: Final = 60
"""The shortest sleep for which a turn leaves its worker."""
RUNG_S: Final = 600.0
"""How long CloudWatch may take to ring for what was logged."""
ROLLED_S: Final = 1200.0
"""A rollout takes 15 or 30 minutes; the alarm of an agent that cannot be loaded rings before."""


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Versions of a function with other variables, beside the one behind its alias."""

    subject: Subject
    account: Account
    function: str
    former: str
    variables: Mapping[str, str]
    """Those of the function as it was."""
    made: list[str] = field(default_factory=list)

    async def publish(self, **more: str) -> str:
        """Publish one with more variables; return its number."""
        await self._give(**more)
        await self._until_updated()
        found = await self.account.call("lambda", "publish_version", FunctionName=self.function)
        self.made.append(str(found["Version"]))
        await self.subject.until(
            f"the version of {self.function}", self._active, within_s=120, every_s=1
        )
        return self.made[-1]

    async def point(self, number: str) -> None:
        """Put a version behind the alias."""
        await self.account.call(
            "lambda",
            "update_alias",
            FunctionName=self.function,
            Name=ALIAS,
            FunctionVersion=number,
            RoutingConfig={"AdditionalVersionWeights": {}},  # else a rollout's weights stay
        )
        await self.subject.settle()

    async def take(self, **more: str) -> None:
        """Publish a version with more variables, and put it behind the alias."""
        await self.point(await self.publish(**more))

    async def undo(self) -> None:
        """Put the former version behind the alias; make the function what it was."""
        await self.point(self.former)
        for number in {*self.made} - {self.former}:
            await self.account.call(
                "lambda", "delete_function", FunctionName=self.function, Qualifier=number
            )
        await self._give()
        # Lambda refuses the next change of the function until this one is done.
        await self._until_updated()

    async def _give(self, **more: str) -> None:
        await self.account.call(
            "lambda",
            "update_function_configuration",
            FunctionName=self.function,
            Environment={"Variables": {**self.variables, **more}},
        )

    async def _until_updated(self) -> None:
        async def look() -> bool | None:
            return (await self._now()).get("LastUpdateStatus") == "Successful" or None

        await self.subject.until(f"the change of {self.function}", look, within_s=120, every_s=1)

    async def _active(self) -> bool | None:
        return (await self._now(Qualifier=self.made[-1])).get("State") == "Active" or None

    async def _now(self, **qualifier: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.account.call(
            "lambda", "get_function_configuration", FunctionName=self.function, **qualifier
        )
        return found


async def versions_of(subject: Subject, logical: str, *, is_undone: bool = True) -> Versions:
    """Return what publishes versions of a function; note how it gets back what is now if asked."""
    account, stack = subject.on_aws()
    named = {"FunctionName": stack.resources[logical]}
    alias = await account.call("lambda", "get_alias", Name=ALIAS, **named)
    found = await account.call("lambda", "get_function_configuration", **named)
    versions = Versions(
        subject=subject,
        account=account,
        function=stack.resources[logical],
        former=alias["FunctionVersion"],
        variables=found["Environment"]["Variables"],
    )
    if is_undone:
        was = f"{versions.function}, whose alias {ALIAS} had version {versions.former}"
        subject.made.note("versions and variables of", was, versions.undo)
    return versions


async def swapped(subject: Subject) -> Figures:
    """Put a version behind the worker's alias whose agent cannot be imported, and the former back.

    Before it there are a turn that runs, one that is streamed, one that sleeps without a worker and
    one that waits for its client. New turns fail on the bad version until the former one is back.
    """
    worker = await versions_of(subject, "WorkerFunction")
    bad = await worker.publish(**{BROKEN: "1"})
    asked = await subject.begin("ask")
    await _until_state(subject, asked, "INPUT_REQUIRED")
    asleep = await subject.begin("nap", seconds=NAP_S)
    await subject.working(asleep)
    running = await subject.begin("steps", count=STEPS, gap_s=GAP_S)
    await subject.working(running)
    seen = list[Arrival]()
    streaming = asyncio.ensure_future(_read(subject, seen))

    async def streamed() -> bool | None:
        return bool(_steps(seen)) or streaming.done() or None

    try:
        told = await _told(subject, running)
        await subject.until("the first step of the stream", streamed, within_s=60, every_s=0.1)
        await worker.point(bad)
        failed = await _failed(subject)
        late = await subject.begin("say")  # its first attempt is the bad version's, or the next
        flying = state(await subject.task(running)) == "WORKING"
        await worker.point(worker.former)
        ended = await subject.ended(running, within_s=100)
        await streaming
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
    require(_steps(seen) == whole, f"the steps of the stream are {_steps(seen)}", **figures)
    wrong = [name for name, end in ends.items() if end != "COMPLETED"]
    require(not wrong, f"turns that did not complete: {wrong}", **figures)
    return figures


async def rung(subject: Subject) -> Figures:
    """Have the agent of a bad version fail its tasks, and see which alarms ring.

    That of an agent that cannot be loaded does. That of failing tasks does not, for one caller.
    """
    account, stack = _watched(subject)
    worker = await versions_of(subject, "WorkerFunction")
    await worker.point(await worker.publish(**{BROKEN: "1"}))
    failed = await _failed(subject)
    await worker.point(worker.former)

    async def rang(logical: str) -> bool:
        answer = await account.call(
            "cloudwatch",
            "describe_alarm_history",
            AlarmName=stack.resources[logical],
            HistoryItemType="StateUpdate",
            StartDate=dt.datetime.fromtimestamp(subject.began_ms / 1000, dt.UTC),
        )
        changes = [json.loads(it["HistoryData"]) for it in answer["AlarmHistoryItems"]]
        return any(it["newState"]["stateValue"] == "ALARM" for it in changes)

    async def look() -> bool | None:
        return await rang("AgentNotLoadedAlarm") or None

    began = subject.clock.monotonic()
    await subject.until("AgentNotLoadedAlarm", look, within_s=RUNG_S, every_s=15)
    rung_s = round(subject.clock.monotonic() - began)
    names = [it for name, it in stack.resources.items() if name.endswith("Alarm")]
    alarms = await account.call("cloudwatch", "describe_alarms", AlarmNames=names)
    blind = [
        it["AlarmName"] for it in alarms["MetricAlarms"] if it["StateValue"] == "INSUFFICIENT_DATA"
    ]
    figures = {"failed on it": failed, "rang after s": rung_s, "without data": blind}
    require(not await rang("FailedTasksAlarm"), "one caller rang FailedTasksAlarm", **figures)
    return figures


async def streams_swapped(subject: Subject) -> Figures:
    """Put another version of StreamFunction behind its alias while two streams are open.

    One of them is read on, from the version that it began on. The other is cut as soon as requests
    reach the new version, which takes no message of two parts, and goes on there after its last
    event.
    """
    function = await versions_of(subject, "StreamFunction")
    newer = await function.publish(A2A_MAX_PARTS="1")
    seen = list[Arrival](), list[Arrival]()
    reading = [asyncio.ensure_future(_read(subject, each)) for each in seen]

    async def told() -> bool | None:
        return all(len(each) > 2 for each in seen) or None

    async def is_newer() -> bool | None:
        with contextlib.suppress(httpx.HTTPError):  # of a process that was just ended
            params = {"message": ordered("say", "x"), "configuration": {"returnImmediately": True}}
            answer = await Agent(subject.http, JSONRPC).call("SendMessage", params)
            return "task" not in answer.result or None
        return None

    try:
        await subject.until("the first steps", told, within_s=30, every_s=0.1)
        await function.point(newer)
        await subject.until("the new version", is_newer, within_s=30, every_s=0.5)
        ended = [each.done() for each in reading]
        require(not any(ended), "a stream had ended before the new version answered", ended=ended)
        reading[1].cancel()
        before = [*seen[1]]
        task_id = json.loads(before[0].data)["task"]["id"]
        after = [it async for it in resumed(subject, task_id, before[-1].id)]
        await reading[0]
    finally:
        for each in reading:
            each.cancel()
    # What a stream begins with is the task as its client has it: the rest are its own steps.
    parts = [*_steps(before), *_steps(it for it in after if "task" not in json.loads(it.data))]
    whole = [*range(STEPS)]
    figures = {"steps before the cut": len(_steps(before)), "after it": len(_steps(after))}
    require(parts == whole, f"over the cut the steps are {parts}", **figures)
    require(_steps(seen[0]) == whole, f"the steps of the open stream are {_steps(seen[0])}")
    end = state(await subject.task(task_id))
    require(end == "COMPLETED", f"the task of the cut stream is {end}")
    return figures


async def _read(subject: Subject, seen: list[Arrival]) -> None:
    async for each in arrivals(subject, "/message:stream", count=STEPS, gap_s=GAP_S):
        seen += [each]  # while it comes: others look at it


def _steps(seen: Iterable[Arrival]) -> list[int]:
    return [number for each in seen for number, _ in steps_in(each)]


async def rolled_back(subject: Subject) -> Figures:
    """Have CodeDeploy roll out that version, and wait until an alarm has rolled it back.

    It begins when no alarm of the rollout rings: one that an earlier check has made ring would stop
    it at once, whatever the version does.
    """
    account, stack = subject.on_aws()
    group = {
        "applicationName": stack.resources["ServerlessDeploymentApplication"],
        "deploymentGroupName": stack.resources["WorkerFunctionDeploymentGroup"],
    }
    found = await account.call("codedeploy", "get_deployment_group", **group)
    watched = found["deploymentGroupInfo"].get("alarmConfiguration", {}).get("alarms", ())
    names = [alarm["name"] for alarm in watched]
    require(names, "the rollout has no alarm that could stop it")

    async def quiet() -> bool | None:
        answer = await account.call("cloudwatch", "describe_alarms", AlarmNames=names)
        states = [alarm["StateValue"] for alarm in answer["MetricAlarms"]]
        return "ALARM" not in states or None

    await subject.until("the quiet of its alarms", quiet, within_s=ROLLED_S, every_s=15)
    began = subject.clock.monotonic()
    worker = await versions_of(subject, "WorkerFunction")
    bad = await worker.publish(**{BROKEN: "1"})
    properties = {
        "Name": worker.function,
        "Alias": ALIAS,
        "CurrentVersion": worker.former,
        "TargetVersion": bad,
    }
    resource = {"worker": {"Type": "AWS::Lambda::Function", "Properties": properties}}
    content = json.dumps({"version": 0.0, "Resources": [resource]})
    answer = await account.call(
        "codedeploy",
        "create_deployment",
        **group,
        revision={"revisionType": "AppSpecContent", "appSpecContent": {"content": content}},
    )
    named = {"deploymentId": answer["deploymentId"]}

    async def ended() -> dict[str, Any] | None:
        found = await account.call("codedeploy", "get_deployment", **named)
        info: dict[str, Any] = found["deploymentInfo"]
        return info if info["status"] in {"Succeeded", "Failed", "Stopped"} else None

    async def stop() -> None:
        if await ended() is None:  # CodeDeploy refuses to stop one that has ended
            await account.call("codedeploy", "stop_deployment", **named, autoRollbackEnabled=True)
            await subject.until("the end of the deployment", ended, within_s=120, every_s=1)

    subject.made.note("deployment", answer["deploymentId"], stop)
    ids: list[str] = []

    async def over() -> dict[str, Any] | None:
        ids.append(await subject.begin("say"))
        return await ended()

    async def back() -> bool | None:
        alias = await account.call("lambda", "get_alias", FunctionName=worker.function, Name=ALIAS)
        weights = alias.get("RoutingConfig", {}).get("AdditionalVersionWeights")
        return (alias["FunctionVersion"] == worker.former and not weights) or None

    end = await subject.until("the rollback", over, within_s=ROLLED_S, every_s=1)
    rolled_s = round(subject.clock.monotonic() - began)
    require(end["status"] != "Succeeded", "the bad version was rolled out: no alarm has stopped it")
    why = end.get("errorInformation", {})
    require(
        why.get("code") == "ALARM_ACTIVE",
        f"no alarm has stopped it: it {end['status']}, {why.get('code')}: {why.get('message')}",
    )
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


def _changeable(subject: Subject) -> Stack:
    return subject.changeable("it puts a bad version behind the alias")[1]


def _watched(subject: Subject) -> tuple[Account, Stack]:
    account, stack = subject.behind_gateway()
    _changeable(subject)
    if "A2A_ALARM_CALLERS=2" not in stack.parameters.get("Settings", ""):
        raise NotPossibleError("needs A2A_ALARM_CALLERS=2 in Settings: one caller rings the alarms")
    return account, stack


def _staged(subject: Subject) -> None:
    if _changeable(subject).parameters.get("Rollout", "all-at-once") == "all-at-once":
        raise NotPossibleError("needs a stack with Rollout=canary or linear")


async def _told(subject: Subject, task_id: str) -> str:
    """Wait for the first steps of a turn."""

    async def look() -> str | None:
        return artifact_text(await subject.task(task_id)) or None

    return await subject.until("the first step", look, within_s=30, every_s=0.5)


async def _until_state(subject: Subject, task_id: str, wanted: str) -> None:
    async def look() -> bool | None:
        return state(await subject.task(task_id)) == wanted or None

    await subject.until(f"{wanted} of {task_id}", look, within_s=60, every_s=0.5)


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
    Check(
        "alarms",
        "the alarm of an agent that cannot be loaded rings, and one caller rings none of callers",
        rung,
        _watched,
        seconds=240,
    ),
    Check(
        "bad-version",
        "turns in flight outlive a bad version and its way back",
        swapped,
        _changeable,
        seconds=120,
    ),
    Check(
        "stream-release",
        "an open stream outlives a release of its function, and a cut one goes on at the new one",
        streams_swapped,
        lambda subject: subject.changeable("it puts another version behind the alias"),
        seconds=60,
    ),
    Check(
        "rollout",
        "an alarm rolls a bad version back that CodeDeploy rolls out",
        rolled_back,
        _staged,
        seconds=900,
    ),
)

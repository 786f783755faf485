"""The forms of a stack: each passes on a right stack, fails on a broken one, and is undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest
from samtranslator.yaml_helper import yaml_parse

from tests.live import forms
from tests.live.findings import Figures, Outcome
from tests.live.forms import FORMS, Form, Ground, Run, Updates, in_form
from tests.live.runner import Findings, run
from tests.live.subject import Consent, Subject
from tests.unit.live.scripted_agent import ScriptedAgent, completed
from tests.unit.live.scripted_aws import ENDPOINT, ScriptedAws, listed

Open = Callable[..., Any]

SHARED, EXTERNAL, _ = FORMS
OUTPUTS = {"Endpoint": ENDPOINT, "Table": "table", "Queue": "queue", "UndecodableQueue": "odd"}
PARAMETERS = {
    "Auth": "api-key",
    "MaxAttempts": "3",
    "ThrottleBurst": "40",
    "TurnTimeout": "",
    "Worker": "lambda",
    "WorkerConcurrency": "10",
    "WorkerTimeout": "60",
    "WorkerTurns": "1",
}


class CloudFormation:
    """A stack that takes parameters in its time."""

    def __init__(self, aws: ScriptedAws) -> None:
        self.parameters = dict(PARAMETERS)
        self.asked: list[dict[str, str]] = []
        """The changed parameters of each update."""
        self._statuses: list[str] = []
        aws.answers |= {
            "cloudformation.DescribeStacks": self._described,
            "cloudformation.ListStackResources": listed(),
            "cloudformation.UpdateStack": self._updated,
        }

    def _described(self, _: dict[str, Any]) -> dict[str, Any]:
        status = self._statuses[0] if self._statuses else "CREATE_COMPLETE"
        del self._statuses[: len(self._statuses) > 1]
        pairs = self.parameters.items()
        stack = {
            "StackName": "live",
            "StackStatus": status,
            "Outputs": [{"OutputKey": k, "OutputValue": v} for k, v in OUTPUTS.items()],
            "Parameters": [{"ParameterKey": k, "ParameterValue": v} for k, v in pairs],
        }
        return {"Stacks": [stack]}

    def _updated(self, params: dict[str, Any]) -> dict[str, Any]:
        assert params["UsePreviousTemplate"]
        given = {one["ParameterKey"]: one.get("ParameterValue") for one in params["Parameters"]}
        assert given.keys() == self.parameters.keys()
        changed = {name: value for name, value in given.items() if value is not None}
        self.asked.append(changed)
        self.parameters |= changed
        self._statuses = ["UPDATE_IN_PROGRESS", "UPDATE_COMPLETE"]
        return {"StackId": "arn"}


@pytest.fixture
def stack(aws: ScriptedAws) -> CloudFormation:
    return CloudFormation(aws)


@pytest.fixture
def opened(deployed: Open) -> Open:
    """Open the subject of a form, with its agent."""

    async def make(agent: Any, **parameters: str) -> Subject:
        given = {**PARAMETERS, **parameters}
        subject: Subject = await deployed(agent, consent=Consent(changes=True), **given)
        return subject

    return make


def alone(form: Form) -> Form:
    """The form with the check of its own name only: the others have tests of their own."""
    return replace(form, checks=(form.name,))


async def taken(subject: Subject, form: Form, ground: Ground | None = None) -> Findings:
    """What a form and its check find."""
    found = Findings()
    check = in_form(alone(form), ground or Updates(), lambda _: None, found)
    return await run(subject, [check], lambda _: None, found)


def outcomes(found: Findings) -> dict[str, Outcome]:
    return {one.name: one.outcome for one in found.findings}


class Sharing(ScriptedAgent):
    """An agent of which so many turns run at once; one process after the other ends them.

    A turn runs for two looks of its client at it.
    """

    def __init__(self, *processes: str) -> None:
        super().__init__(lambda it: WAITING if it["do"] == "steps" else completed(""))
        self._names: Iterator[str] = cycle(processes)
        self._looks: dict[str, int] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        task = self.tasks.get(request.url.path.rpartition("/")[2], {})
        running = [it for it in self.tasks.values() if it["status"]["state"] in OPEN]
        if any(task is it for it in running[: forms.TURNS]):
            looks = self._looks[task["id"]] = self._looks.get(task["id"], 0) + 1
            ended = completed("", said=next(self._names))
            task.update(ended if looks > 2 else {"status": {"state": "TASK_STATE_WORKING"}})
        return super().__call__(request)


WAITING: dict[str, Any] = {"status": {"state": "TASK_STATE_SUBMITTED"}}
OPEN = ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")


@pytest.mark.long
async def test_a_form_is_taken_and_given_back(opened: Open, stack: CloudFormation) -> None:
    """The stack has the form's parameters for its checks, no others, and then its own again."""
    found = await taken(await opened(Sharing("one", "two")), SHARED)
    assert outcomes(found) == {
        "shared-turns/shared-turns": Outcome.PASSED,
        "form shared-turns": Outcome.PASSED,
    }
    assert found.is_well
    back = {name: PARAMETERS[name] for name in SHARED.parameters}
    assert stack.asked == [SHARED.parameters, back]
    assert stack.parameters == PARAMETERS


async def test_a_run_that_ends_within_a_form(opened: Open, stack: CloudFormation) -> None:
    """A cancel ends the form's check, and the stack is updated back before the run ends."""
    begun = asyncio.Event()

    async def wait(_: Subject) -> Figures:
        begun.set()
        await asyncio.Event().wait()
        return {}

    async def take(form: Form, subject: Subject, ground: Any) -> Run:
        await SHARED.take(form, subject, ground)
        return wait

    subject = await opened(Sharing("one"))
    running = asyncio.ensure_future(taken(subject, replace(SHARED, take=take)))
    await begun.wait()
    running.cancel()
    found = await running
    assert found.interrupted
    assert found.remains == []
    assert stack.parameters == PARAMETERS


# -- what would run --------------------------------------------------------------------------------


def test_a_forms_checks_and_parameters_exist() -> None:
    """A form has live checks and its own, and what it changes are parameters of the template."""

    async def nothing(_: Subject) -> Figures:
        return {}

    text = (Path(__file__).parents[3] / "template.yaml").read_text(encoding="utf-8")
    known = yaml_parse(text)["Parameters"]
    for form in FORMS:
        assert [check.name for check in form.chosen(nothing)] == list(form.checks)
        assert form.name in form.checks
        for name, value in {**form.parameters, **forms.DEFAULT}.items():
            assert value in known[name].get("AllowedValues", [value])
    assert {name: str(known[name]["Default"]) for name in forms.DEFAULT} == forms.DEFAULT

"""Checks that need a stack: what each of them asks for before it does anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.live import bill
from tests.live.checks import CHECKS
from tests.live.findings import Check, Finding, Outcome
from tests.live.subject import Consent
from tests.unit.live.scripted_aws import ScriptedAws
from tests.unit.live.ways import finding

Open = Callable[..., Any]


def check(name: str) -> Check:
    return next(one for one in CHECKS if one.name == name)


def says(found: Finding, outcome: Outcome, part: str = "") -> None:
    assert found.outcome is outcome, found.says
    assert part in found.says


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("throttled", "--burst"),
        ("busy", "--allow-changes"),
        ("alarms", "--allow-changes"),
        ("bad-version", "--allow-changes"),
        ("stream-release", "--allow-changes"),
        ("rollout", "--allow-changes"),
        ("second-deploy", "--allow-changes"),
        ("auth-move", "--allow-changes"),
    ],
)
async def test_what_needs_consent(deployed: Open, aws: ScriptedAws, name: str, flag: str) -> None:
    """Without its flag a check that costs or changes something does nothing, and names the flag."""
    subject = await deployed()
    says(await finding(subject, check(name)), Outcome.NOT_POSSIBLE, f"needs {flag}")
    assert (aws.calls, subject.requests) == ([], 0)


async def test_alarms_of_one_caller_are_not_judged(deployed: Open, aws: ScriptedAws) -> None:
    """Where one caller rings them by choice nothing is changed, and the parameter is named."""
    subject = await deployed(consent=Consent(changes=True), AlarmCallers="1")
    says(await finding(subject, check("alarms")), Outcome.NOT_POSSIBLE, "AlarmCallers=2")
    assert aws.calls == []


async def test_the_counters_are_one_question(deployed: Open) -> None:
    """All counters fit into one call of CloudWatch, each with a name of its own."""
    subject = await deployed()
    queries = bill.queries(subject.stack)
    assert len({query["Label"] for query in queries}) == len(queries) < 500

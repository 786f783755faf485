from __future__ import annotations

import os

import pytest

from tests.model.explore import explore
from tests.model.guards import GUARDS, Guard
from tests.model.rules import Rules
from tests.model.scenarios import LONG, SHORT, Scenario, named_scenario

IS_LONG = os.environ.get("A2A_MODEL") == "long"
MISSED = [guard for guard in GUARDS if not guard.is_backed]
BACKED = [guard for guard in GUARDS if guard.is_backed]


def _name(of: Guard | Scenario) -> str:
    return of.name


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", [*SHORT, *(LONG if IS_LONG else ())], ids=_name)
def test_no_interleaving_breaks_a_promise(scenario: Scenario) -> None:
    """Every promise holds in every state, and from every state the task comes to rest."""
    report = explore(scenario)
    assert report.finding is None, report.finding
    assert report.states >= scenario.least


@pytest.mark.parametrize("guard", MISSED, ids=_name)
def test_a_guard_that_is_off_is_missed(guard: Guard) -> None:
    """Without the guard the explorer finds a broken promise and the steps that lead to it."""
    finding = explore(named_scenario(guard.scenario), guard.without).finding
    assert finding is not None
    assert finding.promise
    assert finding.trace


@pytest.mark.parametrize("guard", BACKED, ids=_name)
def test_a_guard_with_a_second_line_is_not_missed_alone(guard: Guard) -> None:
    """What it does is also done elsewhere; when that changes, this guard becomes a missed one."""
    assert explore(named_scenario(guard.scenario), guard.without).finding is None


def test_every_guard_changes_something() -> None:
    """A guard that is off differs from the rules as they are; each has a name of its own."""
    assert all(guard.without != Rules() for guard in GUARDS)
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, fields

import pytest

from tests.model import worlds
from tests.model.__main__ import main
from tests.model.deletion import DeletionJob, Guards
from tests.model.explore import explore
from tests.model.guards import GUARDS, Guard
from tests.model.rules import Rules
from tests.model.scenarios import LONG, SHORT, Scenario
from tests.model.search import Decision, Finding
from tests.model.worlds import Small
from tests.support import pages

IS_LONG = os.environ.get("A2A_MODEL") == "long"
ALL: list[Guard | worlds.Guard] = [*GUARDS, *worlds.GUARDS]
BY_NAME = {guard.name: guard for guard in GUARDS}


def _name(of: Decision | Scenario | Small) -> str:
    return of.name


def _changed(guard: Guard) -> dict[str, object]:
    """What a guard that is off replaces."""
    on = Rules()
    return {
        field.name: getattr(guard.without, field.name)
        for field in fields(Rules)
        if getattr(guard.without, field.name) != getattr(on, field.name)
    }


def _small_now(every: Sequence[Scenario | Small], most: int) -> list[object]:
    """Put off those that have more states."""
    return [pytest.param(one, marks=pytest.mark.long) if one.least > most else one for one in every]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "scenario", _small_now([*SHORT, *(LONG if IS_LONG else ())], 2_000), ids=_name
)
def test_no_interleaving_breaks_a_promise(scenario: Scenario) -> None:
    """Every promise holds in every state, and from every state the task comes to rest."""
    report = explore(scenario)
    assert report.finding is None, report.finding
    assert report.states >= scenario.least


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "small", _small_now([*worlds.SHORT, *(worlds.LONG if IS_LONG else ())], 400), ids=_name
)
def test_no_turn_in_line_and_no_deletion_breaks_a_promise(small: Small) -> None:
    """The same of lines, which run the project's own code, and of deletions."""
    report = small.explore()
    assert report.finding is None, report.finding
    assert report.states >= small.least


@pytest.mark.parametrize("guard", ALL if IS_LONG else ALL[::6], ids=_name)
def test_a_guard_that_is_off_is_missed(guard: Guard | worlds.Guard) -> None:
    """Without the guard the explorer finds the promise that it keeps broken, and the way there.

    That says something of the explorer, not of the project's code: `make model` tries all of them.
    """
    finding = guard.explore().finding
    assert finding is not None
    assert finding.promise == guard.breaks
    assert guard.is_found_by(finding), finding.trace


def test_every_guard_is_one_decision() -> None:
    """Each replaces one function, but for the fence: the rules and the worker both have it."""
    assert len({guard.name for guard in ALL}) == len(ALL)
    assert {guard.name for guard in GUARDS if len(_changed(guard)) > 1} == {"fence"}
    assert all(_changed(guard) for guard in GUARDS)


def test_every_guard_of_a_deletion_is_tried() -> None:
    """A guard more needs a counterexample."""
    deletions = [one.without for one in worlds.GUARDS if isinstance(one.without, DeletionJob)]
    off = [name for one in deletions for name, on in asdict(one.guards).items() if not on]
    assert sorted(off) == sorted(asdict(Guards()))


def test_the_guarantees_name_guards_that_exist() -> None:
    """The guards that `docs/understand` names are guards of the model that break a promise."""
    rows = pages.part("understand").splitlines()
    named = {
        name
        for row in rows
        if row.startswith("|") and "model: " in row
        for name in re.findall(r"`([a-z-]+)`", row.split("model: ")[1])
    }
    assert named
    assert named <= {guard.name for guard in ALL}


def test_the_page_counts_the_guards() -> None:
    """The page `explorer` has as many guards as the code."""
    page = pages.path("explorer").read_text(encoding="utf-8")
    assert f"There are {len(GUARDS)} guards of one task." in page
    rows = [row.split("|")[4] for row in page.splitlines() if re.match(r"\| [^|]* \| \d", row)]
    assert sum(int(guards.partition(",")[0]) for guards in rows) == len(ALL)


def test_a_finding_without_its_steps_does_not_count() -> None:
    """The steps that a counterexample cannot do without have to be there, in their order."""
    guard = BY_NAME["complete-parts"]
    finding = guard.explore().finding
    assert finding is not None
    backwards = Finding(promise=finding.promise, trace=finding.trace[::-1])
    assert guard.is_found_by(finding)
    assert not guard.is_found_by(backwards)
    assert not guard.is_found_by(None)


def test_the_command_prints_the_way_to_a_broken_promise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A guard is shown with what it does, every step without it, and the promise that breaks."""
    monkeypatch.setattr("sys.argv", ["tests.model", "--guard", "terminal"])
    assert main() == 0
    shown = capsys.readouterr().out
    assert "terminal: no transition leaves a terminal state." in shown
    assert "1. API: creates the task" in shown
    assert "a terminal state is left" in shown

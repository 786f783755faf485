import re
from dataclasses import replace

import pytest

from tests.model.__main__ import main
from tests.model.guards import GUARDS, Guard
from tests.model.search import Finding, Small
from tests.model.worlds import SHORT
from tests.support import pages

QUICK = 400
"""States of a world that is explored in each run."""


@pytest.mark.parametrize(
    "small",
    [
        pytest.param(one, id=one.name, marks=pytest.mark.long if one.least > QUICK else ())
        for one in SHORT
    ],
)
def test_no_interleaving_breaks_a_promise(small: Small) -> None:
    """Every promise holds in every state, and from every state the world comes to rest."""
    report = small.explore()
    assert report.finding is None, report.finding
    assert report.states >= small.least


@pytest.mark.long(one_in=18)
@pytest.mark.parametrize("guard", GUARDS, ids=[one.name for one in GUARDS])
def test_a_guard_that_is_off_is_missed(guard: Guard) -> None:
    """Without the guard the explorer finds the promise that it keeps broken, and the way there.

    That says something of the explorer, not of the project's code: few do in each run.
    """
    finding = guard.explore().finding
    assert finding is not None
    assert finding.promise == guard.breaks
    assert guard.is_found_by(finding), finding.trace


def test_a_finding_without_its_steps_does_not_count() -> None:
    """The steps that a counterexample cannot do without have to be there, in their order."""
    guard = next(guard for guard in GUARDS if len(guard.shows) > 1)
    finding = Finding(promise=guard.breaks, trace=tuple(guard.shows))
    assert guard.is_found_by(finding)
    assert not guard.is_found_by(replace(finding, trace=finding.trace[::-1]))
    assert not guard.is_found_by(None)


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
    assert named <= {guard.name for guard in GUARDS}


def test_the_page_counts_the_guards() -> None:
    """The page `explorer` has as many guards as the code."""
    page = pages.path("explorer").read_text(encoding="utf-8")
    of_one = sum(guard.is_of_one_task for guard in GUARDS)
    assert f"There are {of_one} guards of one task." in page
    rows = [row.split("|")[4] for row in page.splitlines() if re.match(r"\| [^|]* \| \d", row)]
    assert sum(int(guards.partition(",")[0]) for guards in rows) == len(GUARDS)


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

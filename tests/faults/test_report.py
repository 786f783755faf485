from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.report import Runs, check, table

CLEAN = Runs(name="all well", runs=3, recovery_s=[1.0, 3.0, 2.0])


def test_clean_rows_pass() -> None:
    """Every run reached its point, and lost, doubled and held up nothing."""
    check([CLEAN, CLEAN])


@pytest.mark.parametrize(
    "fault",
    [
        {"runs": 0},
        {"unreached": 1},
        {"lost": 1},
        {"doubled": 1},
        {"stuck": 1},
        {"notes": ["two starts of the agent"]},
    ],
    ids=str,
)
def test_one_fault_fails_the_rows(fault: dict[str, Any]) -> None:
    """A row with a fault, or without a run, fails the check; the failure shows its notes."""
    bad = Runs(name="between two", **{"runs": 3, **fault})
    assert not bad.is_clean
    with pytest.raises(AssertionError, match="between two") as failure:
        check([CLEAN, bad])
    for note in bad.notes:
        assert f"between two: {note}" in str(failure.value)


def test_a_row_travels_between_processes() -> None:
    """A row that one process records is printed unchanged by another."""
    row = Runs(name="travels", runs=2, unreached=1, stuck=1, recovery_s=[0.5], notes=["a note"])
    assert Runs.from_json(row.to_json()) == row
    header, line = table([row])
    assert header.split()[:6] == ["point", "runs", "unreached", "lost", "doubled", "stuck"]
    assert line.split() == ["travels", "2", "1", "0", "0", "1", "0.5", "0.5"]


def test_no_summary_depends_on_a_folder(pytestconfig: pytest.Config) -> None:
    """No summary is printed by a conftest.py, because only tests/conftest.py is always loaded."""
    printing = {
        Path(file)
        for implementation in pytestconfig.hook.pytest_terminal_summary.get_hookimpls()
        if (file := getattr(implementation.plugin, "__file__", None))
    }
    tests = Path(__file__).parents[1]
    assert printing >= {tests / "faults" / "report.py", tests / "artefact" / "report.py"}
    assert not {path for path in printing if path.name == "conftest.py"}

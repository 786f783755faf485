"""How the findings of the conformance kits are counted: the published figures come from it."""

from __future__ import annotations

from tests.conformance.kit import merged, summary


def test_of_several_runs_a_failure_counts_first() -> None:
    """A requirement has failed if it failed in any run; else it has passed if it did in one."""
    first = {
        "A": {"level": "MUST", "status": "PASS"},
        "B": {"level": "MUST", "status": "SKIPPED"},
        "C": {"level": "MAY", "status": "FAIL"},
        "D": {"level": "SHOULD", "status": "NOT TESTED"},
    }
    second = {name: {**one, "status": "NOT TESTED"} for name, one in first.items()}
    second["A"] = {"level": "MUST", "status": "FAIL"}
    second["B"] = {"level": "MUST", "status": "PASS"}
    found = merged(merged({}, first), second)
    assert found == {
        "A": ("MUST", "FAIL"),
        "B": ("MUST", "PASS"),
        "C": ("MAY", "FAIL"),
        "D": ("SHOULD", "NOT TESTED"),
    }
    lines = list(summary([("all", 3, 2, 1)], found))
    assert "| all | 3 | 2 | 1 |" in lines
    assert "| MUST | 2 | 1 | 1 | 0 | 0 |" in lines
    assert "FAIL: A, C" in lines

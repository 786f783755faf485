"""How the findings of the conformance kits are counted: the published figures come from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.kit import merged, summary
from tests.conformance.kit_0_3 import is_ours, reports, table


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


@pytest.mark.parametrize(
    ("said", "whose"),
    [("but get config failed\nassert False", "the kit's: it asks"), ("Failed to set", "ours: Fa")],
)
def test_each_failure_says_whose_it_is(tmp_path: Path, said: str, whose: str) -> None:
    """One that is known to be the kit's is none of ours, as long as it says the same."""
    test = "test_get_push_notification_config"
    failed = {"nodeid": f"tests/a.py::{test}", "outcome": "failed"}
    content = {
        "summary": {"passed": 2, "failed": 1, "xfailed": 1},
        "tests": [{"outcome": "passed"}, {**failed, "call": {"crash": {"message": said}}}],
    }
    (tmp_path / "mandatory_rest_results.json").write_text(json.dumps(content))
    found = reports(tmp_path)
    _, counts, line = table(found)
    assert counts == "| mandatory_rest | 2 | 1 | 1 |"
    assert line.startswith(f"FAIL mandatory_rest {test}: {whose}")
    assert is_ours(found) == whose.startswith("ours")

"""SECURITY.md names tests: they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line
    for line in (ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()
    if "`tests/" in line
]


def test_every_threat_names_a_test() -> None:
    """Every row of the threat model in SECURITY.md names a test."""
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    table = page.partition("## Threats")[2].partition("## Limits")[0]
    threats = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert [line for line in threats if line not in ROWS] == []
    assert len(threats) > 15


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:40])
def test_the_tests_exist(row: str) -> None:
    """Each file is there, and each test is in one of its row's files."""
    files = [ROOT / path for path in re.findall(r"`(tests/[\w/]+\.py)`", row)]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for name in re.findall(r"`(test_\w+)`", row):
        assert re.search(rf"def {name}\(", sources), name

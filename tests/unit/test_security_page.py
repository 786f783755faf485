"""SECURITY.md and the pages of threats name tests: they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import pages

ROOT = Path(__file__).parents[2]
BOTH = pages.text("threats") + pages.text("threats-tools")
THREATS = re.findall(r"^\| (?!attacker and aim \|).+$", BOTH, re.MULTILINE)
NAMING = [*THREATS, *re.split(r"\n\n|\n(?=[|-] )", (ROOT / "SECURITY.md").read_text("utf-8"))]


def test_every_threat_names_a_test() -> None:
    """Every row of the threat model names a test."""
    assert [threat for threat in THREATS if "`tests/" not in threat] == []
    assert len(THREATS) > 15


@pytest.mark.parametrize("text", [it for it in NAMING if "`tests/" in it], ids=lambda it: it[2:40])
def test_the_tests_exist(text: str) -> None:
    """Each file is there, and each test is in one of the files of its row or paragraph."""
    files = [ROOT / path for path in re.findall(r"`(tests/[\w/]+\.py)`", text)]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for name in re.findall(r"`(test_\w+)`", text):
        assert re.search(rf"def {name}\(", sources), name

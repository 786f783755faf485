"""The agents of the page `patterns`, each run with its framework: `make patterns`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.foreign.patterns import CHECKS, PAGE, patterns
from tests.support.required import ROOT, run_in

ENVIRONMENTS = {
    "CrewAI": "with_openai_2",
    "AutoGen": "with_openai_2",
    "AG2": "with_openai_3",
    "Agno": "with_openai_3",
    "LlamaIndex": "with_openai_2",
    "smolagents": "with_openai_3",
}
"""Folders in tests/foreign with the packages of each agent."""


@pytest.mark.foreign
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_agent_of_the_page(name: str, tmp_path: Path) -> None:
    """As it stands there it answers, streams, keeps its conversation and fails with its place."""
    environment = ENVIRONMENTS[name]
    if not (ROOT / "build/foreign" / environment).exists():
        pytest.skip(f"{name} is in an environment that is not installed: `make patterns`.")
    own = {"HOME": str(tmp_path), "CREWAI_DISABLE_TELEMETRY": "true"}
    said = run_in(environment, "tests.foreign.patterns", tmp_path, name, **own)
    assert json.loads(said.splitlines()[-1]) == [check.__name__ for check in CHECKS]


def test_the_versions_of_the_page_are_those_that_are_tried() -> None:
    """Each row of the table names the version of the lock, and each row has its agent."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\(#\w+\) \| ([\w-]+) ([\d.]+) \|", page, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(patterns()) == list(ENVIRONMENTS)
    for name, package, version in rows:
        lock = ROOT / "tests/foreign" / ENVIRONMENTS[name] / "requirements.txt"
        assert f"\n{package}=={version} " in lock.read_text(encoding="utf-8"), name

"""The adapters of frameworks whose packages are not in this environment: tests/foreign."""

from __future__ import annotations

import json

import pytest

from tests.support.required import run_in

TESTS = {"openai_agents": 17, "strands": 17, "google_adk": 20}
"""How many there are in `adapter.py` of each environment."""


@pytest.mark.foreign
@pytest.mark.parametrize("framework", TESTS)
def test_the_adapter_of_a_framework(framework: str) -> None:
    """What `tests/foreign/FRAMEWORK/adapter.py` states holds."""
    said = run_in(framework, "tests.foreign.adapters", framework)
    assert len(json.loads(said.splitlines()[-1])) == TESTS[framework]

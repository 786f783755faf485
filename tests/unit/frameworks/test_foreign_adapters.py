"""The adapters of frameworks whose packages are not in this environment: tests/foreign."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support.required import ROOT, python_of

TESTS = {"openai_agents": 17, "strands": 17, "google_adk": 20}
"""How many there are in `adapter.py` of each environment."""


@pytest.mark.foreign
@pytest.mark.parametrize("framework", TESTS)
def test_the_adapter_of_a_framework(framework: str) -> None:
    """What `tests/foreign/FRAMEWORK/adapter.py` states holds."""
    run = subprocess.run(
        [python_of(framework), "-W", "ignore", "-m", "tests.foreign.adapters", framework],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'layers/runtime'}:{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert len(json.loads(run.stdout.splitlines()[-1])) == TESTS[framework]

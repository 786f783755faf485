"""Tests in forked processes (`tests/support/forks.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(40))
def test_number(number, tmp_path):
    print("it says", number)
    if number == 5:
        os._exit(3)
    assert number != 35
"""


def test_each_test_is_run_once_and_a_dead_process_fails_its_own(tmp_path: Path) -> None:
    """All are counted once, with what they have said; what a dead process has left is run."""
    (tmp_path / "test_numbers.py").write_text(TESTS)
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-pno:xdist",
            "-ptests.support.forks",
            "-n",
            "2",
            tmp_path,
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path.cwd()), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 38 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "The process that ran this test has ended with 3." in ran.stdout
    assert "it says 35" in ran.stdout
    assert "it says 34" not in ran.stdout

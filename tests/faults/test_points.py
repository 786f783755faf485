"""The hook itself: absent in production, exact in a test, and never misspelt."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from a2a_serverless import faults
from tests.faults import traps

ROOT = Path(__file__).parents[2]
PACKAGE = Path(faults.__file__).parent

ARM = "import os; from tests.faults import traps; traps.arm(os.environ);"
"""What `tests.faults.processes` does at the start of a process."""


def calls() -> list[str]:
    """The names that the package passes."""
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    return [
        name for source in sources for name in re.findall(r'faults\.point\("([^"]+)"\)', source)
    ]


def test_every_point_is_in_the_flow() -> None:
    """A name that the code does not pass, or that no harness can ask for, guards nothing."""
    assert set(calls()) == traps.POINTS


def test_nothing_arms_the_package() -> None:
    """A point in the package does nothing by itself, whatever the environment's variables are."""
    variables = {traps.POINT_VARIABLE: "after-send:1"}
    passed = run(variables, "faults.point('after-send'); print('alive')")
    assert passed.stdout == "alive\n"


@pytest.mark.long(but=1)
@pytest.mark.parametrize("wanted", ["after-lunch:1", "after-send", "after-send:0", "after-send:x"])
def test_an_unknown_point_stops_the_process(wanted: str) -> None:
    """A process with an unknown point does not start, and the error names the known points."""
    with pytest.raises(traps.UnknownFaultPointError, match="after-create"):
        traps.Trap(wanted)
    started = run({traps.POINT_VARIABLE: wanted}, ARM)
    assert started.returncode == 1
    assert "UnknownFaultPointError" in started.stderr


def test_an_armed_process_knows_its_points() -> None:
    """A name in the code that is not in the list is found by the first armed run."""
    with pytest.raises(traps.UnknownFaultPointError):
        traps.Trap("after-send:1")("after-lunch")


def test_the_process_dies_at_the_passage_that_was_asked_for(tmp_path: Path) -> None:
    """An armed process writes its mark and dies by SIGKILL at the passage that was asked for."""
    mark = tmp_path / "mark"
    variables = {traps.POINT_VARIABLE: "after-send:2", traps.MARK_VARIABLE: str(mark)}
    passes = ARM + "".join(
        f"faults.point({name!r}); print({number}, flush=True);"
        for number, name in enumerate(["after-send", "before-ack", "after-send", "after-send"])
    )
    died = run(variables, passes)
    assert died.returncode == -signal.SIGKILL
    assert died.stdout.split() == ["0", "1"]
    assert mark.read_text(encoding="utf-8") == "after-send\n"


def test_the_hook_needs_the_standard_library_alone() -> None:
    """The hook imports the standard library alone, so that every module may use it."""
    tree = ast.parse(Path(faults.__file__).read_text(encoding="utf-8"))
    modules = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert modules <= sys.stdlib_module_names


def run(variables: dict[str, str], passes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from a2a_serverless import faults; {passes}"],
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), str(PACKAGE.parent)]), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

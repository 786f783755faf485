"""The hook itself: absent in production, exact in a test, and never misspelt."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from a2a_serverless import faults

PACKAGE = Path(faults.__file__).parent


def calls() -> list[str]:
    """The names that the package passes."""
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    return [
        name for source in sources for name in re.findall(r'faults\.point\("([^"]+)"\)', source)
    ]


def test_every_point_is_in_the_flow() -> None:
    """A name that the code does not pass, or that no harness can ask for, guards nothing."""
    assert set(calls()) == faults.POINTS


def test_nothing_happens_in_production() -> None:
    """Without the variable a point is a function that returns."""
    point = faults.armed({})
    for name in faults.POINTS:
        point(name)


@pytest.mark.parametrize("wanted", ["after-lunch:1", "after-send", "after-send:0", "after-send:x"])
def test_an_unknown_point_stops_the_process(wanted: str) -> None:
    """Whoever misspells a point learns it at the start, and not by a test that passes."""
    with pytest.raises(faults.UnknownFaultPointError, match="after-create"):
        faults.armed({faults.POINT_VARIABLE: wanted})
    started = run({faults.POINT_VARIABLE: wanted}, "")
    assert started.returncode == 1
    assert "UnknownFaultPointError" in started.stderr


def test_an_armed_process_knows_its_points() -> None:
    """A name in the code that is not in the list is found by the first armed run."""
    point = faults.armed({faults.POINT_VARIABLE: "after-send:1"})
    with pytest.raises(faults.UnknownFaultPointError):
        point("after-lunch")


def test_the_process_dies_at_the_passage_that_was_asked_for(tmp_path: Path) -> None:
    """By SIGKILL, after the mark is on the disk, and nothing after it happens."""
    mark = tmp_path / "mark"
    variables = {faults.POINT_VARIABLE: "after-send:2", faults.MARK_VARIABLE: str(mark)}
    passes = "".join(
        f"faults.point({name!r}); print({number}, flush=True);"
        for number, name in enumerate(["after-send", "before-ack", "after-send", "after-send"])
    )
    died = run(variables, passes)
    assert died.returncode == -signal.SIGKILL
    assert died.stdout.split() == ["0", "1"]
    assert mark.read_text(encoding="utf-8") == "after-send\n"


def test_the_hook_needs_the_standard_library_alone() -> None:
    """So that every module may pass a point, whatever it must not import."""
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
        env={"PYTHONPATH": str(PACKAGE.parent), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

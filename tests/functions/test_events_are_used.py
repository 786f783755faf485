"""events/ holds what drives the handlers, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EVENTS = sorted((ROOT / "events").iterdir())


def sources() -> str:
    """The handlers' tests, but for this one."""
    paths = Path(__file__).parent.glob("test_*.py")
    return "\n".join(p.read_text(encoding="utf-8") for p in paths if p != Path(__file__))


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: path.stem)
def test_event_drives_a_handler(path: Path) -> None:
    """Every file in events/ is JSON and is named by a test of the function that it is for."""
    assert path.suffix == ".json"
    json.loads(path.read_text(encoding="utf-8"))
    assert f'"{path.stem}' in sources(), f"no test in tests/functions uses {path.name}"


@pytest.mark.parametrize(
    "function", [p.name for p in sorted((ROOT / "functions").iterdir()) if p.is_dir()]
)
def test_function_has_an_event(function: str) -> None:
    """Every function has a file in events/ for `sam local invoke`."""
    assert [path for path in EVENTS if path.name.startswith(f"{function}-")]

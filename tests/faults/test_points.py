"""The points at which processes are killed: the package passes them, and does nothing there."""

from __future__ import annotations

import re
from pathlib import Path

from a2a_serverless import faults
from tests.faults import traps

PACKAGE = Path(faults.__file__).parent


def test_every_point_is_in_the_flow() -> None:
    """A name that the code does not pass, or that no harness can ask for, guards nothing."""
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    assert {*re.findall(r'faults\.point\("([^"]+)"\)', "".join(sources))} == traps.POINTS


def test_nothing_arms_the_package() -> None:
    """A point in the package does nothing by itself: this process goes on."""
    for name in traps.POINTS:
        faults.point(name)

"""Named points between two requests, at which a crash leaves work half done.

`point` marks such a place. It does nothing in a process that this package starts, and no setting
changes that. The fault tests replace it by a trap that kills the process (`tests/faults/traps.py`).
"""

from __future__ import annotations

from collections.abc import Callable


def _pass(name: str, /) -> None:
    """Do nothing."""


point: Callable[[str], None] = _pass
"""Pass a point by its name. Call it as `faults.point`, so that a test can replace it."""

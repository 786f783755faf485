"""Sections at the end of a run, made of what its tests have recorded with `record_property`.

Each module that prints one is a plugin of tests/conftest.py, which is loaded whatever is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest


def print_section(
    terminalreporter: pytest.TerminalReporter,
    title: str,
    name: str,
    lines: Callable[[Sequence[str]], Iterable[str]],
) -> None:
    """Print what `lines` makes of the values recorded as `name`; nothing where there are none."""
    values = [
        str(value)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for recorded, value in report.user_properties
        if recorded == name
    ]
    if values:
        terminalreporter.section(title)
        for line in lines(values):
            terminalreporter.write_line(line)

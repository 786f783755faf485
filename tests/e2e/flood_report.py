"""How callers were served in a flood, beside how they were without: printed at the end."""

from __future__ import annotations

import pytest

PROPERTY = "flood"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines that the flood's tests have recorded."""
    lines = [
        value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if lines:
        terminalreporter.section(PROPERTY)
        for line in lines:
            terminalreporter.write_line(line)

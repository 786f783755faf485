"""How callers were served in a flood, beside how they were without: printed at the end."""

from __future__ import annotations

import pytest

from tests.support.summaries import print_section

PROPERTY = "flood"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines that the flood's tests have recorded."""
    print_section(terminalreporter, "flood", PROPERTY, lambda lines: lines)

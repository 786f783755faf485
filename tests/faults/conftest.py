"""The emulators of the fault tests, and the table of the kill points at the end of the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from a2a_serverless.local.emulators import Emulator
from a2a_serverless.local.emulators import dynamodb_local as another_dynamodb_local
from tests.faults.harness import Emulators
from tests.faults.report import PROPERTY, Runs, table


@pytest.fixture(scope="session")
def emulators(dynamodb_local: Emulator, fauxqs: Emulator) -> Emulators:
    """DynamoDB Local and fauxqs; every test makes a table and queues of its own on them."""
    return Emulators(dynamodb_local, fauxqs)


@pytest.fixture(scope="session")
def push_emulators(fauxqs: Emulator) -> Iterator[Emulators]:
    """A DynamoDB Local for one table with a stream, which would slow the others down."""
    with another_dynamodb_local() as dynamodb:
        yield Emulators(dynamodb, fauxqs)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the kill points have shown."""
    rows = [
        Runs.from_json(value)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if rows:
        terminalreporter.section("kill points")
        for line in table(rows):
            terminalreporter.write_line(line)

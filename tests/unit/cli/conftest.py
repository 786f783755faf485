"""A table on moto that the commands find by their environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from a2a_serverless import aws, wiring
from tests.support.clocks import ManualClock
from tests.support.databases import Database, moto_database
from tests.support.emulators import CREDENTIALS, REGION

START_MS = 1_795_313_640_000
"""2026-11-22T02:14:00Z"""


@pytest.fixture
def clock() -> ManualClock:
    """The clock of those who write tasks, and of the command."""
    return ManualClock(START_MS)


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Iterator[Database]:
    """The table that `A2A_TABLE` names."""
    aws.forget_clients()
    with moto_database() as moto:
        for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": REGION}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_ENDPOINT_URL_DYNAMODB", raising=False)
        monkeypatch.setenv("A2A_TABLE", moto.table)
        monkeypatch.setattr(wiring, "SystemClock", lambda: clock)
        yield moto
    aws.forget_clients()

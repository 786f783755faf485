"""What many modules' tests have: a clock that a test moves."""

from __future__ import annotations

import pytest

from tests.support.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()

"""What many modules' tests have: a clock that a test moves, and a store of public keys."""

from __future__ import annotations

import pytest

from a2a_serverless.storage.keys import KeyStore
from tests.support.clocks import ManualClock
from tests.support.memory import memory_keys


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> KeyStore:
    """A store of public keys, in dictionaries."""
    return memory_keys(clock)

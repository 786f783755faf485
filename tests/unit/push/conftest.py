"""A world of push, and a receiver of its notifications."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.push.receivers import Receiver
from tests.unit.push.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that answers with 200 until a test sets its `script`."""
    with Receiver() as made:
        yield made

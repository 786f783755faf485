"""The emulators of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.harness import Emulators
from tests.support.emulators import Emulator
from tests.support.emulators import dynamodb_local as another_dynamodb_local


@pytest.fixture(scope="session")
def emulators(dynamodb_local: Emulator, fauxqs: Emulator) -> Emulators:
    """DynamoDB Local and fauxqs; every test makes a table and queues of its own on them."""
    return Emulators(dynamodb_local, fauxqs)


@pytest.fixture(scope="session")
def push_emulators(fauxqs: Emulator) -> Iterator[Emulators]:
    """A DynamoDB Local for one table with a stream, which would slow the others down."""
    with another_dynamodb_local() as dynamodb:
        yield Emulators(dynamodb, fauxqs, stream=True)

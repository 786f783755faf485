"""The emulators as fixtures, and what a missing one means for the tests marked `emulators`."""

import os
from collections.abc import Iterator

import pytest

from a2a_serverless.local import emulators


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Report a test that lacks its emulators as not run; where they are required, as failed."""
    if item.get_closest_marker("emulators") is None:
        return
    reason = emulators.missing()
    if reason is None:
        return
    is_required = os.environ.get("CI") == "true" or os.environ.get("A2A_REQUIRE_EMULATORS") == "1"
    if is_required:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def dynamodb_local() -> Iterator[emulators.Emulator]:
    """DynamoDB Local, one for each test process: isolate by ids, not by tables."""
    with emulators.dynamodb_local() as emulator:
        yield emulator


@pytest.fixture(scope="session")
def fauxqs() -> Iterator[emulators.Emulator]:
    """The SQS emulator, one for each test process."""
    with emulators.fauxqs() as emulator:
        yield emulator

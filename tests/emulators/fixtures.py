"""The emulators as fixtures, and which tests may use them: those marked `emulators`.

Without the mark a test would fail where they are not installed, instead of being reported as not
run. Every fixture that starts an emulator asks for `installed_emulators`, which makes its tests
known.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator

import pytest

from tests.support import emulators
from tests.support.collection import Made, check
from tests.support.required import report_not_run

MARK = "emulators"
INSTALLED = "installed_emulators"


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, Made, Made]:
    """Refuse a test without the mark whose fixtures, or theirs, lead to an emulator."""
    return check((yield), lambda test: _fault(test, test.fixturenames))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Report a marked test whose emulators are not installed as not run."""
    reason = emulators.missing() if _is_marked(item) else None
    if reason is not None:
        report_not_run(reason)


@pytest.fixture(autouse=True)
def _marked_for_what_it_has_used(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that came to an emulator by `getfixturevalue`, unseen at collection."""
    yield
    if (fault := _fault(request.node, request.fixturenames)) is not None:
        pytest.fail(fault, pytrace=False)


@pytest.fixture(scope="session")
def installed_emulators() -> None:
    """Fail where an emulator is about to be started and is not installed."""
    reason = emulators.missing()
    if reason is not None:
        pytest.fail(reason, pytrace=False)


@pytest.fixture(scope="session")
def dynamodb_local(installed_emulators: None) -> Iterator[emulators.Emulator]:
    """DynamoDB Local, one for each test process: isolate by ids, not by tables."""
    with emulators.dynamodb_local() as emulator:
        yield emulator


@pytest.fixture(scope="session")
def fauxqs(installed_emulators: None) -> Iterator[emulators.Emulator]:
    """The SQS emulator, one for each test process."""
    with emulators.fauxqs() as emulator:
        yield emulator


def _is_marked(test: pytest.Item) -> bool:
    return test.get_closest_marker(MARK) is not None


def _fault(test: pytest.Item, uses: Collection[str]) -> str | None:
    if _is_marked(test) or INSTALLED not in uses:
        return None
    return f"uses an emulator and is not marked pytest.mark.{MARK}"

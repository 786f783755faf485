"""Watches over every test: no delivery reads its task again and again.

A delivery goes round only where HEAD has moved, which is once or twice. One that reads its task
more often than `MOST_READS` fails there, so that it ends, and its test fails with it, whatever
becomes of the delivery.
"""

from collections.abc import Generator

import pytest

from a2a_serverless.tasks.fold import Log
from a2a_serverless.worker.delivery import Delivery

MOST_READS = 8

_read = Delivery._read
_spinning: list[str] = []


async def _counted(delivery: Delivery) -> Log | None:
    reads = vars(delivery)["_reads"] = vars(delivery).get("_reads", 0) + 1
    if reads > MOST_READS:
        ids = delivery._handle.message.ids
        _spinning.append(f"{ids} has read its task {reads} times")
        raise RuntimeError(_spinning[-1])
    return await _read(delivery)


def pytest_configure() -> None:
    """Count the reads of all deliveries."""
    Delivery._read = _counted  # type: ignore[method-assign, assignment]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test of which a delivery went round without an end."""
    del item
    _spinning.clear()
    result = yield
    if _spinning:
        pytest.fail(f"a delivery spins: {_spinning[0]}", pytrace=False)
    return result

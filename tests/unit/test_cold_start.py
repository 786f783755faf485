"""What a function does while it starts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress

import pytest

from a2a_serverless.observability import cold_start
from tests.support.observed import root_logger


@pytest.fixture
def frozen() -> Iterator[None]:
    """Give back what a test has put out of the collector's reach."""
    yield
    gc.unfreeze()


@pytest.mark.parametrize("fails", [False, True])
def test_garbage_is_looked_for_after_the_start_only(*, fails: bool) -> None:
    """The collector rests while a function is imported, and works again whatever came of it."""
    with suppress(ZeroDivisionError), cold_start():
        assert not gc.isenabled()
        assert 1 / (not fails)
    assert gc.isenabled()


def test_only_a_function_keeps_its_start_for_good(
    monkeypatch: pytest.MonkeyPatch, frozen: None
) -> None:
    """Only in Lambda the objects of the start are frozen, so that later collections skip them."""
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME", raising=False)
    before = gc.get_freeze_count()
    with cold_start():
        pass
    assert gc.get_freeze_count() == before
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "worker")
    with root_logger(), cold_start():
        pass
    assert gc.get_freeze_count() > before

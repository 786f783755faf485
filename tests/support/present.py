"""What a test goes on with."""

from typing import TypeVar

T = TypeVar("T")


def present(found: T | None) -> T:
    """Return what a call has found; fail where it has found nothing."""
    assert found is not None
    return found

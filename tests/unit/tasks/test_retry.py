"""How long a failed attempt waits for the next one."""

from __future__ import annotations

import pytest

from a2a_serverless.tasks.attempts import RetryPolicy


@pytest.mark.parametrize(
    ("attempt", "longest_s"),
    [(1, 2), (2, 4), (3, 8), (7, 128), (8, 200), (5000, 200)],
)
def test_the_wait_doubles_up_to_its_cap(attempt: int, longest_s: float) -> None:
    """Attempt n waits for at most base * 2 ** (n - 1) seconds, and never longer than the cap."""
    policy = RetryPolicy(base_s=2, cap_s=200, jitter=lambda: 1.0)
    assert policy.delay_s(attempt) == longest_s


def test_the_jitter_takes_a_share_of_the_wait() -> None:
    """The wait is anything between nothing and its bound, so that turns do not come together."""
    assert RetryPolicy(base_s=4, jitter=lambda: 0.25).delay_s(1) == 1
    assert RetryPolicy(base_s=4, jitter=lambda: 0.0).delay_s(9) == 0
    assert 0 <= RetryPolicy(base_s=4).delay_s(1) <= 4


def test_attempts_are_exhausted_at_the_maximum() -> None:
    """`max_attempts` starts are all there are."""
    policy = RetryPolicy(max_attempts=3)
    assert [policy.is_exhausted(n) for n in (0, 2, 3, 4)] == [False, False, True, True]

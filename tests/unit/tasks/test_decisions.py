"""Decisions that no explorer guards: what of a read is a log, and how long a retry waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.fold import Record, belonging_to
from tests.unit.tasks.heads import opened


@pytest.mark.parametrize(
    ("read", "highest", "belong"),
    [
        ([1, 2, 3, 4], 4, [1, 2, 3, 4]),
        ([4], 4, [4]),
        ([], 4, []),  # the reader has the newest version
        ([3, 4, 5, 6], 6, [3, 4]),  # what is beyond HEAD is for the next read
        ([5], 5, []),
        ([], 1, None),  # behind version 1 it misses commits, however much it has
        ([2], 2, None),
        ([2, 3], 3, None),
    ],
)
def test_commits_up_to_head_are_the_log(
    read: list[int], highest: int, belong: list[int] | None
) -> None:
    """A log ends with the version of the HEAD that it comes with; a read that misses it goes on."""
    records = [Record(version=version, entries=()) for version in read]
    found = belonging_to(replace(opened(), version=4), records, highest)
    assert belong == (None if found is None else [record.version for record in found])


@pytest.mark.parametrize(
    ("attempt", "longest_s"), [(1, 2), (2, 4), (3, 8), (7, 128), (8, 200), (5000, 200)]
)
def test_the_wait_doubles_up_to_its_cap(attempt: int, longest_s: float) -> None:
    """Attempt n waits for at most base * 2 ** (n - 1) seconds, and never longer than the cap.

    It is anything between nothing and that, so that turns do not come together.
    """
    for share in (0, 0.25, 1):
        policy = RetryPolicy(base_s=2, cap_s=200, jitter=lambda: share)  # noqa: B023
        assert policy.delay_s(attempt) == share * longest_s
    assert 0 <= RetryPolicy(base_s=4).delay_s(1) <= 4

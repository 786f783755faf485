"""What belongs together of a HEAD and commits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from a2a_serverless.tasks.fold import Record, belonging_to
from tests.unit.tasks.heads import opened

HEAD = replace(opened(), version=4)


def records(*versions: int) -> list[Record]:
    return [Record(version=version, entries=()) for version in versions]


def test_commits_up_to_head_are_the_log() -> None:
    """A read from the beginning, and one behind a version."""
    assert belonging_to(HEAD, records(1, 2, 3, 4), 4) == tuple(records(1, 2, 3, 4))
    assert belonging_to(HEAD, records(4), 4) == tuple(records(4))


def test_a_reader_that_has_all_gets_none() -> None:
    """A reader that has the newest version gets no records."""
    assert belonging_to(HEAD, [], 4) == ()


@pytest.mark.parametrize("versions", [(), (2,), (2, 3)])
def test_a_read_that_does_not_come_to_head_goes_on(versions: tuple[int, ...]) -> None:
    """A read behind version 1 that misses commits is no log, however much it has."""
    assert belonging_to(HEAD, records(*versions), 1 + len(versions)) is None


def test_commits_beyond_head_are_for_the_next_read() -> None:
    """A log ends with the version of the HEAD that it comes with."""
    assert belonging_to(HEAD, records(3, 4, 5, 6), 6) == tuple(records(3, 4))
    assert belonging_to(HEAD, records(5), 5) == ()

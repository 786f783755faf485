"""The generation that each reader has of a task, whichever releases have written its log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from a2a_serverless.storage.codec import head_of
from a2a_serverless.tasks.attempts import counted_as, still_counts
from a2a_serverless.tasks.head import CancelMark
from tests.model.generations import (
    COUNTS,
    OLDER,
    PLAIN,
    Counted,
    check_generations,
    check_mixed,
    mixed_of,
)
from tests.model.logs import Act
from tests.unit.tasks.heads import claimed, moved

LOGS = 100
CHUNK = (("artifact", 1),)


@pytest.mark.timeout(600)
def test_every_reader_has_the_generation_of_a_log_that_two_releases_wrote() -> None:
    """HEAD, folds and EVENT items count the events, or HEAD says that it does not know them.

    Random legal logs, each prefix of each; a third of them with commits of the release before.
    """
    counted = check_generations(LOGS)
    assert counted.logs >= LOGS
    for seen in (counted.known, counted.unknown, counted.known_again):
        assert seen >= LOGS // 4, counted
    assert counted.restored >= LOGS // 10, counted


def test_a_generation_that_was_counted_replaces_the_one_that_was_left_behind() -> None:
    """An older release's commit leaves HEAD's generation; the next that counts stores the right.

    The commit that counts has no event of its own: HEAD's generation does not change by it, and
    has to be sent all the same.
    """
    acts = [Act("claim", CHUNK), Act("return", (("message", 1),))]
    mixed = mixed_of(acts, (COUNTS, OLDER, COUNTS))
    known = [head_of(item).generation for item in mixed.items]
    assert known == [1, None, 3]


def test_a_restart_counts_the_artifacts_that_it_restores() -> None:
    """Subscribers see each of them; a claim that has not read the log leaves them to a later one.

    Two artifacts from outside of any attempt stay through a restart.
    """
    notes = (("artifact", 1), ("artifact", 2))
    acts = [Act("claim"), Act("somebody", notes), Act("claim"), Act("claim"), Act("claim")]
    mixed = mixed_of(acts, (COUNTS, COUNTS, COUNTS, COUNTS, PLAIN, COUNTS))
    known = [head_of(item).generation for item in mixed.items]
    assert known == [1, 2, 4, 7, None, 13]
    check_mixed(mixed, Counted())


def test_what_a_claim_has_counted_belongs_to_the_version_that_it_has_read() -> None:
    """A counted generation holds only for the version that was read.

    A commit in between makes it wrong, because it may add artifacts. A change of HEAD alone, such
    as a request to cancel, does not.
    """
    read = replace(claimed(), generation=7)
    marked = replace(read, sends=1, cancel=CancelMark(at=1), generation=None)
    assert still_counts(read, marked)
    assert counted_as(read, marked) == replace(marked, generation=7)
    for other in (moved(marked, read.state), replace(marked, incarnation="later")):
        assert not still_counts(read, other)
        assert counted_as(read, other) == other
    known = replace(marked, generation=8)
    assert counted_as(replace(read, generation=None), known) == known

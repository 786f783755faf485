"""What a commit has met that could not be stored."""

from __future__ import annotations

from a2a_serverless.errors import ConcurrencyError, TaskNotFoundError
from a2a_serverless.tasks.rules import conflict, is_applied
from tests.unit.tasks.heads import claimed, opened


def test_a_commit_is_known_by_its_id() -> None:
    """A commit is applied only if the log has its own id at its version."""
    assert is_applied("mine", "mine")
    assert not is_applied("theirs", "mine")
    assert not is_applied(None, "mine")


def test_a_lost_race_names_the_version() -> None:
    """The writer reads on from there."""
    met = conflict(claimed(), opened())
    assert isinstance(met, ConcurrencyError)
    assert met.current_version == 2


def test_a_commit_on_a_task_that_is_gone_finds_none() -> None:
    """A later task with the same id is not the one that was written to."""
    assert isinstance(conflict(None, opened()), TaskNotFoundError)
    assert isinstance(conflict(opened("j"), opened()), TaskNotFoundError)

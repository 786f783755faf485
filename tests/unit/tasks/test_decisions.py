"""Cancels, conflicts, leases, reads and repairs, one decision at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from a2a.types import TaskState

from a2a_serverless.errors import ConcurrencyError, TaskNotFoundError
from a2a_serverless.tasks.attempts import (
    CancelDecision,
    is_given_up,
    lease_end,
    on_cancel,
    overdue_cancel,
    overdue_turn,
    repeated_turn,
)
from a2a_serverless.tasks.fold import Record, belonging_to
from a2a_serverless.tasks.head import (
    TERMINAL,
    AttemptEnd,
    CancelMark,
    Head,
    Operation,
    OperationParams,
    Uncounted,
)
from a2a_serverless.tasks.rules import Timing, canceling, conflict, is_applied, releasing
from tests.support.heads import with_fields
from tests.support.present import present
from tests.unit.tasks.heads import asked, claimed, followed, moved, opened

PAUSED = moved(claimed(), TaskState.TASK_STATE_INPUT_REQUIRED)
COMPLETED = moved(claimed(), TaskState.TASK_STATE_COMPLETED)
SECOND_TURN = followed(PAUSED)
LATE = 10**15

# -- cancels ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "by_run", "by_cancel"),
    [
        (opened(), CancelDecision.ALONE, CancelDecision.WAITING),
        (claimed(), CancelDecision.CLAIMED, CancelDecision.CLAIMED),
        (SECOND_TURN, CancelDecision.WAITING, CancelDecision.WAITING),
        (PAUSED, CancelDecision.PAUSED, CancelDecision.PAUSED),
    ],
    ids=["no agent has seen it", "an attempt has it", "a later turn waits", "paused"],
)
def test_how_a_task_is_canceled(
    head: Head, by_run: CancelDecision, by_cancel: CancelDecision
) -> None:
    """The agent is told of what it knows; a cancel operation tells it in any case."""
    kind: Literal["run", "cancel"]
    for kind, wanted in (("run", by_run), ("cancel", by_cancel)):
        params = OperationParams.of(head, head.turn.number)
        assert on_cancel(head, Operation(operation=kind, params=params)) is wanted


def test_an_overdue_cancel_is_ended_from_its_deadline_on() -> None:
    """A cancel is overdue from its deadline on, not a millisecond before; its turn never is."""
    for head in (claimed(), PAUSED):
        mark = canceling(head, by="", now_ms=1_000, timing=Timing(cancel_s=2.5))
        times = (3_499, 3_500, 9_999)
        assert [overdue_cancel(mark, now_ms=now) for now in times] == [False, True, True]
        assert overdue_turn(mark, now_ms=9_999) is None
        assert not overdue_cancel(head, now_ms=LATE)
    assert not overdue_cancel(None, now_ms=9_999)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_ended_task_is_not_canceled(state: TaskState) -> None:
    """The mark of an ended task says who asked, and nothing is due any more."""
    ended = moved(canceling(PAUSED, by="ann", now_ms=1_000, timing=Timing()), state)
    assert (ended.cancel, ended.due_at) == (CancelMark(at=1_000, by="ann"), None)
    assert not ended.is_being_canceled
    assert not overdue_cancel(ended, now_ms=LATE)


# -- commits that were not stored ------------------------------------------------------------


def test_a_commit_is_known_by_its_id() -> None:
    """A commit is applied only if the log has its own id at its version."""
    assert is_applied("mine", "mine")
    assert not is_applied("theirs", "mine")
    assert not is_applied(None, "mine")


def test_what_a_refused_commit_has_met() -> None:
    """A lost race names the version from which its writer reads on.

    A later task with the same id is not the one that was written to.
    """
    met = conflict(claimed(), opened())
    assert isinstance(met, ConcurrencyError)
    assert met.current_version == 2
    for head in (None, opened("j")):
        assert isinstance(conflict(head, opened()), TaskNotFoundError)


# -- leases ----------------------------------------------------------------------------------

CLAIMED = replace(claimed(token="A"), due_at=1_000_000)


def test_a_lease_begins_with_the_claim() -> None:
    """A lease ends, in milliseconds, as long after the claim as the timing says."""
    assert lease_end(5_000, Timing(lease_s=300, renew_before_s=120)) == 305_000


@pytest.mark.parametrize(
    ("head", "is_given_back"),
    [
        (CLAIMED, True),
        (with_fields(CLAIMED, token="B"), False),
        (with_fields(CLAIMED, released=AttemptEnd(token="A")), False),
        (with_fields(CLAIMED, parked="share"), False),
    ],
    ids=["its own", "of another", "given back", "left"],
)
def test_an_attempt_gives_back_what_it_has(head: Head, *, is_given_back: bool) -> None:
    """Once, and with its share of the workers; the counts are those that it names."""
    end = AttemptEnd(token="A", reason="ValueError")
    held = with_fields(head, has_share=True)
    after = releasing(held, end, due_at=7, attempts=3, uncounted=Uncounted(faults=1))
    assert (after is not None) is is_given_back
    if after is not None:
        assert (after.turn.released, after.turn.has_share, after.due_at) == (end, False, 7)
        assert (after.turn.attempts, after.turn.uncounted.faults) == (3, 1)


def test_a_released_turn_keeps_the_deadline_of_a_cancel() -> None:
    """The sweeper ends the task then, whatever the attempt wants."""
    after = present(releasing(asked(CLAIMED), AttemptEnd(token="A"), due_at=7))
    assert after.due_at == asked(CLAIMED).due_at


# -- what belongs together of a HEAD and commits ---------------------------------------------


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


# -- repairs ---------------------------------------------------------------------------------

DUE = 60_000


def test_an_overdue_turn_is_sent_again_under_a_number_of_its_own() -> None:
    """The copy names the current turn; its number is the next one.

    The due index may lag: HEAD as it is now decides.
    """
    copy = present(overdue_turn(with_fields(opened(), sends=2), now_ms=DUE))
    assert (copy.incarnation, copy.turn, copy.copy_number) == ("i", 1, 3)
    for head, now_ms in ((None, DUE), (opened(), DUE - 1), (claimed(), DUE), (PAUSED, LATE)):
        assert overdue_turn(head, now_ms=now_ms) is None


@pytest.mark.parametrize(
    ("head", "after_s", "is_over"),
    [
        (opened(), 3599.999, False),
        (opened(), 3600, True),
        (SECOND_TURN, 3600, True),
        (claimed(), 36_000, False),
        (PAUSED, 36_000, False),
        (COMPLETED, 36_000, False),
    ],
)
def test_a_turn_that_was_never_claimed_is_given_up_in_the_end(
    head: Head, after_s: float, *, is_over: bool
) -> None:
    """Exactly when its time is over, counted from when it became current; if that is known."""
    now_ms = 5 + int(after_s * 1000)
    assert is_given_up(head, opened_at=5, now_ms=now_ms, give_up_s=3600) is is_over
    assert not is_given_up(head, opened_at=None, now_ms=LATE, give_up_s=3600)


@pytest.mark.parametrize(
    ("head", "copy"),
    [
        (with_fields(opened(), sends=2), (1, 2)),
        *((head, None) for head in (None, claimed(), PAUSED, SECOND_TURN)),
    ],
    ids=["waits", "gone", "claimed", "finished", "another turn"],
)
def test_a_repeated_message_sends_its_waiting_turn_once_more(
    head: Head | None, copy: tuple[int, int] | None
) -> None:
    """Under the number of the newest copy; the due index watches what a worker has, or had."""
    found = repeated_turn(head, 1)
    assert copy == (None if found is None else (found.turn, found.copy_number))

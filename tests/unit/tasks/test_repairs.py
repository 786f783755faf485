"""What repairs a task, one decision at a time."""

from __future__ import annotations

import pytest
from a2a.types import Message, Part, Role, SendMessageRequest, TaskState, TaskStatus

from a2a_serverless.tasks.attempts import (
    is_given_up,
    overdue_turn,
    repeated_turn,
)
from a2a_serverless.tasks.entries import StatusChanged, TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit, NewTask, Timing, advance, open_task
from tests.support.heads import with_fields
from tests.support.present import present

TIMING = Timing(waiting_s=60, lease_s=900)
NOW = 1_000_000
DUE = NOW + 60_000
HOUR_S = 3600


def request(message_id: str = "m1") -> SendMessageRequest:
    message = Message(message_id=message_id, role=Role.ROLE_USER, parts=[Part(text="hello")])
    return SendMessageRequest(message=message)


def opened() -> Head:
    new = NewTask(scope="s", task_id="t", context_id="c", incarnation="i", request=request("m1"))
    return open_task(new, now_ms=NOW, timing=TIMING).head


def step(head: Head, commit: Commit) -> Head:
    return advance(head, commit, now_ms=NOW, timing=TIMING).head


def claimed() -> Head:
    return step(opened(), Commit(token="A", claims=True))


def ended(state: TaskState) -> Head:
    entries = (StatusChanged(TaskStatus(state=state)),)
    return step(claimed(), Commit(entries=entries, token="A"))


def paused() -> Head:
    return ended(TaskState.TASK_STATE_INPUT_REQUIRED)


def second_turn() -> Head:
    return step(paused(), Commit(entries=(TurnOpened(request("m2")),)))


def test_an_overdue_turn_is_sent_again_under_a_number_of_its_own() -> None:
    """The copy names the current turn; its number is the next one."""
    copy = present(overdue_turn(with_fields(opened(), sends=2), now_ms=DUE))
    assert (copy.incarnation, copy.turn, copy.copy_number) == ("i", 1, 3)


def test_a_turn_that_is_not_overdue_is_left_alone() -> None:
    """The due index may lag: HEAD as it is now decides."""
    assert overdue_turn(None, now_ms=DUE) is None
    assert overdue_turn(opened(), now_ms=DUE - 1) is None
    assert overdue_turn(claimed(), now_ms=DUE) is None
    assert overdue_turn(paused(), now_ms=10**15) is None


def test_a_turn_that_was_never_claimed_is_given_up_in_the_end() -> None:
    """A turn is given up exactly when its time is over, counted from when it became current."""
    assert not given_up(opened(), after_s=HOUR_S - 0.001)
    assert given_up(opened(), after_s=HOUR_S)
    assert given_up(second_turn(), after_s=HOUR_S)


def test_a_turn_of_unknown_age_is_not_given_up() -> None:
    """A turn whose opening commit has no time is not given up."""
    head = opened()
    assert not is_given_up(head, opened_at=None, now_ms=10**15, give_up_s=HOUR_S)


@pytest.mark.parametrize("head", [claimed(), paused(), ended(TaskState.TASK_STATE_COMPLETED)])
def test_a_turn_that_was_claimed_or_is_over_is_not_given_up(head: Head) -> None:
    """A turn that was claimed, or is over, is not given up, however long ago it was opened."""
    assert not given_up(head, after_s=10 * HOUR_S)


def test_a_repeated_message_sends_its_waiting_turn_once_more() -> None:
    """A repeated message sends its waiting turn again, under the number of the newest copy."""
    copy = present(repeated_turn(with_fields(opened(), sends=2), 1))
    assert (copy.turn, copy.copy_number) == (1, 2)


@pytest.mark.parametrize(
    "head",
    [None, claimed(), paused(), second_turn()],
    ids=["gone", "claimed", "finished", "another turn"],
)
def test_a_repeated_message_of_a_turn_that_does_not_wait_sends_nothing(head: Head | None) -> None:
    """The due index watches a turn that a worker has, or had."""
    assert repeated_turn(head, 1) is None


def given_up(head: Head, *, after_s: float) -> bool:
    now_ms = NOW + int(after_s * 1000)
    return is_given_up(head, opened_at=NOW, now_ms=now_ms, give_up_s=HOUR_S)

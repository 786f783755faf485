"""What a cancel asks for, and whose flag it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from a2a.types import TaskState

from a2a_serverless.errors import TaskNotFoundError, TaskTerminalStateError
from a2a_serverless.tasks.attempts import Canceled, on_cancel
from a2a_serverless.tasks.head import TERMINAL, CancelMark, Head
from a2a_serverless.tasks.operations import Operation, OperationParams
from a2a_serverless.tasks.storing import (
    check_open,
    counts_for,
    deadline_ms,
    is_overdue,
    is_requested,
    may_remove,
)
from tests.unit.tasks.heads import claimed, followed, moved, opened

PAUSED = moved(claimed(), TaskState.TASK_STATE_INPUT_REQUIRED)


@pytest.mark.parametrize(
    ("head", "by_run", "by_cancel"),
    [
        pytest.param(opened(), Canceled.ALONE, Canceled.WAITING, id="no agent has seen it"),
        pytest.param(claimed(), Canceled.CLAIMED, Canceled.CLAIMED, id="an attempt has it"),
        pytest.param(followed(PAUSED), Canceled.WAITING, Canceled.WAITING, id="a later turn waits"),
        pytest.param(PAUSED, Canceled.PAUSED, Canceled.PAUSED, id="paused"),
    ],
)
def test_how_a_task_is_canceled(head: Head, by_run: Canceled, by_cancel: Canceled) -> None:
    """The agent is told of what it knows; a cancel operation tells it in any case."""
    assert on_cancel(head, operation("run", head)) is by_run
    assert on_cancel(head, operation("cancel", head)) is by_cancel


def test_a_flag_is_raised_on_an_open_task() -> None:
    """A flag is accepted on a task that waits, runs or is paused."""
    for head in (opened(), claimed(), PAUSED):
        assert check_open(head) is head


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_a_task_that_has_ended_takes_no_flag(state: TaskState) -> None:
    """A flag on an ended task is refused, because no process would remove it."""
    with pytest.raises(TaskTerminalStateError):
        check_open(moved(claimed(), state))


def test_a_task_that_is_gone_takes_no_flag() -> None:
    """A flag on a task that is gone raises TaskNotFoundError."""
    with pytest.raises(TaskNotFoundError):
        check_open(None)


def test_a_flag_counts_for_its_own_task() -> None:
    """A flag counts for the incarnation that it names, and for no other task of the id."""
    assert counts_for("i", "i")
    assert not counts_for("i", "j")
    assert not counts_for("i", None)


def test_a_request_is_known_by_its_flag_or_by_its_mark() -> None:
    """A flag that was raised after the look for it has left its mark on HEAD."""
    head = claimed()
    marked = replace(head, cancel=CancelMark(at=1, by="alice"))
    assert not is_requested(head, None)
    assert not is_requested(head, "another task's")
    assert is_requested(head, head.incarnation)
    assert is_requested(marked, None)


def test_the_end_of_a_task_removes_its_own_flag() -> None:
    """A cleanup that names an incarnation removes its flag alone; one without removes any."""
    assert may_remove("i", "i")
    assert not may_remove("j", "i")
    assert may_remove("i", None)


def test_a_cancel_is_overdue_from_its_deadline_on() -> None:
    """A cancel is overdue from its deadline on, and not a millisecond before."""
    deadline = deadline_ms(1_000, 2.5)
    assert deadline == 3_500
    assert [is_overdue(deadline, now_ms=now) for now in (3_499, 3_500, 9_999)] == [
        False,
        True,
        True,
    ]


def operation(kind: Literal["run", "cancel"], head: Head) -> Operation:
    return Operation(operation=kind, params=OperationParams.of(head, head.turn))

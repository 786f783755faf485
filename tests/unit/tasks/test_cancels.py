"""What a cancel asks for, and when it is over."""

from __future__ import annotations

from typing import Literal

import pytest
from a2a.types import TaskState

from a2a_serverless.tasks.attempts import CancelDecision, on_cancel, overdue_cancel, overdue_turn
from a2a_serverless.tasks.head import TERMINAL, CancelMark, Head, Operation, OperationParams
from a2a_serverless.tasks.rules import Timing, canceling
from tests.unit.tasks.heads import claimed, followed, moved, opened

PAUSED = moved(claimed(), TaskState.TASK_STATE_INPUT_REQUIRED)


@pytest.mark.parametrize(
    ("head", "by_run", "by_cancel"),
    [
        pytest.param(
            opened(), CancelDecision.ALONE, CancelDecision.WAITING, id="no agent has seen it"
        ),
        pytest.param(
            claimed(), CancelDecision.CLAIMED, CancelDecision.CLAIMED, id="an attempt has it"
        ),
        pytest.param(
            followed(PAUSED),
            CancelDecision.WAITING,
            CancelDecision.WAITING,
            id="a later turn waits",
        ),
        pytest.param(PAUSED, CancelDecision.PAUSED, CancelDecision.PAUSED, id="paused"),
    ],
)
def test_how_a_task_is_canceled(
    head: Head, by_run: CancelDecision, by_cancel: CancelDecision
) -> None:
    """The agent is told of what it knows; a cancel operation tells it in any case."""
    assert on_cancel(head, operation("run", head)) is by_run
    assert on_cancel(head, operation("cancel", head)) is by_cancel


def test_an_overdue_cancel_is_ended_from_its_deadline_on() -> None:
    """A cancel is overdue from its deadline on, not a millisecond before; its turn never is."""
    for head in (claimed(), PAUSED):
        asked = canceling(head, by="", now_ms=1_000, timing=Timing(cancel_s=2.5))
        times = (3_499, 3_500, 9_999)
        assert [overdue_cancel(asked, now_ms=now) for now in times] == [False, True, True]
        assert overdue_turn(asked, now_ms=9_999) is None
        assert not overdue_cancel(head, now_ms=10**15)
    assert not overdue_cancel(None, now_ms=9_999)


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_ended_task_is_not_canceled(state: TaskState) -> None:
    """The mark of an ended task says who asked, and nothing is due any more."""
    ended = moved(canceling(PAUSED, by="ann", now_ms=1_000, timing=Timing()), state)
    assert (ended.cancel, ended.due_at) == (CancelMark(at=1_000, by="ann"), None)
    assert not ended.is_being_canceled
    assert not overdue_cancel(ended, now_ms=10**15)


def operation(kind: Literal["run", "cancel"], head: Head) -> Operation:
    return Operation(operation=kind, params=OperationParams.of(head, head.turn.number))

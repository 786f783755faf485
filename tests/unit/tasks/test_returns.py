"""What the return of an agent means for its turn."""

from __future__ import annotations

import pytest
from a2a.types import TaskState

from a2a_serverless.tasks.attempts import Returned, on_return
from a2a_serverless.tasks.head import KNOWN

ENDED = {
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_CANCELED,
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_REJECTED,
    TaskState.TASK_STATE_INPUT_REQUIRED,
}
AT_FAULT = {TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING}


@pytest.mark.parametrize("state", sorted(KNOWN))
def test_what_follows_a_return(state: TaskState) -> None:
    """After a return the turn has ended, ends now (auth-required), or is the agent's fault."""
    met = on_return(state)
    assert (met is Returned.ENDED) == (state in ENDED)
    assert (met is Returned.AT_FAULT) == (state in AT_FAULT)
    assert (met is Returned.ENDS_TURN) == (state == TaskState.TASK_STATE_AUTH_REQUIRED)


def test_an_agent_that_said_nothing_is_at_fault() -> None:
    """An agent that returns without a state on the turn is at fault."""
    assert on_return(None) is Returned.AT_FAULT

"""What the return of an agent's `execute()` means for its turn."""

from __future__ import annotations

from enum import Enum

from a2a.types import TaskState

from a2a_serverless.tasks.states import is_terminal


class Returned(Enum):
    """What is left to do for the turn of an agent that has returned."""

    ENDED = "ended"
    """Nothing: the commit of its last state has ended the turn."""
    ENDS_TURN = "ends turn"
    """A commit that ends the turn: the agent waited for credentials, and did not go on."""
    AT_FAULT = "at fault"
    """The task fails: without an end its turn would stay open for ever."""


def on_return(state: TaskState | None) -> Returned:
    """What follows the return of an agent whose last state on the turn was `state`."""
    if state is None:
        return Returned.AT_FAULT
    if is_terminal(state) or state == TaskState.TASK_STATE_INPUT_REQUIRED:
        return Returned.ENDED
    is_waiting = state == TaskState.TASK_STATE_AUTH_REQUIRED
    return Returned.ENDS_TURN if is_waiting else Returned.AT_FAULT

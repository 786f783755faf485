"""Task states and what they mean for a task and its turn (A2A 1.0.1, section 4.1.3)."""

from __future__ import annotations

from a2a.types import TaskState

TERMINAL = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_REJECTED,
    }
)
"""The task has ended: no transition leaves these states."""

INTERRUPTED = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})
"""The turn waits for its client: a message may open the next turn."""

KNOWN = TERMINAL | INTERRUPTED | {TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING}


def is_terminal(state: TaskState) -> bool:
    """Return True if the task has ended."""
    return state in TERMINAL


def is_interrupted(state: TaskState) -> bool:
    """Return True if the turn waits for its client."""
    return state in INTERRUPTED


def state_name(state: TaskState) -> str:
    """Return the name on the wire, such as `TASK_STATE_WORKING`."""
    name: str = TaskState.Name(state)
    return name


def plain_state(state: TaskState) -> str:
    """Return the name in logs and metrics, such as `working`."""
    return state_name(state).removeprefix("TASK_STATE_").lower()

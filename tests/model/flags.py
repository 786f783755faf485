"""The cancel flag: whom it counts for, and when it is removed."""

from __future__ import annotations

from tests.model.state import State
from tests.model.store import wrong
from tests.model.world import World, inc_of, mark_of


def is_flagged(world: World, state: State) -> bool:
    """Whether a cancel flag is up that counts for the task as it is now."""
    if not state.flag:
        return False
    task = state.head and state.head.head.incarnation
    return world.rules.counts_for(mark_of(state.flag), task)


def has_ended(state: State, inc: int) -> bool:
    """Whether an incarnation is gone or in a terminal state."""
    seen = state.head
    return seen is None or inc_of(seen.head) != inc or seen.head.is_terminal


def without_flag(world: World, state: State, inc: int) -> State:
    """The state after a cleanup for `inc`."""
    if not state.flag or not world.rules.may_remove(mark_of(state.flag), mark_of(inc)):
        return state
    if not has_ended(state, state.flag):
        state = wrong(state, "the cancel flag of a task that has not ended is removed")
    return state._replace(flag=0)

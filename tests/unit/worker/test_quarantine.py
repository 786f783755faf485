"""The turns of a dead worker, under every pair of settings with which turns share workers."""

from __future__ import annotations

import pytest

from tests.unit.worker.quarantine import VISIBILITY_S, pairs, simulate

LATE_S = 10
"""Seconds beyond a visibility and a turn within which a turn of a dead worker has begun."""


@pytest.mark.parametrize(("turn_s", "run_s"), pairs())
def test_the_turns_of_a_dead_worker_start_soon(turn_s: int, run_s: int) -> None:
    """Among busy workers they begin within a visibility, one turn and 10 s, in three receives.

    They take no place of other turns meanwhile. The long form, with more turns and deaths, is
    `python -m tests.unit.worker.quarantine`.
    """
    for death in simulate(turn_s, run_s, turns=2, deaths=1):
        assert max(death.starts) <= VISIBILITY_S + turn_s + LATE_S
        assert death.receives <= 3
        assert death.taken == 0

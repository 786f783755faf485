"""A conversation keeps its promises in every interleaving, and each guard is missed."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from tests.model.talk import Guards, Report, explore

WAITS = "a turn waits for ever"
MISSED: dict[str, tuple[str, dict[str, Any]]] = {
    "line": ("two turns run at once", {}),
    "looks_again": (WAITS, {}),
    "passes_on": (WAITS, {}),
    "conditional": (WAITS, {}),
    "sweeps": (WAITS, {"deaths": 1}),
    "drops": (WAITS, {"accepted": 3, "messages": 0, "cancels": 1}),
}
"""By guard: the promise that is broken without it, and in which world."""
WORLDS: list[dict[str, Any]] = [
    {"messages": 3},
    {"cancels": 1},
    {"deaths": 2},
    {"cancels": 1, "deaths": 1},
]
LARGE: list[dict[str, Any]] = [{"messages": 3, "cancels": 1}, {"messages": 3, "deaths": 1}]
IS_LONG = os.environ.get("A2A_MODEL") == "long"


def _without(guard: str) -> Guards:
    return replace(Guards(), **{guard: False})


@pytest.mark.parametrize("world", [*WORLDS, *(LARGE if IS_LONG else ())], ids=str)
def test_a_conversation_keeps_its_promises(world: dict[str, Any]) -> None:
    """One turn at a time, in order, and none waits for ever; without a death no sweep is needed."""
    report = explore(**world)
    assert report == Report(report.states), report
    assert report.states > 1000


@pytest.mark.parametrize("guard", MISSED)
def test_a_guard_of_a_conversation_is_missed(guard: str) -> None:
    """Without it the explorer finds the promise broken, and the way there."""
    promise, world = MISSED[guard]
    report = explore(_without(guard), **world)
    assert report.broken == promise
    assert report.trace


def test_a_redelivery_only_saves_the_sweep() -> None:
    """What it passes on, the sweeper would: a turn waits for minutes without it, not for ever."""
    assert not explore(_without("redelivery"), cancels=1, deaths=1).broken


def test_every_guard_of_a_conversation_is_tried() -> None:
    """A guard more needs a counterexample."""
    assert {*MISSED, "redelivery"} == {*Guards.__slots__}

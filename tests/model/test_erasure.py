"""A deletion keeps its promises in every interleaving, and each guard is missed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tests.model.erasure import Guards, Report, explore

LEFT = "a task is left"
MISSED: dict[str, tuple[str, dict[str, Any]]] = {
    "second_look": (LEFT, {}),
    "kept": (LEFT, {}),
    "lag": (LEFT, {}),
    "by_birth": (LEFT, {}),
    "lapse": (LEFT, {"lapses": 1}),
    "sweeps": ("a task is left for ever", {"deaths": 1}),
}
"""By guard: the promise that is broken without it, and in which world."""
WORLDS: list[dict[str, Any]] = [{}, {"deaths": 2}, {"lapses": 1}, {"deaths": 1, "lapses": 1}]


def without(guard: str) -> Guards:
    return replace(Guards(), **{guard: False})


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_deletion_keeps_its_promises(world: dict[str, Any]) -> None:
    """Nothing of before its end is left, and what comes after it is accepted."""
    report = explore(**world)
    assert report == Report(report.states), report
    assert report.states > 1000


@pytest.mark.parametrize("guard", MISSED)
def test_a_guard_of_a_deletion_is_missed(guard: str) -> None:
    """Without it the explorer finds the promise broken, and the way there."""
    promise, world = MISSED[guard]
    report = explore(without(guard), **world)
    assert report.broken == promise, report
    assert report.trace


def test_the_first_look_only_saves_a_write() -> None:
    """Without it what is refused was stored for a moment, and nothing else changes."""
    assert not explore(without("first_look"), deaths=1, lapses=1).broken


def test_every_guard_of_a_deletion_is_tried() -> None:
    """A guard more needs a counterexample."""
    assert {field.name for field in fields(Guards)} == {*MISSED, "first_look"}

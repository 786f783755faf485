"""Kills at each request and step of code that asks its client."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support.workers import PacedClock
from tests.unit.worker import question_kills
from tests.unit.worker.step_kills import tables

LONG = os.environ.get("A2A_FAULTS") == "long"


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        ("memory", 300 if LONG else 6),
        ("file", 300 if LONG else 3),
        pytest.param("dynamodb", 60 if LONG else 2, marks=pytest.mark.emulators),
    ],
)
def test_random_kills_repeat_no_step_and_no_question(kind: str, seeds: int, tmp_path: Path) -> None:
    """Each answer comes to its question, the text is exact, and nothing is stuck."""
    total: Counter[str] = Counter()
    with tables(kind, tmp_path) as made:
        for seed in range(seeds):
            clock = PacedClock()
            total += question_kills.run(seed, made(clock), clock)
    assert total["kills"] > 0

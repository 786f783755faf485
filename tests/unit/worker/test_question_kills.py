"""Kills at each request and step of code that waits: for its client, the time and others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES
from tests.support.databases import LONG
from tests.support.workers import PacedClock
from tests.unit.worker import question_kills


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        ("memory", 300 if LONG else 3),
        ("file", 60 if LONG else 1),
        pytest.param("dynamodb", 40 if LONG else 1, marks=pytest.mark.emulators),
    ],
)
def test_random_kills_repeat_no_step_and_no_question(kind: str, seeds: int, tmp_path: Path) -> None:
    """Each answer comes to its question, what is said is exact, and nothing is stuck.

    Half of the conversations have three steps beside one another whose text is streamed.
    """
    total: Counter[str] = Counter()
    with question_kills.tables(kind, tmp_path) as made:
        for seed in range(seeds):
            for script, share in (((), 0.03), (question_kills.STREAMS, 0.08)):
                clock = PacedClock()
                total += question_kills.run(seed, made(clock), clock, script=script, share=share)
    assert total["kills"] > 0


@pytest.mark.parametrize(
    ("script", "least", "step"),
    [
        (question_kills.SHORT, 40, 1 if LONG else 5),
        pytest.param(question_kills.EVERYTHING, 400, 1 if LONG else 211, marks=pytest.mark.long),
    ],
    ids=["short", "everything"],
)
def test_a_kill_at_each_point_changes_nothing(
    script: question_kills.Script, least: int, step: int
) -> None:
    """Before and after a request, and in a step: at some of the points, and at all in LONG."""

    def killed(at: int) -> Counter[str]:
        clock, table = PacedClock(), MemoryTable(INDEXES)
        return question_kills.run(0, table, clock, script=script, share=0, at=at)

    points = killed(10**6)["points"]
    assert points > least
    for at in range(1, points, step):
        assert killed(at)["kills"] == 1

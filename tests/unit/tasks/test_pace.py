"""What a turn writes in a second."""

from __future__ import annotations

import random

import pytest

from a2a_serverless.tasks.pace import PART_BYTES, Pace, commit_units


@pytest.mark.parametrize("seed", range(20))
def test_no_second_has_more_units(seed: int) -> None:
    """Commits keep to nine tenths in each second; a larger one is alone in its seconds."""
    draw, pace, now = random.Random(seed), Pace(1000), 0.0  # noqa: S311 - a seeded schedule
    written: list[tuple[float, int]] = []
    for _ in range(300):
        units = draw.choice([draw.randint(1, 20), draw.randint(1, 900), draw.randint(900, 9000)])
        counted = [(at + max(1.0, one / 900), one) for at, one in written]
        room = 900 - sum(one for until, one in counted if until > now)
        wait_s = pace.wait_s(units, now)
        assert (wait_s == 0) == (units <= room or room == 900)
        now += wait_s
        assert pace.wait_s(units, now) <= 1e-9
        still = sum(one for until, one in counted if until > now + 1e-9)
        assert still == 0 or still + units <= 900
        now += draw.choice([0, 0.01])  # until it is answered
        pace.spend(units, now)
        written.append((now, units))
        now += draw.choice([0, 0, 0.3, 2])


def test_units_of_a_commit() -> None:
    """A begun KB costs two units, of each part; and so does HEAD, with its status."""
    assert commit_units(0) == commit_units(724) == 4
    assert commit_units(725) == 6
    assert commit_units(0, inline=4096) == 12
    assert commit_units(PART_BYTES + 1) == commit_units(PART_BYTES) + 2

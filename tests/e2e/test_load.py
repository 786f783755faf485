"""The load run of the page `load`, in short, and what it takes for a rate that is too high."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.load import Round, counted
from tests.unit.test_load_page import numbers, rows


@pytest.mark.emulators
def test_a_task_under_load_uses_what_the_page_says(tmp_path: Path) -> None:
    """Echoes at a rate, over processes of their own, use the write units of the page `cost`."""
    echo = {
        name: numbers(cells[:1])[0]
        for name, cells in rows("one task").items()
        if name in {"write units", "read units", "requests to DynamoDB"}
    }
    most = echo["write units"] * 1.02
    # On a busy machine an echo may be committed in two parts: once more.
    for tries in range(3):
        (folder := tmp_path / str(tries)).mkdir()
        units = counted(folder, 1, rate=2, seconds=5)
        if units.write <= most:
            break
    assert echo["write units"] - 1 <= units.write <= most
    # Polls of a blocking send depend on how busy the machine is.
    assert 2 < units.read < 3 * echo["read units"]
    assert 4 < units.requests < 3 * echo["requests to DynamoDB"]


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, ""),
        ({"failed": 2}, "2 failed"),
        ({"completed": 8.0}, "8 of 10 a second were completed"),
        ({"p95_s": 2.4}, "p95 was 2.4 s"),
    ],
)
def test_what_gives(fields: dict[str, float], part: str) -> None:
    """A failure, tasks that are not completed in time, and long waits end the raise of the rate."""
    values = {"rate": 10.0, "completed": 10.0, "p50_s": 0.1, "p95_s": 0.2, "failed": 0, **fields}
    told = Round(**values, used={"api": 0.1, "workers": 0.4})  # type: ignore[arg-type]
    assert told.gives == part
    assert told.busiest == "50 % (api 10 %, workers 40 %)"

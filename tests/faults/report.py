"""What many runs of one scenario have shown; a plugin prints the table of all of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import pytest

PROPERTY = "kill point"
Record = Callable[[str, object], None]
"""What `record_property` is."""


@dataclass(kw_only=True)
class Runs:
    """The runs of one kill point. A run that is stuck, or missed its point, has no recovery."""

    name: str
    runs: int = 0
    unreached: int = 0
    lost: int = 0
    doubled: int = 0
    stuck: int = 0
    recovery_s: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        faults = (self.unreached, self.lost, self.doubled, self.stuck)
        return self.runs > 0 and not any(faults) and not self.notes


def table(rows: Iterable[Runs]) -> Iterator[str]:
    """The lines of the table. `unreached` runs count as failed."""
    columns = ("runs", "unreached", "lost", "doubled", "stuck", "median s", "worst s")
    yield f"{'point':<34}" + "".join(f"{column:>11}" for column in columns)
    for row in rows:
        counts = (row.runs, row.unreached, row.lost, row.doubled, row.stuck)
        seconds = (statistics.median(row.recovery_s), max(row.recovery_s)) if row.recovery_s else ()
        times = [f"{each:.1f}" for each in seconds] or ["-", "-"]
        yield f"{row.name:<34}" + "".join(f"{cell!s:>11}" for cell in (*counts, *times))


def check(rows: Sequence[Runs], record_property: Record) -> None:
    """Record the rows; fail unless all are clean, with the table and what was noted."""
    for runs in rows:
        record_property(PROPERTY, json.dumps(asdict(runs)))
    notes = [f"{runs.name}: {note}" for runs in rows for note in runs.notes]
    assert all(runs.is_clean for runs in rows), "\n".join([*table(rows), *notes])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the kill points have shown, as its tests have recorded it."""
    ended = [each for how in ("passed", "failed") for each in terminalreporter.stats.get(how, [])]
    recorded = [pair for report in ended for pair in report.user_properties]
    rows = [Runs(**json.loads(str(value))) for name, value in recorded if name == PROPERTY]
    if rows:
        terminalreporter.section("kill points")
        for line in table(rows):
            terminalreporter.write_line(line)

"""The tables of `benchmarks.peers`."""

from __future__ import annotations

import datetime as dt
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers.scenarios import Figures
from benchmarks.stream_figures import percentile

BEGIN: Final = "<!-- the tables of make bench-peers begin -->"
END: Final = "<!-- the tables of make bench-peers end -->"
NONE: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row: its name, the values from which it is made, and the percentile that it shows."""

    title: str
    scenario: str
    """The name of the scenario that adds the values."""
    of: str
    share: int = 50
    digits: int = 0


def _rows(scenario: str, *rows: tuple[str, str, int, int]) -> list[Row]:
    """Return the rows of a scenario, each of a title, its values, a percentile and the digits."""
    return [
        Row(title=title, scenario=scenario, of=of, share=share, digits=digits)
        for title, of, share, digits in rows
    ]


ROWS: Final = (
    *_rows("echo", ("blocking echo, ms, p50", "echo", 50, 0), ("p95", "echo", 95, 0)),
    *_rows("first byte", ("first event of a stream, ms, p50", "first byte", 50, 0)),
    *_rows("throughput", ("completed tasks a second", "tasks a second", 50, 0)),
    *_rows(
        "chunks",
        ("chunk to a client of the same process, ms, p50", "chunk, same process", 50, 1),
        ("p95", "chunk, same process", 95, 1),
        ("chunk through another process, ms, p50", "chunk, another process", 50, 1),
        ("p95", "chunk, another process", 95, 1),
    ),
    *_rows(
        "1,600 chunks",
        ("1,600 chunks, s", "1,600 chunks", 50, 2),
        ("written for them, MB", "1,600 chunks, written", 50, 2),
    ),
    *_rows(
        "lists",
        ("first page of 50 with history, ms", "page with history", 50, 0),
        ("without history, ms", "page without history", 50, 0),
    ),
    *_rows(
        "cancels",
        ("cancel heard by an agent that emits, s", "cancel, an agent that emits", 50, 2),
        ("by a silent agent, s", "cancel, a silent agent", 50, 2),
        ("client knows of the cancel, s", "cancel, known", 50, 2),
    ),
    *_rows(
        "duplicates",
        (
            "starts of the agent for a message sent twice",
            "starts for a message sent twice",
            50,
            1,
        ),
    ),
    *_rows(
        "reconnect",
        ("chunks lost by a cut of 40, client resumes", "reconnect, chunks lost", 50, 0),
        ("doubled by it", "reconnect, chunks doubled", 50, 0),
    ),
    *_rows(
        "kills",
        ("tasks of a killed worker that finish, %", "killed tasks, finished", 50, 0),
        ("the last of them after, s", "recovery after a kill", 50, 0),
    ),
)


def tables(
    rounds: Sequence[Mapping[str, Figures]],
    failed: Mapping[str, str],
    versions: Mapping[str, str],
    command: str,
    today: dt.date,
) -> str:
    """Return the tables in Markdown: medians of the rounds, and why cells are empty."""
    names = [*versions]
    begun = f"{today}, `{command}`, {len(rounds)} rounds, {os.cpu_count()} cores"
    lines = [
        f"{begun}, load {os.getloadavg()[0]:.1f} at the end.",
        "",
        "| | " + " | ".join(f"{name} {versions[name]}".strip() for name in names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    for row in ROWS:
        cells = [
            cell(row, [figures[name] for figures in rounds if name in figures]) for name in names
        ]
        if any(text != NONE for text in cells):
            lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    reasons = [f"- {name}: {reason}" for name, reason in failed.items()]
    reasons += [
        f"- {name}, {scenario}: {reason}"
        for name in names
        for scenario, reason in _missing(name, rounds).items()
    ]
    if reasons:
        lines += ["", "Empty cells, and why:", "", *reasons]
    return "\n".join(lines) + "\n"


def cell(row: Row, figures: Sequence[Figures]) -> str:
    """Return the median, over the rounds, of a row's percentile.

    If the row's scenario failed in one of the rounds, there is no value.
    """
    if any(row.scenario in round_.missing for round_ in figures):
        return NONE
    values = [
        percentile(found, row.share) if len(found) > 1 else found[0]
        for found in (round_.values.get(row.of, []) for round_ in figures)
        if found
    ]
    return f"{statistics.median(values):,.{row.digits}f}" if values else NONE


def _missing(name: str, rounds: Sequence[Mapping[str, Figures]]) -> dict[str, str]:
    return {
        scenario: reason.replace("\n", " ")
        for figures in rounds
        if name in figures
        for scenario, reason in figures[name].missing.items()
    }


def write(page: Path, text: str) -> None:
    """Put the tables into the page, in place of an earlier run's."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")

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
    of: str
    share: int = 50
    digits: int = 0


ROWS: Final[Mapping[str, Sequence[Row]]] = {
    "echo": (
        Row(title="blocking echo, ms, p50", of="echo"),
        Row(title="p95", of="echo", share=95),
    ),
    "first byte": (Row(title="first event of a stream, ms, p50", of="first byte"),),
    "throughput": (Row(title="completed tasks a second", of="tasks a second"),),
    "chunks": (
        Row(
            title="chunk to a client of the same process, ms, p50",
            of="chunk, same process",
            digits=1,
        ),
        Row(title="p95", of="chunk, same process", share=95, digits=1),
        Row(title="chunk through another process, ms, p50", of="chunk, another process", digits=1),
        Row(title="p95", of="chunk, another process", share=95, digits=1),
    ),
    "1,600 chunks": (
        Row(title="1,600 chunks, s", of="1,600 chunks", digits=2),
        Row(title="written for them, MB", of="1,600 chunks, written", digits=2),
    ),
    "lists": (
        Row(title="first page of 50 with history, ms", of="page with history"),
        Row(title="without history, ms", of="page without history"),
    ),
    "cancels": (
        Row(
            title="cancel heard by an agent that emits, s",
            of="cancel, an agent that emits",
            digits=2,
        ),
        Row(title="by a silent agent, s", of="cancel, a silent agent", digits=2),
        Row(title="client knows of the cancel, s", of="cancel, known", digits=2),
    ),
    "duplicates": (
        Row(
            title="starts of the agent for a message sent twice",
            of="starts for a message sent twice",
            digits=1,
        ),
    ),
    "reconnect": (
        Row(title="chunks lost by a cut of 40, client resumes", of="reconnect, chunks lost"),
        Row(title="doubled by it", of="reconnect, chunks doubled"),
    ),
    "kills": (
        Row(title="tasks of a killed worker that finish, %", of="killed tasks, finished"),
        Row(title="the last of them starts again after, s", of="restart after a kill", digits=1),
        Row(title="and is completed after, s", of="recovery after a kill", digits=1),
    ),
}
"""The rows of each scenario, in the order of the table."""


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
    for scenario, rows in ROWS.items():
        figures_of = {name: _of(scenario, name, rounds) for name in names}
        for row in rows:
            cells = [cell(row, figures_of[name]) for name in names]
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


def _of(scenario: str, name: str, rounds: Sequence[Mapping[str, Figures]]) -> list[Figures]:
    """Return a system's figures of all rounds; none if its scenario failed in one of them."""
    figures = [round_[name] for round_ in rounds if name in round_]
    return [] if any(scenario in one.missing for one in figures) else figures


def cell(row: Row, figures: Sequence[Figures]) -> str:
    """Return the median, over the rounds, of a row's percentile."""
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

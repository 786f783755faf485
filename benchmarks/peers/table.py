"""The tables of `benchmarks.peers`."""

from __future__ import annotations

import datetime as dt
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers.scenarios import Figures
from benchmarks.peers.systems import PEERS, SYSTEMS
from benchmarks.stream_figures import percentile

BEGIN: Final = "<!-- the tables of make bench-peers begin -->"
END: Final = "<!-- the tables of make bench-peers end -->"
NONE: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row: its name, the values from which it is made, and the percentile that it shows."""

    title: str
    page: str = ""
    """Its name on the page; empty where it stands in the whole table alone."""
    of: str
    share: int = 50
    digits: int = 0


ROWS: Final[Mapping[str, Sequence[Row]]] = {
    "echo": (
        Row(title="blocking echo, ms, p50", page="echo, ms", of="echo"),
        Row(title="p95", of="echo", share=95),
    ),
    "first byte": (
        Row(title="first event of a stream, ms, p50", page="first event, ms", of="first byte"),
    ),
    "throughput": (
        Row(title="completed tasks a second", page="tasks a second", of="tasks a second"),
    ),
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
    "800 chunks": (
        Row(title="800 chunks, s", page="800 chunks, s", of="800 chunks", digits=2),
        Row(title="written for them, MB", of="800 chunks, written", digits=2),
    ),
    "lists": (
        Row(
            title="first page of 50 with history, ms", page="page of 50, ms", of="page with history"
        ),
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
        Row(title="ended tasks that a kill leaves, %", of="ended tasks, kept"),
        Row(
            title="tasks of a killed process that finish, %",
            page="finished after a kill, %",
            of="killed tasks, finished",
        ),
        Row(title="the last of them starts again after, s", of="restart after a kill", digits=1),
        Row(title="and is completed after, s", of="recovery after a kill", digits=1),
    ),
}
"""The rows of each scenario, in the order of the table."""
COMPARED: Final = ("echo", "first byte", "throughput", "800 chunks", "lists")
"""The scenarios whose rows are compared with the references."""
REFERENCES: Final = ("SDK, SQLite", "SDK, memory")


def tables(
    rounds: Sequence[Mapping[str, Figures]],
    failed: Mapping[str, str],
    versions: Mapping[str, str],
    command: str,
    today: dt.date,
) -> str:
    """Return the whole table of a run: systems, medians of the rounds, ratios, missing cells."""
    lines = [_begun(rounds, command, today), "", *_systems(versions, today)]
    lines += ["", *_header([f"{name} {versions[name]}".strip() for name in versions])]
    lines += _rows(
        (row, [cell(row, _of(scenario, name, rounds)) for name in versions])
        for scenario, rows in ROWS.items()
        for row in rows
    )
    for peer in REFERENCES:
        if peer in versions:
            lines += ["", f"As a share of {peer}, the median of the ratios of each round:", ""]
            lines += [*_header([*versions]), *_rows(_shares(peer, [*versions], rounds))]
    reasons = [f"- {name}: {reason}" for name, reason in failed.items()]
    reasons += [
        f"- {name}, {scenario}: {reason}"
        for name in versions
        for scenario, reason in _missing(name, rounds).items()
    ]
    if reasons:
        lines += ["", "Empty cells, and why:", "", *reasons]
    return "\n".join(lines) + "\n"


def _begun(rounds: Sequence[object], command: str, today: dt.date) -> str:
    begun = f"{today}, `{command}`, {len(rounds)} rounds, {os.cpu_count()} cores"
    return f"{begun}, load {os.getloadavg()[0]:.1f} at the end."


def summary(
    rounds: Sequence[Mapping[str, Figures]],
    versions: Mapping[str, str],
    command: str,
    today: dt.date,
) -> str:
    """Return the part that the page shows: a row a system, each figure with its ratio."""
    own, peer = [*versions], REFERENCES[0]
    shares = dict(_shares(peer, own, rounds)) if peer in versions else {}
    shown = [
        (row, [cell(row, _of(scenario, name, rounds)) for name in own], shares.get(row))
        for scenario, rows in ROWS.items()
        for row in rows
        if row.page
    ]
    lines = [*_systems(versions, today), ""]
    lines += [_begun(rounds, command, today), f"In parentheses: the share of {peer}.", ""]
    lines += _header([row.page for row, _, _ in shown])
    for number, name in enumerate(own):
        cells = [
            figures[number] + (f" ({ratios[number]})" if ratios and figures[number] != NONE else "")
            for _, figures, ratios in shown
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _systems(versions: Mapping[str, str], today: dt.date) -> Iterator[str]:
    """Yield the table that says what runs in each column, and what that keeps."""
    yield from ("| column | what runs | after a kill | after a power cut |", "|---|---|---|---|")
    for name, version in versions.items():
        column, of = SYSTEMS[name], ""
        if column.peer:
            peer = PEERS[column.peer]
            of = f", [{peer.package} {version}]({peer.url}), {today}"
        yield f"| {name}{of} | {column.runs} | {column.killed} | {column.power} |"


def _header(names: Sequence[str]) -> list[str]:
    return ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]


def _rows(rows: Iterable[tuple[Row, Sequence[str]]]) -> Iterator[str]:
    """Yield the rows that have a figure."""
    for row, cells in rows:
        if any(text != NONE for text in cells):
            yield f"| {row.title} | " + " | ".join(cells) + " |"


def _shares(
    peer: str, names: Sequence[str], rounds: Sequence[Mapping[str, Figures]]
) -> Iterator[tuple[Row, list[str]]]:
    for scenario in COMPARED:
        for row in ROWS[scenario]:
            cells = []
            for name in names:
                pairs = zip(_of(scenario, name, rounds), _of(scenario, peer, rounds), strict=False)
                values = [(_value(row, own), _value(row, other)) for own, other in pairs]
                shares = [own / other for own, other in values if own and other]
                cells.append(f"{statistics.median(shares):.2f}" if shares else NONE)
            yield row, cells


def _of(scenario: str, name: str, rounds: Sequence[Mapping[str, Figures]]) -> list[Figures]:
    """Return a system's figures of all rounds; none if its scenario failed in one of them."""
    figures = [round_[name] for round_ in rounds if name in round_]
    return [] if any(scenario in one.missing for one in figures) else figures


def cell(row: Row, figures: Sequence[Figures]) -> str:
    """Return the median, over the rounds, of a row's percentile."""
    values = [value for value in (_value(row, one) for one in figures) if value is not None]
    return f"{statistics.median(values):,.{row.digits}f}" if values else NONE


def _value(row: Row, figures: Figures) -> float | None:
    """Return a round's value of a row; None if it has none."""
    found = figures.values.get(row.of)
    if not found:
        return None
    return percentile(found, row.share) if len(found) > 1 else found[0]


def _missing(name: str, rounds: Sequence[Mapping[str, Figures]]) -> dict[str, str]:
    return {
        scenario: reason
        for figures in rounds
        if name in figures
        for scenario, reason in figures[name].missing.items()
    }


def write(page: Path, text: str) -> None:
    """Put the tables into the page, in place of an earlier run's."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")

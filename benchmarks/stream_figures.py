"""The figures of `benchmarks.stream`, from what clients have seen and servers have noted."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stream_clients import Load, Stream

SETTLED_S = 10.0
"""Seconds of silence after which a stream counts as idle."""

TARGET_STREAMS = 5
TARGET_P50_MS = 40.0
TARGET_P95_MS = 90.0
"""The target from the agent's `enqueue_event` to the client, in milliseconds."""
TARGET_IDLE_READS = 1.2

NS = 1_000_000_000
LOAD_BEFORE = os.getloadavg()[0]


@dataclass(frozen=True, kw_only=True)
class Notes:
    """The notes of the servers."""

    commits: Mapping[tuple[str, int], int]
    reads: Sequence[tuple[int, int]]

    @classmethod
    def load(cls, path: Path) -> Notes:
        """Read the log of the probes."""
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        return cls(
            commits={(f[1], int(f[2])): int(f[3]) for f in lines if f[0] == "commit"},
            reads=[(int(f[1]), int(f[2])) for f in lines if f[0] == "read"],
        )


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One line of the report; times in milliseconds."""

    name: str
    streams: int
    since_commit: Sequence[float]
    since_enqueue: Sequence[float]
    active_reads: float
    idle_reads: float | None
    read_times: Sequence[float]


def figures(name: str, seen: Sequence[Stream], notes: Notes, load: Load) -> Figures:
    """Return the figures from what the clients have seen and the servers have noted."""
    events = [(s, c) for s in seen for c in s.chunks if c.received_ns]
    active = (
        max(s.chunks[0].enqueued_ns for s in seen),
        min(s.chunks[-1].enqueued_ns for s in seen),
    )
    last_ns = max(s.chunks[-1].enqueued_ns for s in seen)
    idle = (last_ns + int(SETTLED_S * NS), min(s.ended_ns for s in seen))
    during = [ns / 1e6 for at, ns in notes.reads if active[0] <= at < active[1]]
    has_silence = load.silence_s > SETTLED_S
    return Figures(
        name=name,
        streams=len(seen),
        since_commit=[
            (c.received_ns - notes.commits[s.task_id, c.number]) / 1e6 for s, c in events
        ],
        since_enqueue=[(c.received_ns - c.enqueued_ns) / 1e6 for _, c in events],
        active_reads=reads_a_stream_second(notes, active, len(seen)),
        idle_reads=reads_a_stream_second(notes, idle, len(seen)) if has_silence else None,
        read_times=during,
    )


def reads_a_stream_second(notes: Notes, window: tuple[int, int], streams: int) -> float:
    """Return the reads in a window of time, for each stream and second."""
    start, end = window
    assert end > start, "the streams did not overlap"
    reads = sum(start <= at < end for at, _ in notes.reads)
    return reads / streams / ((end - start) / NS)


def percentile(values: Sequence[float], share: int) -> float:
    """Return the value below which `share` percent of the values lie."""
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def report(lines: Sequence[Figures], alone: Sequence[float]) -> None:
    """Print the table."""
    print(
        f"\n{'':<34}{'streams':>8}{'commit to client, ms':>23}{'enqueue to client, ms':>25}"
        f"{'reads/stream-s':>17}{'read, ms':>14}\n"
        f"{'':<34}{'':>8}{'p50':>9}{'p95':>7}{'p99':>7}{'p50':>11}{'p95':>7}{'p99':>7}"
        f"{'active':>10}{'idle':>7}{'p50':>8}{'p95':>6}"
    )
    for line in lines:
        commit = [percentile(line.since_commit, share) for share in (50, 95, 99)]
        enqueue = [percentile(line.since_enqueue, share) for share in (50, 95, 99)]
        has_reads = len(line.read_times) > 1
        read = [f"{percentile(line.read_times, s):.1f}" if has_reads else "-" for s in (50, 95)]
        idle = "-" if line.idle_reads is None else f"{line.idle_reads:.2f}"
        print(
            f"{line.name:<34}{line.streams:>8}{commit[0]:>9.0f}{commit[1]:>7.0f}{commit[2]:>7.0f}"
            f"{enqueue[0]:>11.0f}{enqueue[1]:>7.0f}{enqueue[2]:>7.0f}"
            f"{line.active_reads:>10.1f}{idle:>7}{read[0]:>8}{read[1]:>6}"
        )
    print(
        "\nThe same Query on DynamoDB Local without other requests: p50"
        f" {percentile(alone, 50):.1f} ms, p95 {percentile(alone, 95):.1f} ms."
        f" Load of the machine (1 min): before {LOAD_BEFORE:.1f},"
        f" now {os.getloadavg()[0]:.1f}, on {os.cpu_count()} cores."
    )


def missed(lines: Sequence[Figures]) -> list[str]:
    """Return a sentence for each target that was missed."""
    said = []
    for line in lines:
        if line.idle_reads is not None and line.idle_reads > TARGET_IDLE_READS:
            said.append(f"{line.streams} streams: {line.idle_reads:.2f} reads/s when idle")
        if line.streams == TARGET_STREAMS:
            p50, p95 = (percentile(line.since_enqueue, share) for share in (50, 95))
            if p50 > TARGET_P50_MS or p95 > TARGET_P95_MS:
                said.append(f"{line.streams} streams: p50 {p50:.0f} ms, p95 {p95:.0f} ms")
    return said

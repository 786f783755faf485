"""This project beside its peers, in one run: `python -m benchmarks.peers [--short]`.

All systems run from the beginning to the end, with one agent (`benchmarks.peers.agent`) and one
client (`benchmarks.peers.client`). A round measures one scenario after the other, each with one
system after the other, so that a slow minute of the machine meets all of them; the next round
begins with another system. Kills come once, at the end.

PostgreSQL and Redis are those of Debian's packages, and gone when the run ends
(`benchmarks.peers.services`). `make bench-peers` makes the peers' environments before. Only systems
that did the same work are compared: a system that does not start, or does not answer a send, has an
empty column; a scenario that it does not do correctly in every round has an empty cell. The reasons
stand below the table.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import httpx

import a2a_serverless
from a2a_serverless.clock import SystemClock
from benchmarks.peers import scenarios, table
from benchmarks.peers.client import WrongAnswerError
from benchmarks.peers.scenarios import LONG, SHORT, Figures, Size, Trial
from benchmarks.peers.services import ServiceMissingError
from benchmarks.peers.systems import SYSTEMS, Column, Services
from benchmarks.processes import ROOT
from tests.support.emulators import EmulatorMissingError, EmulatorStartError

ENVIRONMENTS = ROOT / "build" / "peers"
PAGE = ROOT / "docs/understand/benchmarks.md"
ALL = ROOT / "benchmarks/peers/figures.md"
"""The whole table of the run of which the page shows a few rows."""
FAILURES = (
    EmulatorMissingError,
    EmulatorStartError,
    FileNotFoundError,
    RuntimeError,
    ServiceMissingError,
    TimeoutError,
    WrongAnswerError,
    httpx.HTTPError,
    subprocess.SubprocessError,
)
"""Errors that leave a column or a cell empty; any other error is a fault of the benchmark."""


@dataclass(kw_only=True)
class Comparison:
    """The figures of the systems, a mapping for each round; and why other systems have none."""

    versions: dict[str, str] = field(default_factory=dict)
    rounds: list[dict[str, Figures]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def compare(
    services: Services, chosen: Mapping[str, Column], size: Size, rounds: int
) -> Comparison:
    """Start all systems, and run all rounds with those that answer a send."""
    done = Comparison(versions={name: version_of(services, name) for name in chosen})
    trials: dict[str, Trial] = {}
    with ExitStack() as stack:
        for number, (name, column) in enumerate(chosen.items()):
            (folder := services.folder / str(number)).mkdir()
            start = partial(column.start, services, folder)
            try:
                trials[name] = Trial(system=stack.enter_context(start()), restart=start, size=size)
                asyncio.run(scenarios.run(scenarios.check, trials[name]))
            except FAILURES as error:
                trials.pop(name, None)
                done.failed[name] = said_of(error)
            say("start", name, done.failed.get(name, "done"))
        for number in range(rounds):
            first = number % max(len(trials), 1)
            turns = [*trials.items()][first:] + [*trials.items()][:first]
            done.rounds.append({name: Figures() for name in trials})
            for scenario in scenarios.SCENARIOS:
                if scenario != "kills":
                    for name, trial in turns:
                        if any(scenario in it[name].missing for it in done.rounds):
                            continue
                        began = time.monotonic()
                        measure(scenario, trial, done.rounds[-1][name])
                        took = f"{time.monotonic() - began:.1f} s"
                        say(f"round {number + 1}, {scenario}", name, took)
        # At the same time: what is measured is the time for which they wait.
        with ThreadPoolExecutor(len(trials)) as pool:
            kill = partial(measure, "kills")
            list(pool.map(kill, trials.values(), done.rounds[-1].values()))
    return done


def measure(scenario: str, trial: Trial, figures: Figures) -> None:
    """Run a scenario; one that fails has a reason instead of figures."""
    own = replace(trial, figures=Figures())  # a scenario that fails leaves no value
    try:
        asyncio.run(scenarios.run(scenarios.SCENARIOS[scenario], own))
    except FAILURES as error:
        figures.missing[scenario] = said_of(error)
    else:
        figures.values.update(own.figures.values)


def said_of(error: Exception) -> str:
    """Return the reason for an empty cell."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]


def version_of(services: Services, system: str) -> str:
    """Return the version of a system; empty if its environment is missing."""
    if not (peer := SYSTEMS[system].peer):
        return a2a_serverless.__version__
    try:
        return services.version(peer)
    except (OSError, subprocess.SubprocessError):
        return ""


def say(when: str, what: str, text: str) -> None:
    """Print a line for the person who waits."""
    print(f"{when}, {what}: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Compare, print the table, and with `--write` keep it, with a part of it on the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="fewer messages and rounds")
    parser.add_argument("--rounds", type=int, help="by default 7, and 2 with --short")
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, metavar="SYSTEM")
    parser.add_argument(
        "--write",
        action="store_true",
        help="also write the table into figures.md, and a part of it into the page of benchmarks",
    )
    options = parser.parse_args()
    size, rounds = (SHORT, options.rounds or 2) if options.short else (LONG, options.rounds or 7)
    chosen = {name: SYSTEMS[name] for name in options.only or SYSTEMS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user
        services = Services(folder=Path(folder), environments=ENVIRONMENTS, running=stack)
        done = compare(services, chosen, size, rounds)
    today = dt.datetime.fromtimestamp(SystemClock().now_ms() / 1000, tz=dt.UTC).date()
    command = "make bench-peers" + (" SHORT=1" if options.short else "")
    text = table.tables(done.rounds, done.failed, done.versions, command, today)
    print(text)
    if options.write:
        ALL.write_text(f"# All figures of benchmarks.md\n\n{text}", encoding="utf-8")
        table.write(PAGE, table.summary(done.rounds, done.versions, command, today))
    return 1 if any("a2a-serverless" in name for name in done.failed) else 0


if __name__ == "__main__":
    sys.exit(main())

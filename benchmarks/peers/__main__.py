"""This project beside its peers, in one run: `python -m benchmarks.peers [--short]`.

Each round starts one system after the other, with one agent (`benchmarks.peers.agent`) and one
client (`benchmarks.peers.client`), and ends it again; the next round begins with another one.
PostgreSQL and Redis are those of Debian's packages, and gone when the run ends
(`benchmarks.peers.services`). `make bench-peers` makes the peers' environments before. Only systems
that did the same work are compared: a system that does not start, or does not stream a short task
correctly, has an empty column; a scenario that it does not do correctly in every round has an empty
cell. The reasons stand below the table.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

import a2a_serverless
from a2a_serverless.clock import SystemClock
from benchmarks.peers import scenarios, table
from benchmarks.peers.client import WrongAnswerError, connected
from benchmarks.peers.scenarios import LONG, SHORT, Figures, Size, Trial
from benchmarks.peers.services import Packages, ServiceMissingError, postgres, redis
from benchmarks.peers.systems import PACKAGES, PEERS, SYSTEMS, Services, Start, System
from benchmarks.processes import ROOT
from tests.support.emulators import EmulatorMissingError, EmulatorStartError

ENVIRONMENTS = ROOT / "build" / "peers"
PAGE = ROOT / "docs/understand/benchmarks.md"
FAILURES = (
    EmulatorMissingError,
    EmulatorStartError,
    FileNotFoundError,
    RuntimeError,
    TimeoutError,
    WrongAnswerError,
    httpx.HTTPError,
    subprocess.SubprocessError,
)
"""Errors that keep a system out of the table; any other error is a fault of the benchmark."""


@dataclass(kw_only=True)
class Comparison:
    """The figures of the systems, a mapping for each round; and why other systems have none."""

    versions: dict[str, str] = field(default_factory=dict)
    rounds: list[dict[str, Figures]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def compare(services: Services, chosen: Mapping[str, Start], size: Size, rounds: int) -> Comparison:
    """Run all rounds; a system that fails once is left out of all of them."""
    done = Comparison(versions={name: version_of(services, name) for name in chosen})
    names = list(chosen)
    for number in range(rounds):
        done.rounds.append({})
        first = number % len(names)
        for name in names[first:] + names[:first]:
            if name in done.failed:
                continue
            folder = services.folder / f"{number}-{names.index(name)}"
            folder.mkdir()
            try:
                with chosen[name](services, folder) as running:
                    figures = asyncio.run(measure(running, size))
            except FAILURES as error:
                done.failed[name] = f"{type(error).__name__}: {error}".replace("\n", " ")[:400]
            else:
                done.rounds[-1][name] = figures
            say(number, name, done.failed.get(name, "done"))
    for figures_of in done.rounds:
        for name in done.failed:
            figures_of.pop(name, None)
    return done


@contextmanager
def services_of_a_run() -> Iterator[Services]:
    """Start PostgreSQL and Redis for the block, in a folder that is removed with it.

    Raises:
        ServiceMissingError: one of them is not available, or did not start.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL runs as another user
        packages = Packages(folder)
        yield Services(
            folder=folder,
            environments=ENVIRONMENTS,
            postgres=stack.enter_context(postgres(packages, folder)),
            redis=stack.enter_context(redis(packages, folder)),
        )


async def measure(running: System, size: Size) -> Figures:
    """Run the scenarios against a running system."""
    async with connected() as http:
        return await scenarios.run(Trial(system=running, http=http, size=size))


def version_of(services: Services, system: str) -> str:
    """Return the version of a system; empty if its environment is missing."""
    if system not in PEERS:
        return a2a_serverless.__version__
    peer = PEERS[system]
    try:
        return services.version(peer, PACKAGES[peer])
    except (OSError, subprocess.SubprocessError):
        return ""


def say(number: int, system: str, text: str) -> None:
    """Print a line for the person who waits."""
    print(f"round {number + 1}, {system}: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Compare, print the table, and with `--write` put it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="a few minutes; no process is killed")
    parser.add_argument("--rounds", type=int, help="by default 3, and 1 with --short")
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, metavar="SYSTEM")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/understand/benchmarks.md"
    )
    options = parser.parse_args()
    size, rounds = (SHORT, options.rounds or 1) if options.short else (LONG, options.rounds or 3)
    chosen = {name: SYSTEMS[name] for name in options.only or SYSTEMS}
    try:
        with services_of_a_run() as services:
            done = compare(services, chosen, size, rounds)
    except ServiceMissingError as error:
        print(error, file=sys.stderr)
        return 1
    today = dt.datetime.fromtimestamp(SystemClock().now_ms() / 1000, tz=dt.UTC).date()
    command = "make bench-peers" + (" SHORT=1" if options.short else "")
    text = table.tables(done.rounds, done.failed, done.versions, command, today)
    print(text)
    if options.write:
        table.write(PAGE, text)
    return 1 if any("a2a-serverless" in name for name in done.failed) else 0


if __name__ == "__main__":
    sys.exit(main())

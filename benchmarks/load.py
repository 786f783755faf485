"""How many tasks a second the emulators take: `python -m benchmarks.load`; the page `load`.

Two `a2a-serverless api` and two workers on DynamoDB Local and fauxqs get blocking echoes at a rate
that is raised until something gives: tasks end later than they are sent, wait too long, or fail.
Prints for each rate what was completed, how long it took, and who used the processor. Then a
quarter of what was taken is sent again to processes that count their units, as counting reads each
item twice more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.echo import AGENT, echo, processor_s
from benchmarks.echo_probe import METER
from benchmarks.processes import running
from benchmarks.stream import CARD, provision
from tests.support.emulators import dynamodb_local, fauxqs

STEP = 1.5
"""How many times as high each next rate is."""
LATE_S = 2.0
"""An echo that takes longer waits."""
KEPT = 0.95
"""The share of the sent tasks that must be completed in the time in which they were sent."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What became of a rate."""

    rate: float
    completed: float
    """Tasks a second."""
    p50_s: float
    p95_s: float
    failed: int
    used: Mapping[str, float]
    """Shares of all cores, by who used them."""

    @property
    def gives(self) -> str:
        """What gave at this rate; empty: nothing."""
        if self.failed:
            return f"{self.failed} failed"
        if self.completed < KEPT * self.rate:
            return f"{self.completed:.0f} of {self.rate:.0f} a second were completed"
        return f"p95 was {self.p95_s:.1f} s" if self.p95_s > LATE_S else ""

    @property
    def busiest(self) -> str:
        """Who used the processor, and how much of all cores were used."""
        shares = ", ".join(f"{who} {100 * share:.0f} %" for who, share in self.used.items())
        return f"{100 * sum(self.used.values()):.0f} % ({shares})"


@dataclass(frozen=True, kw_only=True)
class Units:
    """What one task used, by the count of all processes."""

    write: float
    read: float
    requests: float


@dataclass(frozen=True, kw_only=True)
class System:
    """Running processes: their addresses, and their ids by who they are."""

    urls: Sequence[str]
    pids: Mapping[str, Sequence[int]]


@contextmanager
def started(folder: Path, count: int, *, counts: bool = False) -> Iterator[System]:
    """Start emulators, `count` processes of the API and as many workers, which count their units.

    A process writes what it has counted into the folder when it ends.
    """
    with ExitStack() as stack:
        dynamodb, sqs = stack.enter_context(dynamodb_local()), stack.enter_context(fauxqs())
        names = provision({**dynamodb.environment(), **sqs.environment()})
        if counts:
            names |= {METER: str(folder)}
        probe = [sys.executable, "-m", "benchmarks.echo_probe", str(folder / "requests")]
        commands = {
            "api": ([*probe, "api", "--card", str(CARD), "--port", "0"], r"A2A at (\S+),"),
            "workers": (
                [*probe, "worker", "--agent", AGENT, "--concurrency", "10"],
                "(turns at a time)",
            ),
        }
        servers = {
            who: [stack.enter_context(running(*it, folder, **names)) for _ in range(count)]
            for who, it in commands.items()
        }
        pids = {who: [each.process.pid for each in of_it] for who, of_it in servers.items()}
        others = {"DynamoDB Local": [dynamodb.pid], "fauxqs": [sqs.pid], "client": [os.getpid()]}
        yield System(urls=[each.said for each in servers["api"]], pids={**others, **pids})


async def at_rate(system: System, rate: float, seconds: float) -> Round:
    """Send blocking echoes at a rate for so long; wait for all of their ends."""
    before = {who: sum(map(processor_s, of_it)) for who, of_it in system.pids.items()}
    began = time.monotonic()
    times = list[float]()
    failed = 0

    async def one(number: int, http: httpx.AsyncClient) -> None:
        nonlocal failed
        due = began + number / rate
        await asyncio.sleep(due - time.monotonic())
        try:
            await echo(http, system.urls[number % len(system.urls)])
        except (httpx.HTTPError, AssertionError, LookupError):
            failed += 1
        times.append(time.monotonic() - due)

    number = round(rate * seconds)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(trust_env=False, timeout=60, limits=limits) as http:
        await asyncio.gather(*(one(each, http) for each in range(number)))
    passed_s = time.monotonic() - began
    cores = passed_s * (os.cpu_count() or 1)
    used = {
        who: (sum(map(processor_s, of_it)) - before[who]) / cores
        for who, of_it in system.pids.items()
    }
    # The last task is sent one gap before the end; a quick one ends soon after it.
    late_s = max(0.0, passed_s - seconds - statistics.median(times))
    return Round(
        rate=rate,
        completed=(number - failed) / (seconds + late_s),
        p50_s=statistics.median(times),
        p95_s=sorted(times)[int(0.95 * (number - 1))],
        failed=failed,
        used=used,
    )


def raised(system: System, seconds: float, first: float, most: float) -> list[Round]:
    """Raise the rate from the first one until something gives, or it is `most`."""
    asyncio.run(at_rate(system, first, 1))  # the first ones make the connections
    rounds, rate = list[Round](), first
    while rate <= most and not (rounds and rounds[-1].gives):
        rounds.append(asyncio.run(at_rate(system, rate, seconds)))
        print(line(rounds[-1]), flush=True)
        rate *= STEP
    return rounds


def line(each: Round) -> str:
    """Return a row of the table."""
    cells = [f"{each.rate:.1f}", f"{each.completed:.1f}"]
    cells += [f"{1000 * each.p50_s:.0f}", f"{1000 * each.p95_s:.0f}", each.busiest, each.gives]
    return f"| {' | '.join(cells)} |"


def counted(folder: Path, count: int, rate: float, seconds: float) -> Units:
    """Send echoes to processes that count, and return what one has used.

    Raises:
        RuntimeError: a task failed.
    """
    with started(folder, count, counts=True) as system:
        told = asyncio.run(at_rate(system, rate, seconds))
    if told.failed:
        raise RuntimeError(f"{told.failed} tasks failed while units were counted")
    tasks = round(rate * seconds)
    found = [json.loads(path.read_text()) for path in folder.glob("*.units")]
    total = {name: sum(each[name] for each in found) / tasks for name in found[0]}
    return Units(write=total["write"], read=total["read"], requests=total["requests"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure on emulators that are started for it, and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=2, help="of the API, and of workers")
    parser.add_argument("--seconds", type=float, default=15, help="how long each rate lasts")
    parser.add_argument("--first", type=float, default=5, help="the first rate")
    parser.add_argument("--most", type=float, default=1000, help="the highest rate")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("| sent a second | completed | p50, ms | p95, ms | processor | what gave |")
        print("|---:|---:|---:|---:|---|---|")
        with started(folder, options.processes) as system:
            rounds = raised(system, options.seconds, options.first, options.most)
        taken = max(each.completed for each in rounds if not each.failed)
        units = counted(folder, options.processes, max(1.0, taken / 4), options.seconds)
    print(
        f"\nAt most {taken:.0f} tasks a second; one task: {units.write:.2f} write units, "
        f"{units.read:.2f} read units, {units.requests:.1f} requests to DynamoDB; so "
        f"{taken * units.write:,.0f} write units and {taken * units.read:,.0f} read units a second."
        f"\nLoad of the machine (1 min): {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What waiting costs at one task a second: `python -m benchmarks.cost_shared`.

Each `--setting` takes five minutes. Clients send a task every second, as in the profiles
`30 s agent` (`--load waiting`, the default) or `streamed` of `benchmarks.cost`. Deployed handlers
and workers run in one process, over DynamoDB Local and an SQS emulator. Calls are counted. The time
of the worker's invocations is measured until the last one has returned, and so is the time from a
task's creation to the start of its turn. Fargate's time is computed: it is that of the workers that
fargate.yaml would keep for the load.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import fmean

from samtranslator.yaml_helper import yaml_parse

from a2a_serverless_tools.operate.prices import MILLION
from benchmarks import cost
from benchmarks.cost import (
    CHUNKS,
    KEPT_DAYS,
    LOOK_EVERY_S,
    OWN_S,
    STREAM_S,
    THINK_S,
    Profile,
    Run,
)
from benchmarks.cost_prices import Counts, bill
from benchmarks.cost_system import DELIVERY_S, System, counted_system
from benchmarks.cost_workers import PLACES, SETTINGS, SOURCE_POLL_S, Setting, workers
from tests.support.template import TEMPLATE

RATE = 1.0
"""Tasks a second."""
LOAD_S = 240.0
"""Seconds in which clients send; invocations that end later are also paid to their end."""
FILLED = 0.7
"""The share of its places at which fargate.yaml starts another worker."""
LINES = {
    "1": "one turn each",
    "10": "shared turns (N=10, 1/s)",
    "25": "shared turns (N=25, 1/s)",
    "external": "external workers",
}


@dataclass(frozen=True, kw_only=True)
class Load:
    """What each of the clients does."""

    name: str
    client: Run
    """One client's task, to its end; returns the task's id."""
    turn_s: float
    """Seconds that its turn takes."""
    waits: Mapping[str, float] = field(default_factory=dict)
    """Seconds that invocations of functions beside the worker wait for one task."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The usage of one task of a load, and the starts of all turns."""

    used: Counts
    starts_ms: Sequence[float]
    """Milliseconds from the tasks' creation to the start of their turns, in ascending order."""

    def start_ms(self, share: float) -> float:
        """Return the milliseconds within which a share of the turns had started."""
        return self.starts_ms[min(len(self.starts_ms) - 1, int(share * len(self.starts_ms)))]


def looking(system: System) -> str:
    """Send a task and look at it until it has ended."""
    body = cost.send(f"think {THINK_S:g}", returnImmediately=True)
    task = system.request("POST", "/message:send", body)["task"]
    while task["status"]["state"] != "TASK_STATE_COMPLETED":
        time.sleep(LOOK_EVERY_S)
        task = system.request("GET", f"/tasks/{task['id']}")
    return str(task["id"])


def listening(system: System) -> str:
    """Send a task and read its stream to its end."""
    return system.stream(cost.send(f"stream {CHUNKS} {STREAM_S:g}"))


LOADS = {
    "waiting": Load(name=f"{THINK_S:g} s agent", client=looking, turn_s=THINK_S),
    "streamed": Load(
        name=f"streamed answer of {CHUNKS} chunks",
        client=listening,
        turn_s=STREAM_S,
        waits={"stream": DELIVERY_S + STREAM_S},
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the settings and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--load", choices=[*LOADS], default="waiting", help="default: %(default)s")
    parser.add_argument("--setting", action="append", choices=[*SETTINGS], help="default: each")
    parser.add_argument("--seconds", type=float, default=LOAD_S, help="of the load")
    chosen = parser.parse_args(arguments)
    names = chosen.setting or list(SETTINGS)
    load = LOADS[chosen.load]
    with counted_system() as system:
        system.wake(cost.echo(system))  # makes the connections
        found: list[Measured] = []
        for name in names:
            if found:  # the setting before may still hold a delivery, which no worker would get
                time.sleep(SOURCE_POLL_S)
            found.append(measured(system, SETTINGS[name], load, chosen.seconds))
    print("\n".join(table(load, [SETTINGS[name].name for name in names], found)))
    for name, one in zip(names, found, strict=True):
        print(f"\n{load.name}, {LINES[name]}: ${paid(one.used):,.0f} a million")
    return 0


def measured(system: System, setting: Setting, load: Load, seconds: float) -> Measured:
    """Return what one task used, on average over a load."""
    tasks = round(seconds * RATE)
    with system.counting() as tally:
        waiting = RATE * load.turn_s
        with workers(system, setting, waiting) as billed, ThreadPoolExecutor(128) as clients:
            began = time.monotonic()
            sent = []
            for number in range(tasks):
                time.sleep(max(0.0, began + number / RATE - time.monotonic()))
                sent.append(clients.submit(load.client, system))
            ids = [one.result() for one in sent]
        system.wake(*ids)
    own_s = OWN_S["worker"] * tally.invocations["worker"]  # it is in what was measured
    waits = {**load.waits, "worker": (sum(billed.seconds) - own_s) / tasks}
    profile = Profile(name=setting.name, run=load.client, tasks=tasks, waits=waits)
    one = cost.counts(tally, profile, cost.memories())
    each = f"mean {fmean(billed.seconds):.0f} s" if billed.seconds else "none"
    print(
        f"{setting.name}: {tasks} tasks, {tally.invocations['worker']} invocations of the worker"
        f" ({each}), {sum(billed.seconds):.0f} s billed",
        file=sys.stderr,
    )
    used = one if setting.turns else replace(one, **fargate(load.turn_s))
    return Measured(used=used, starts_ms=sorted(tally.logs.values("TimeQueued")))


def fargate(turn_s: float = THINK_S) -> dict[str, float]:
    """Return hours of CPU, memory and a public address of a task this long, at the load's rate."""
    text = TEMPLATE.with_name("fargate.yaml").read_text(encoding="utf-8")
    parameters = yaml_parse(text)["Parameters"]
    running = ceil(RATE * turn_s / (FILLED * PLACES))
    hours = max(running, parameters["LeastWorkers"]["Default"]) / RATE / 3600
    return {
        "vcpu_hours": hours * int(parameters["Cpu"]["Default"]) / 1024,
        "gb_hours": hours * int(parameters["Memory"]["Default"]) / 1024,
        "address_hours": hours,
    }


def paid(one: Counts) -> float:
    """Return the dollars of a million tasks."""
    return sum(bill(one, times=MILLION, kept_days=KEPT_DAYS).values())


def table(load: Load, names: Sequence[str], found: Sequence[Measured]) -> Iterator[str]:
    """Yield the table of what one task uses, how soon its turn starts, and what a million cost."""
    used = [one.used for one in found]
    yield from cost.header(f"{load.name}, {RATE:g} a second: one task", names)
    yield cost.row("write units", [one.write_units for one in used])
    yield cost.row("read units", [one.read_units for one in used])
    yield cost.row("requests to SQS", [one.sqs_requests for one in used])
    yield cost.row("Lambda invocations", [one.invocations for one in used])
    yield cost.row("Lambda GB-seconds", [one.gb_seconds for one in used])
    for share in (0.5, 0.95):
        name = f"ms until its turn starts, p{100 * share:.0f}"
        yield cost.row(name, [one.start_ms(share) for one in found])
    yield ""
    yield from cost.per_million(names, used)


if __name__ == "__main__":
    sys.exit(main())

"""What tasks cost: `python -m benchmarks.cost`. Takes two minutes, and prints Markdown.

Three profiles of a task run on the deployed handlers, over DynamoDB Local and an SQS emulator, and
every call to AWS is counted. Transactions are counted by DynamoDB's rule (`benchmarks.meter`).
Values that cannot be counted here are assumed, and named in `ASSUMED`: how long invocations take
besides their agent, and what Lambda and API Gateway do by themselves.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from samtranslator.yaml_helper import yaml_parse

from a2a_serverless.storage.layout import BY_DUE, BY_SCOPE
from a2a_serverless_tools.local.template import find_template
from benchmarks import cost_prices as prices
from benchmarks.cost_prices import MILLION, SECONDS_OF_MONTH, Counts, bill, sampled
from benchmarks.cost_system import DELIVERY_S, System, Tally, counted_system

TRACES = "X-Ray"
"""The service that is only paid with the parameter `Tracing`; as by default, sums leave it out."""

KEPT_DAYS = 30
"""The default of TtlDays."""

OWN_S: Mapping[str, float] = {
    "api": 0.05,
    "stream": 0.1,
    "worker": 0.15,
    "push": 0.05,
    "sweeper": 0.1,
}
"""Seconds of an invocation besides its waits. They are assumed, with the answer times of AWS and
not those of an emulator."""

POLLERS, POLL_S = 5, 20
"""Long polls at the same time by an idle event source of SQS, and the seconds of each. AWS does not
document them."""

THINK_S = 30.0
LOOK_EVERY_S = 5.0
CHUNKS, STREAM_S = 100, 20.0

Run = Callable[[System], str]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A kind of task: how it is run, how often here, and how long its invocations wait."""

    name: str
    run: Run
    tasks: int
    waits: Mapping[str, float]
    """Seconds that all invocations of a function wait for one task, besides `OWN_S` for each."""


def send(text: str, **configuration: Any) -> dict[str, Any]:
    """Return a request with a message."""
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": message, "configuration": configuration}


def echo(system: System) -> str:
    """Send and wait; the agent answers at once."""
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(system.work)
        task = system.request("POST", "/message:send", send("echo"))["task"]
        working.result()
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    return str(task["id"])


def think(system: System) -> str:
    """Send without waiting, and look at the task every five seconds."""
    body = send(f"think {THINK_S:g}", returnImmediately=True)
    task = system.request("POST", "/message:send", body)["task"]
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(system.work)
        while task["status"]["state"] != "TASK_STATE_COMPLETED":
            time.sleep(LOOK_EVERY_S)
            task = system.request("GET", f"/tasks/{task['id']}")
        working.result()
    return str(task["id"])


def stream(system: System) -> str:
    """Send with a stream, and read it to its end."""
    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(system.work)
        task_id = system.stream(send(f"stream {CHUNKS} {STREAM_S:g}"))
        working.result()
    return task_id


INDEXES = {
    BY_DUE: "- of them in the index of what is due",
    BY_SCOPE: "- of them in the index of the caller's tasks",
}

PROFILES = (
    Profile(
        name="echo",
        run=echo,
        tasks=20,
        waits={"api": DELIVERY_S + OWN_S["worker"]},
    ),
    Profile(name=f"{THINK_S:g} s agent", run=think, tasks=1, waits={"worker": THINK_S}),
    Profile(
        name="streamed",
        run=stream,
        tasks=2,
        waits={"worker": STREAM_S, "stream": DELIVERY_S + STREAM_S},
    ),
)


def main() -> int:
    """Run the profiles and print the tables."""
    with counted_system() as system:
        for profile in PROFILES:  # the first run is not counted: it makes the connections
            if profile.run is echo:
                system.wake(profile.run(system))
        counted = [(profile, count(system, profile)) for profile in PROFILES]
        rounds = 5
        with system.counting() as sweeps:
            for _ in range(rounds):
                system.sweep()
    memory = memories()
    usage = [counts(tally, profile, memory) for profile, tally in counted]
    print("\n".join(per_task([profile.name for profile in PROFILES], counted, usage)))
    print()
    print("\n".join(per_million([profile.name for profile in PROFILES], usage)))
    print()
    metrics = set().union(*(tally.logs.metrics() for _, tally in counted))
    print("\n".join(per_request([profile.name for profile in PROFILES], counted)))
    print()
    print("\n".join(per_month(sweeps, rounds, memory, len(metrics))))
    return 0


def count(system: System, profile: Profile) -> Tally:
    """Run a profile as often as it says."""
    with system.counting() as tally:
        for _ in range(profile.tasks):
            system.wake(profile.run(system))
    return tally


def counts(tally: Tally, profile: Profile, memory: Mapping[str, float]) -> Counts:
    """Return what one task of a profile uses."""
    own = sum(OWN_S[name] * times * memory[name] for name, times in tally.invocations.items())
    waited = sum(seconds * memory[name] for name, seconds in profile.waits.items())
    return Counts(
        write_units=tally.table.write_units,
        read_units=tally.table.read_units,
        stored_bytes=tally.stored_bytes,
        sqs_requests=sum(tally.sqs.values()),
        api_requests=tally.requests,
        invocations=sum(tally.invocations.values()),
        gb_seconds=own + waited * profile.tasks,
        logged_bytes=tally.logged_bytes(),
        traces=sum(  # Lambda also begins one for each message of a queue, linked to the sender's
            times * sampled(times / profile.tasks * MILLION)
            for times in tally.invocations.values()
            if times
        ),
        sent_bytes=tally.sent_bytes,
    ).over(profile.tasks)


def seconds(tally: Tally, profile: Profile) -> float:
    """Return how long environments of Lambda are taken by the tasks of a profile."""
    own = sum(OWN_S[name] * times for name, times in tally.invocations.items())
    return own + sum(profile.waits.values()) * profile.tasks


def memories() -> Mapping[str, float]:
    """Return the default memory of each function, in GB."""
    parameters = document()["Parameters"]
    others = int(parameters["ApiMemory"]["Default"]) / 1024
    worker = int(parameters["WorkerMemory"]["Default"]) / 1024
    return dict.fromkeys(OWN_S, others) | {"worker": worker}


def document() -> dict[str, Any]:
    """Return the template as it is written."""
    parsed: dict[str, Any] = yaml_parse(find_template().read_text(encoding="utf-8"))
    return parsed


def per_task(
    names: Sequence[str], counted: Sequence[tuple[Profile, Tally]], usage: Sequence[Counts]
) -> Iterator[str]:
    """Yield the table of what one task uses."""
    yield from header("one task", names)
    yield row("requests to DynamoDB", [t.table.requests / p.tasks for p, t in counted])
    yield row("write units", [one.write_units for one in usage])
    for index, meaning in INDEXES.items():
        yield row(meaning, [t.table.index_units[index] / p.tasks for p, t in counted])
    yield row("read units", [one.read_units for one in usage])
    yield row("KB stored", [one.stored_bytes / 1000 for one in usage])
    yield row("requests to SQS", [one.sqs_requests for one in usage])
    yield row("requests to API Gateway", [one.api_requests for one in usage])
    yield row("Lambda invocations", [one.invocations for one in usage])
    yield row("Lambda GB-seconds", [one.gb_seconds for one in usage])
    yield row("seconds of Lambda environments", [seconds(t, p) / p.tasks for p, t in counted])
    yield row("KB logged", [one.logged_bytes / 1000 for one in usage])
    yield row("KB sent", [one.sent_bytes / 1000 for one in usage])


def per_million(names: Sequence[str], usage: Sequence[Counts]) -> Iterator[str]:
    """Yield the table of dollars for a million tasks in a month."""
    bills = [bill(one, times=MILLION, kept_days=KEPT_DAYS) for one in usage]
    yield from header("a million tasks, in dollars", names)
    paid = [name for name in bills[0] if name != TRACES and any(one[name] for one in bills)]
    for service in paid:
        yield row(service, [one[service] for one in bills])
    yield row("**all**", [sum(one.values()) - one[TRACES] for one in bills])
    yield row("with `Tracing`: X-Ray", [one[TRACES] for one in bills])


def per_request(names: Sequence[str], counted: Sequence[tuple[Profile, Tally]]) -> Iterator[str]:
    """Yield the table of requests to DynamoDB and SQS for one task, by what they do."""
    yield from header("requests of one task", names)
    tables = [(tally.table.kinds, profile.tasks) for profile, tally in counted]
    queues = [(tally.sqs, profile.tasks) for profile, tally in counted]
    for counters in (tables, queues):
        for kind in sorted(set().union(*(counter for counter, _ in counters))):
            yield row(kind, [counter[kind] / tasks for counter, tasks in counters])


def per_month(
    sweeps: Tally, rounds: int, memory: Mapping[str, float], metrics: int
) -> Iterator[str]:
    """Yield the table of dollars for a month without tasks, and for its fixed costs."""
    sources = [
        event
        for resource in document()["Resources"].values()
        for event in resource.get("Properties", {}).get("Events", {}).values()
        if event["Type"] == "SQS" and "SharesWorkers" not in str(event)  # polls with shared turns
    ]
    polls = len(sources) * POLLERS * SECONDS_OF_MONTH / POLL_S
    minutes = SECONDS_OF_MONTH / 60
    idle = Counts(
        read_units=sweeps.table.read_units / rounds * minutes,
        sqs_requests=polls,
        invocations=minutes,
        gb_seconds=OWN_S["sweeper"] * memory["sweeper"] * minutes,
        logged_bytes=sweeps.logged_bytes() / rounds * minutes,
        traces=minutes * sampled(minutes),
    )
    yield from header("a month without tasks, in dollars", ["", "of what"])
    dollars = bill(idle, times=1, kept_days=KEPT_DAYS)
    notes = {
        "SQS requests": f"{polls:,.0f} long polls of {len(sources)} event sources",
        "DynamoDB reads": f"{idle.read_units:,.0f} read units of the sweeper",
        "Lambda requests": f"{minutes:,.0f} rounds of the sweeper",
        "Lambda time": f"{idle.gb_seconds:,.0f} GB-seconds",
    }
    fixed = fixed_costs()
    for service, amount in dollars.items():
        if amount and service != TRACES:
            yield f"| {service} | {amount:.2f} | {notes.get(service, '')} |"
    for name, (number, price) in fixed.items():
        yield f"| {name} | {number * price:.2f} | {number} at {price:.2f} |"
    services = sum(dollars.values()) - dollars[TRACES]
    total = services + sum(number * price for number, price in fixed.values())
    yield f"| **all** | **{total:.2f}** | |"
    yield f"| with `Tracing`: X-Ray | {dollars[TRACES]:.2f} | |"
    with_tasks = metrics * prices.METRIC_MONTH
    yield f"| custom metrics, where tasks run all the time | {with_tasks:.2f} | {metrics} at 0.30 |"


def fixed_costs() -> Mapping[str, tuple[int, float]]:
    """Return number and price of the things that are paid by the month, by default."""
    resources = document()["Resources"].values()
    types = [resource["Type"] for resource in resources]
    alarms = [one["Properties"] for one in resources if one["Type"] == "AWS::CloudWatch::Alarm"]
    return {
        "metrics of alarms": (sum(map(watched_metrics, alarms)), prices.ALARM_METRIC_MONTH),
        "dashboards": (types.count("AWS::CloudWatch::Dashboard"), prices.DASHBOARD_MONTH),
        "secrets": (types.count("AWS::SecretsManager::Secret"), prices.SECRET_MONTH),
    }


def watched_metrics(alarm: Mapping[str, Any]) -> int:
    """Return how many metrics an alarm reads: they are paid, an expression over them is free."""
    return sum("MetricStat" in metric for metric in alarm.get("Metrics", [])) or 1


def header(title: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the first two lines of a table."""
    yield f"| {title} | " + " | ".join(names) + " |"
    yield "|---|" + "---:|" * len(names)


def row(name: str, values: Sequence[float]) -> str:
    """Return a line of numbers."""
    return f"| {name} | " + " | ".join(f"{value:,.2f}" for value in values) + " |"


if __name__ == "__main__":
    sys.exit(main())

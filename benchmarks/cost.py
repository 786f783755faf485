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

from a2a_serverless.storage.layout import BY_DUE, BY_SCOPE
from a2a_serverless_tools.operate import prices
from a2a_serverless_tools.operate.prices import MILLION, SECONDS_OF_MONTH
from benchmarks.cost_prices import Counts, bill
from benchmarks.cost_system import DELIVERY_S, System, Tally, counted_system
from tests.support.template import read

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
    print("\n".join(per_month(sweeps, rounds, len(metrics))))
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
        sent_bytes=tally.sent_bytes,
    ).over(profile.tasks)


def seconds(tally: Tally, profile: Profile) -> float:
    """Return how long environments of Lambda are taken by the tasks of a profile."""
    own = sum(OWN_S[name] * times for name, times in tally.invocations.items())
    return own + sum(profile.waits.values()) * profile.tasks


def memories() -> Mapping[str, float]:
    """Return the default memory of each function, in GB."""
    others = int(document()["Globals"]["Function"]["MemorySize"]) / 1024
    worker = int(document()["Parameters"]["WorkerMemory"]["Default"]) / 1024
    sweeper = int(document()["Resources"]["SweeperFunction"]["Properties"]["MemorySize"]) / 1024
    return dict.fromkeys(OWN_S, others) | {"worker": worker, "sweeper": sweeper}


def document() -> dict[str, Any]:
    """Return the template as it is written."""
    return read()


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
    paid = [name for name in bills[0] if any(one[name] for one in bills)]
    for service in paid:
        yield row(service, [one[service] for one in bills])
    yield row("**all**", [sum(one.values()) for one in bills])


def per_request(names: Sequence[str], counted: Sequence[tuple[Profile, Tally]]) -> Iterator[str]:
    """Yield the table of requests to DynamoDB and SQS for one task, by what they do."""
    yield from header("requests of one task", names)
    tables = [(tally.table.kinds, profile.tasks) for profile, tally in counted]
    queues = [(tally.sqs, profile.tasks) for profile, tally in counted]
    for counters in (tables, queues):
        for kind in sorted(set().union(*(counter for counter, _ in counters))):
            yield row(kind, [counter[kind] / tasks for counter, tasks in counters])


def per_month(sweeps: Tally, rounds: int, metrics: int) -> Iterator[str]:
    """Yield the table of what a month without tasks costs, by the parts of the stack."""
    rests = [*at_rest(sweeps.table.read_units / rounds, sweeps.logged_bytes() / rounds)]
    yield from header("a month without tasks, in dollars", ["", "of what"])
    for part, dollars, what in rests:
        yield f"| {part} | {dollars:.2f} | {what} |"
    yield f"| **all** | **{sum(dollars for _, dollars, _ in rests):.2f}** | |"
    for part, dollars, what in chosen(metrics):
        yield f"| with {part} | {dollars:.2f} | {what} |"


def at_rest(read_units: float, logged_bytes: float) -> Iterator[tuple[str, float, str]]:
    """Yield each part of the default stack that costs something without a task, its price, of what.

    A round of the sweeper takes `read_units`, and logs `logged_bytes`; both are counted.
    """
    resources = [it for it in document()["Resources"].values() if "Condition" not in it]
    types = [resource["Type"] for resource in resources]
    alarms = [one["Properties"] for one in resources if one["Type"] == "AWS::CloudWatch::Alarm"]
    watched = sum(map(watched_metrics, alarms))
    what = f"{watched} metrics of {len(alarms)} alarms at {prices.ALARM_METRIC_MONTH:.2f}"
    yield "alarms", watched * prices.ALARM_METRIC_MONTH, what
    for part, kind, price in (
        ("dashboard", "AWS::CloudWatch::Dashboard", prices.DASHBOARD_MONTH),
        ("secrets", "AWS::SecretsManager::Secret", prices.SECRET_MONTH),
    ):
        yield part, types.count(kind) * price, f"{types.count(kind)} at {price:.2f}"
    sources = [source for source in queue_sources() if "SharesWorkers" not in str(source)]
    yield "event sources", idle_polls(len(sources)), f"long polls of {len(sources)} queues"
    minutes = SECONDS_OF_MONTH / 60
    sweeper = Counts(
        read_units=read_units * minutes,
        invocations=minutes,
        gb_seconds=OWN_S["sweeper"] * memories()["sweeper"] * minutes,
    )
    yield (
        "sweeper",
        sum(bill(sweeper, times=1, kept_days=KEPT_DAYS).values()),
        f"{minutes:,.0f} rounds, each {read_units:.1f} read units",
    )
    logged = logged_bytes * minutes / prices.GB
    yield (
        "logs",
        logged * (prices.LOGGED_GB + prices.LOGS_GB_MONTH),
        f"{logged * 1000:.0f} MB of the sweeper, kept for 30 days",
    )


def chosen(metrics: int) -> Iterator[tuple[str, float, str]]:
    """Yield what parameters, or tasks, add to a month of a stack at rest."""
    waf = prices.WEB_ACL_MONTH + prices.WEB_ACL_RULE_MONTH
    address = SECONDS_OF_MONTH / 3600 * prices.PUBLIC_IPV4_HOUR
    hours = 0.25 * prices.FARGATE_VCPU_HOUR + 0.5 * prices.FARGATE_GB_HOUR
    worker = SECONDS_OF_MONTH / 3600 * hours + address
    metric = prices.METRIC_MONTH
    yield "`WorkerTurns` above 1", idle_polls(1), "long polls of one queue more"
    yield "`Worker=external`", worker, "one worker of `fargate.yaml` with its address"
    yield "`OtelEndpoint`", prices.SECRET_MONTH, "the secret of its headers"
    yield "`KmsKeyArn`", prices.KEY_MONTH, "your key, without its requests"
    yield "`WebAclArn`", waf, "a web ACL with one rule, without its requests"
    yield "tasks all the time", metrics * metric, f"{metrics} custom metrics at {metric:.2f}"


def queue_sources() -> list[Any]:
    """Return the event sources of queues."""
    return [
        event
        for resource in document()["Resources"].values()
        for event in resource.get("Properties", {}).get("Events", {}).values()
        if event["Type"] == "SQS"
    ]


def idle_polls(sources: int) -> float:
    """Return the dollars for a month of long polls of idle event sources."""
    return sources * POLLERS * SECONDS_OF_MONTH / POLL_S * prices.SQS_REQUEST


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

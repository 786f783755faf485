"""What storage costs on DynamoDB: `python -m benchmarks.storage [--tasks 10000]`.

Runs on DynamoDB Local and prints requests, units and bytes per flow, beside the limit that the
flow is held to; a limit that is exceeded makes the exit status 1. At the end it prints how long a
client of `a2a-serverless api` waits for the first page.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from a2a.types import (
    Artifact,
    ListTasksResponse,
    Message,
    Part,
    Role,
    SendMessageRequest,
    TaskState,
    TaskStatus,
)

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.storage.codec import event_items, head_item
from a2a_serverless.storage.durable import DurableStorage, _encoded
from a2a_serverless.storage.dynamodb import typed
from a2a_serverless.storage.listing import (
    MOST_COUNTED,
    ListTasksQuery,
    list_tasks,
)
from a2a_serverless.tasks.entries import ArtifactWritten, StatusChanged
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import ANONYMOUS, Scope, new_id, new_incarnation
from a2a_serverless.tasks.rules import Commit, NewTask, Timing, advance, open_task
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.local.provision import table_definition
from benchmarks.meter import Meter, Usage
from benchmarks.processes import running
from benchmarks.stream import CARD, provision
from benchmarks.stream_clients import VERSION
from tests.support.databases import dynamo_storage
from tests.support.emulators import Emulator, dynamodb_local, fauxqs

TABLE = "tasks"
CHUNKS = 1600
BATCH = 40
CHUNK_BYTES = 200
MOST_GROWTH = 2.1  # the most growth of write units for twice the chunks
SEED_THREADS = 8
BATCH_ITEMS = 25
ROUNDS = 3
PAGES = 50  # that a client measures, after half as many that it does not


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One measured flow and its limits: requests, write units, read units."""

    name: str
    usage: Usage
    seconds: float
    limits: tuple[float | None, float | None, float | None] = (None, None, None)

    @property
    def holds(self) -> bool:
        """Return True if the flow stayed within its limits."""
        used = (self.usage.requests, self.usage.write_units, self.usage.read_units)
        return all(
            limit is None or value <= limit for value, limit in zip(used, self.limits, strict=True)
        )


@dataclass
class Bench:
    """A storage whose requests are metered, and the flows measured so far."""

    storage: DurableStorage
    meter: Meter
    flows: list[Flow] = field(default_factory=list)

    @contextmanager
    def flow(
        self,
        name: str,
        *,
        requests: float | None = None,
        writes: float | None = None,
        reads: float | None = None,
    ) -> Iterator[Usage]:
        """Measure the block as one flow."""
        start = time.perf_counter()
        with self.meter.measure() as usage:
            yield usage
        seconds = time.perf_counter() - start
        limits = (requests, writes, reads)
        self.flows.append(Flow(name=name, usage=usage, seconds=seconds, limits=limits))


def metered(
    client: Any,
    observer: Any,
    table: str = TABLE,
    *,
    scope: Scope | None = None,
    clock: Clock | None = None,
) -> Bench:
    """Return a bench on `client`, by default in a scope of its own."""
    scope = scope or Scope.of("benchmark", new_id())
    storage = dynamo_storage(table, client=client, scope=scope, clock=clock or SystemClock())
    return Bench(storage, Meter(client, observer, table))


async def short_flows(bench: Bench) -> None:
    """Measure an echo task from its creation to the client's last look at it."""
    storage = bench.storage
    with bench.flow("echo task: create, load, commit, get", requests=4, writes=18, reads=4) as echo:
        with bench.flow("  create, short message", requests=1, writes=9) as created:
            task = await Storage(storage).create_task(
                "context", message("hello"), idempotency_key="key"
            )
        with bench.flow("  worker's load", requests=1) as loaded:
            log = await storage.read(task.id)
        assert log is not None
        with bench.flow("  working, artifact, completed", requests=1, writes=9) as committed:
            await storage.commit(log.head, echo_commit("hello"))
        with bench.flow("  GetTask") as got:
            await storage.load_task(task.id)
        for step in (created, loaded, committed, got):
            add(echo, step)


async def chunk_flows(bench: Bench) -> None:
    """Measure an artifact in chunks: a chunk's cost must not depend on the number of chunks."""
    first, _ = await stream(bench, CHUNKS)
    twice, head = await stream(bench, 2 * CHUNKS)
    assert twice.write_units <= MOST_GROWTH * first.write_units
    with bench.flow("  load without artifacts and history", requests=1, reads=1):
        await bench.storage.load_task(head.task_id, 0, include_artifacts=False)
    with bench.flow("  load of everything"):
        await bench.storage.load_task(head.task_id)
    with bench.flow("  tail that finds nothing new", requests=1, reads=1):
        await bench.storage.read(head.task_id, after=head.version, incarnation=head.incarnation)


async def stream(bench: Bench, chunks: int) -> tuple[Usage, Head]:
    """Append `chunks` to an artifact of a new task, in batches."""
    opened = await bench.storage.open_task("context", SendMessageRequest(message=message("go")))
    head, batches = opened.head, chunks // BATCH
    chunk = ArtifactWritten(artifact("x" * CHUNK_BYTES), append=True)
    name = f"{chunks} chunks of {CHUNK_BYTES} bytes, {BATCH} a commit"
    with bench.flow(name, requests=batches) as usage:
        for _ in range(batches):
            head = await bench.storage.commit(head, Commit(entries=(chunk,) * BATCH))
    return usage, head


async def list_flows(bench: Bench, tasks: int) -> None:
    """Measure pages of 50 and of 1, of each kind of list; take medians of rounds."""
    now_ms = bench.storage.clock.now_ms()
    since = datetime.fromtimestamp(now_ms / 1000 - 3600, UTC).isoformat()
    rare = TaskState.TASK_STATE_INPUT_REQUIRED
    for name, query in (
        ("50, with history", ListTasksQuery(page_size=50)),
        ("50", ListTasksQuery(page_size=50, history_length=0)),
        ("1", ListTasksQuery(page_size=1, history_length=0)),
        (
            "1 by a new time",
            ListTasksQuery(page_size=1, history_length=0, status_timestamp_after=since),
        ),
        (
            "1 of a state that no task has",
            ListTasksQuery(page_size=1, history_length=0, status=rare),
        ),
        ("1 of a context", ListTasksQuery(page_size=1, history_length=0, context_id="context")),
        ("50 of a context", ListTasksQuery(history_length=0, context_id="context")),
    ):
        rounds = [await listed(bench, query, tasks) for _ in range(ROUNDS)]
        for which, flows in zip(("first", "later"), zip(*rounds, strict=True), strict=True):
            median = sorted(flows, key=lambda flow: flow.seconds)[ROUNDS // 2]
            of_all = f"{which} page of {tasks}: {name}"
            bench.flows.append(replace(median, name=of_all, limits=(6, 0, None)))


async def listed(bench: Bench, query: ListTasksQuery, tasks: int) -> tuple[Flow, Flow]:
    """Return a first page, and a later one."""
    first, page = await _page(bench, query)
    later, second = await _page(
        bench, query.model_copy(update={"page_token": page.next_page_token})
    )
    for one in (page, second):
        assert one.total_size == min(tasks, MOST_COUNTED)
        assert len(one.tasks) == (0 if query.status else query.page_size)
        assert all(bool(task.history) == (query.history_length is None) for task in one.tasks)
    return first, later


async def _page(bench: Bench, query: ListTasksQuery) -> tuple[Flow, ListTasksResponse]:
    start = time.perf_counter()
    with bench.meter.measure() as usage:
        page = await list_tasks(bench.storage, query)
    return Flow(name="", usage=usage, seconds=time.perf_counter() - start), page


def report_client(dynamodb: Emulator, tasks: int) -> None:
    """Print how long a client waits for the first page that an `api` process sends."""
    with tempfile.TemporaryDirectory() as folder, fauxqs() as sqs:
        names = provision({**dynamodb.environment(), **sqs.environment()}) | {"A2A_TABLE": TABLE}
        command = [sys.executable, "-m", "a2a_serverless_tools.cli", "api", "--card", str(CARD)]
        api = [*command, "--port", "0"]
        with running(api, r"A2A at (\S+),", Path(folder), **names) as server:
            for kind, asked in (("with history", {}), ("without", {"historyLength": "0"})):
                times = client_times(server.said, {"pageSize": "50", **asked}, tasks)
                print(
                    f"first page of {tasks} tasks, {kind}, as a client of api waits for it: "
                    f"p50 {statistics.median(times):.0f} ms, "
                    f"p95 {sorted(times)[len(times) * 95 // 100]:.0f} ms"
                )


def client_times(url: str, asked: Mapping[str, str], tasks: int) -> list[float]:
    """Return the milliseconds of `PAGES` first pages, one after the other."""
    times = []
    with httpx.Client(trust_env=False, timeout=60) as http:
        for _ in range(PAGES * 3 // 2):
            start = time.perf_counter()
            answer = http.get(f"{url}/tasks", params=asked, headers=VERSION).json()
            times.append((time.perf_counter() - start) * 1000)
            total = min(tasks, MOST_COUNTED)
            assert (len(answer["tasks"]), answer["totalSize"]) == (50, total), answer
    return times[-PAGES:]


def seed_tasks(storage: DurableStorage, client: Any, tasks: int) -> None:
    """Store echo tasks by batch writes, one millisecond after the other."""
    now_ms = storage.clock.now_ms() - tasks
    items = [
        item
        for number in range(tasks)
        for item in echo_items(storage.scope.digest, at_ms=now_ms + number)
    ]
    store(client, items)


def store(client: Any, items: Sequence[Mapping[str, Any]]) -> None:
    """Store items by batch writes."""

    def put(start: int) -> None:
        batch = items[start : start + BATCH_ITEMS]
        pending: Any = {TABLE: [{"PutRequest": {"Item": item}} for item in batch]}
        while pending:
            pending = client.batch_write_item(RequestItems=pending)["UnprocessedItems"]

    with ThreadPoolExecutor(SEED_THREADS) as threads:
        list(threads.map(put, range(0, len(items), BATCH_ITEMS)))


def echo_items(scope: str, *, at_ms: int) -> list[dict[str, Any]]:
    """Return HEAD and commits of a task whose agent has answered at once."""
    new = NewTask(
        scope=scope,
        task_id=new_id(),
        context_id="context",
        incarnation=new_incarnation(),
        request=SendMessageRequest(message=message("hello")),
    )
    opened = open_task(new, now_ms=at_ms, timing=Timing())
    ended = advance(opened.head, echo_commit("hello"), now_ms=at_ms, timing=Timing())
    made = [_encoded(step) for step in (opened, ended)]
    events = [event_items(step, body) for step, body in made]
    head = replace(ended.head, size=sum(len(body) for _, body in made))
    return [typed(item) for item in (head_item(head), *events[0], *events[1])]


def echo_commit(text: str) -> Commit:
    """Return what a worker writes for a fast agent: claim, work, answer and end in one commit."""
    return Commit(
        token="attempt-00000001",  # noqa: S106 - as long as a real one, and no secret
        claims=True,
        entries=(
            StatusChanged(TaskStatus(state=TaskState.TASK_STATE_WORKING)),
            ArtifactWritten(artifact(text)),
            StatusChanged(TaskStatus(state=TaskState.TASK_STATE_COMPLETED)),
        ),
    )


def message(text: str) -> Message:
    """Return a user message."""
    return Message(message_id=new_id(), role=Role.ROLE_USER, parts=[Part(text=text)])


def artifact(text: str) -> Artifact:
    """Return an artifact of one part."""
    return Artifact(artifact_id="answer", parts=[Part(text=text)])


def add(total: Usage, part: Usage) -> None:
    """Add one usage to another."""
    total.requests += part.requests
    total.sent_bytes += part.sent_bytes
    total.write_units += part.write_units
    total.read_units += part.read_units


def report(flows: list[Flow]) -> None:
    """Print the table."""
    print(f"{'flow':<56}{'requests':>9}{'write':>8}{'read':>8}{'bytes':>11}{'ms':>9}  limit")
    for flow in flows:
        usage = flow.usage
        limit = "/".join("-" if one is None else f"{one:g}" for one in flow.limits)
        print(
            f"{flow.name:<56}{usage.requests:>9}{usage.write_units:>8g}{usage.read_units:>8g}"
            f"{usage.sent_bytes:>11}{flow.seconds * 1000:>9.0f}  {limit}"
            f"{'' if flow.holds else '  EXCEEDED'}"
        )


def client_of(emulator: Emulator) -> Any:
    """Return a client with a connection for every thread."""
    return emulator.client(max_pool_connections=64, read_timeout=60)


def main() -> int:
    """Run all flows and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000, help="tasks of the listed scope")
    tasks = parser.parse_args().tasks
    with dynamodb_local() as emulator:
        observer = client_of(emulator)
        observer.create_table(TableName=TABLE, **table_definition(stream=False))
        bench = metered(client_of(emulator), observer)
        asyncio.run(short_flows(bench))
        asyncio.run(chunk_flows(bench))
        lists = metered(client_of(emulator), observer, scope=ANONYMOUS)
        seed_tasks(lists.storage, observer, tasks)
        asyncio.run(list_flows(lists, tasks))
        flows = [*bench.flows, *lists.flows]
        report(flows)
        report_client(emulator, tasks)
    return 0 if all(flow.holds for flow in flows) else 1


if __name__ == "__main__":
    sys.exit(main())

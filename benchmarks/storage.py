"""What storage costs on DynamoDB: `python -m benchmarks.storage [--tasks 100000]`.

Runs on DynamoDB Local and prints requests, units and bytes per flow, beside the limit that the
flow is held to; a limit that is exceeded makes the exit status 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from a2a.types import Artifact, Message, Part, Role, SendMessageRequest, TaskState, TaskStatus

from a2a_serverless.clock import SystemClock
from a2a_serverless.contract.storage import Storage
from a2a_serverless.local.template import Template
from a2a_serverless.storage.dynamodb import DynamoStorage
from a2a_serverless.storage.dynamodb_heads import head_item
from a2a_serverless.storage.listing import ListTasksQuery
from a2a_serverless.tasks.entries import ArtifactWritten, StatusChanged
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope, new_incarnation, new_task_id
from a2a_serverless.tasks.rules import Commit, NewTask, Timing, open_task
from benchmarks.meter import Meter, Usage
from tests.support.emulators import Emulator, dynamodb_local

TABLE = "tasks"
CHUNKS = 1600
BATCH = 40
CHUNK_BYTES = 200
MOST_GROWTH = 2.1  # of the write units, for twice the chunks
SEED_THREADS = 8
BATCH_ITEMS = 25


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One measured flow and its limits: requests, write units, read units."""

    name: str
    usage: Usage
    seconds: float
    limits: tuple[float | None, float | None, float | None] = (None, None, None)

    @property
    def holds(self) -> bool:
        """Whether the flow stayed within its limits."""
        used = (self.usage.requests, self.usage.write_units, self.usage.read_units)
        return all(
            limit is None or value <= limit for value, limit in zip(used, self.limits, strict=True)
        )


@dataclass
class Bench:
    """A storage whose requests are metered, and the flows measured so far."""

    storage: DynamoStorage
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


def metered(client: Any, observer: Any, table: str = TABLE) -> Bench:
    """A bench on `client`, in a scope of its own."""
    scope = Scope.of("benchmark", new_task_id())
    return Bench(DynamoStorage(table, client=client, scope=scope), Meter(client, observer, table))


async def short_flows(bench: Bench) -> None:
    """An echo task from its creation to the client's last look at it."""
    storage = bench.storage
    with bench.flow("echo task: create, load, commit, get", requests=4, writes=16, reads=4) as echo:
        with bench.flow("  create, short message", requests=1, writes=9) as created:
            task = await Storage(storage).create_task(
                "context", message("hello"), idempotency_key="key"
            )
        with bench.flow("  worker's load", requests=1) as loaded:
            log = await storage.read(task.id)
        assert log is not None
        with bench.flow("  working, artifact, completed", requests=1, writes=7) as committed:
            await storage.commit(log.head, echo_commit("hello"))
        with bench.flow("  GetTask") as got:
            await storage.load_task(task.id)
        for step in (created, loaded, committed, got):
            add(echo, step)


async def chunk_flows(bench: Bench) -> None:
    """An artifact in chunks: the cost of one must not depend on how many there are."""
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
    """Pages of a scope's tasks, of many and of few."""
    query = ListTasksQuery(page_size=50, history_length=0)
    with bench.flow(f"first page of 50, of {tasks} tasks, with total_size"):
        first = await bench.storage.list_tasks(query)
    assert (len(first.tasks), first.total_size) == (50, tasks)
    with bench.flow("  later page", reads=65) as later:
        following = query.model_copy(update={"page_token": first.next_page_token})
        second = await bench.storage.list_tasks(following)
    assert (len(second.tasks), second.total_size) == (50, tasks)
    assert later.requests <= 2 * 4


def seed_tasks(storage: DynamoStorage, client: Any, tasks: int) -> None:
    """Store completed tasks by batch writes, one millisecond after the other."""
    now_ms = SystemClock().now_ms() - tasks
    new = (
        NewTask(
            scope=storage.scope.digest,
            task_id=new_task_id(),
            context_id="context",
            incarnation=new_incarnation(),
            request=SendMessageRequest(message=message("hello")),
        )
        for _ in range(tasks)
    )
    heads = [
        replace(
            open_task(task, now_ms=now_ms + number, timing=Timing()).head,
            state=TaskState.TASK_STATE_COMPLETED,
            due_at=None,
        )
        for number, task in enumerate(new)
    ]

    def put(start: int) -> None:
        batch = heads[start : start + BATCH_ITEMS]
        pending: Any = {TABLE: [{"PutRequest": {"Item": head_item(head)}} for head in batch]}
        while pending:
            pending = client.batch_write_item(RequestItems=pending)["UnprocessedItems"]

    with ThreadPoolExecutor(SEED_THREADS) as threads:
        list(threads.map(put, range(0, tasks, BATCH_ITEMS)))


def echo_commit(text: str) -> Commit:
    """What a worker writes for a fast agent: claim, work, answer and end in one."""
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
    """A user message."""
    return Message(message_id=new_task_id(), role=Role.ROLE_USER, parts=[Part(text=text)])


def artifact(text: str) -> Artifact:
    """An artifact of one part."""
    return Artifact(artifact_id="answer", parts=[Part(text=text)])


def add(total: Usage, part: Usage) -> None:
    """Add one usage to another."""
    total.requests += part.requests
    total.sent_bytes += part.sent_bytes
    total.write_units += part.write_units
    total.read_units += part.read_units


def report(flows: list[Flow]) -> None:
    """Print the table."""
    print(f"{'flow':<50}{'requests':>9}{'write':>8}{'read':>8}{'bytes':>11}{'ms':>9}  limit")
    for flow in flows:
        usage = flow.usage
        limit = "/".join("-" if one is None else f"{one:g}" for one in flow.limits)
        print(
            f"{flow.name:<50}{usage.requests:>9}{usage.write_units:>8g}{usage.read_units:>8g}"
            f"{usage.sent_bytes:>11}{flow.seconds * 1000:>9.0f}  {limit}"
            f"{'' if flow.holds else '  EXCEEDED'}"
        )


def client_of(emulator: Emulator) -> Any:
    """A client with a connection for every thread."""
    return emulator.client(max_pool_connections=64, read_timeout=60)


def main() -> int:
    """Run all flows and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000, help="tasks of the listed scope")
    tasks = parser.parse_args().tasks
    with dynamodb_local() as emulator:
        observer = client_of(emulator)
        observer.create_table(TableName=TABLE, **Template.load().table(stream=False))
        bench = metered(client_of(emulator), observer)
        asyncio.run(short_flows(bench))
        asyncio.run(chunk_flows(bench))
        listed = metered(client_of(emulator), observer)
        seed_tasks(listed.storage, observer, tasks)
        asyncio.run(list_flows(listed, tasks))
    flows = [*bench.flows, *listed.flows]
    report(flows)
    return 0 if all(flow.holds for flow in flows) else 1


if __name__ == "__main__":
    sys.exit(main())

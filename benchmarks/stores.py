"""What the stores for the SDK's own server cost, beside the SDK's SQL stores in one run.

    python -m benchmarks.stores [--tasks N] [--savers N]

It needs DynamoDB Local (`make emulators`) and the SDK's SQL stores (`make foreign`). The SDK's
request handler runs an agent that emits chunks of 200 bytes; a second replica follows the tasks of
the first one. What is written counts bytes of items, or of statements' parameters. Times depend on
the machine: compare them within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.cluster import ConcurrentTaskModificationError
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.types import (
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from a2a_serverless.storage.table import Delete, Put, Table, Update, _size_of
from a2a_serverless.stores import file_table
from benchmarks.cards import card_of
from tests.support.emulators import dynamodb_local
from tests.support.stores import NEW, Stores, caller, local_table, on_sql, on_table, sql_engines

ME = caller("benchmark")
CHUNK = "x" * 200
SDK_POLL_S = 0.5
"""As the SDK's stream polls by default."""
LISTED = 1000
"""How many tasks are read page by page."""
CARD = card_of("Chunks", "Emits chunks.", binding="HTTP+JSON")


class Chunks(AgentExecutor):
    """Emits as many chunks as the message says."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message, task_id = context.message, context.task_id or ""
        context_id = context.context_id or ""
        assert message is not None
        task = Task(id=task_id, context_id=context_id, history=[message])
        task.status.state = TaskState.TASK_STATE_WORKING
        await event_queue.enqueue_event(task)
        for number in range(int(message.parts[0].text)):
            event = TaskArtifactUpdateEvent(task_id=task_id, context_id=context_id)
            event.append = number > 0
            event.artifact.artifact_id = "answer"
            event.artifact.parts.add(text=CHUNK)
            await event_queue.enqueue_event(event)
        completed = TaskStatus(state=TaskState.TASK_STATE_COMPLETED)
        await event_queue.enqueue_event(
            TaskStatusUpdateEvent(task_id=task_id, context_id=context_id, status=completed)
        )

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


@dataclass
class Counted:
    """What is sent to a database."""

    written: int = 0
    units: float = 0
    _began: tuple[int, float] = (0, 0.0)

    def begin(self) -> None:
        """Count from here on."""
        self._began = self.written, self.units

    def since(self) -> tuple[int, float]:
        """Return the bytes written and the units since then."""
        return self.written - self._began[0], self.units - self._began[1]


@dataclass(frozen=True)
class Backend:
    """Stores of two replicas."""

    name: str
    one: Stores
    other: Stores
    counted: Counted
    stored: Callable[[], int]
    """The bytes that the database has."""


def counting(table: Table, counted: Counted) -> Table:
    """Return the table, which counts the bytes of the items that it is given from now on."""
    write = table.write

    async def counts(*writes: Put | Update | Delete, exactly: bool = False) -> None:
        await write(*writes, exactly=exactly)
        counted.written += sum(_size_of(one.item) for one in writes if isinstance(one, Put))

    table.write = counts  # type: ignore[method-assign]
    return table


@asynccontextmanager
async def backends(folder: Path) -> AsyncIterator[list[Backend]]:
    """Yield DynamoDB Local, our file, and the SDK's SQL stores on SQLite."""
    with dynamodb_local() as emulator, sql_engines() as engine_on:
        of_dynamo, of_file, of_sql = Counted(), Counted(), Counted()
        local = counting(local_table(emulator), of_dynamo)

        def note(parsed: Any, **_: Any) -> None:
            found = parsed.get("ConsumedCapacity") or []
            reports = [found] if isinstance(found, dict) else found
            of_dynamo.units += sum(one.get("CapacityUnits", 0) for one in reports)

        client: Any = local.client  # type: ignore[attr-defined]
        client.meta.events.register("after-call.dynamodb.*", note)
        file = counting(file_table(folder / "ours"), of_file)
        engines = [engine_on(folder / "theirs") for _ in range(2)]
        await _count_statements(engines[0], of_sql)

        def items() -> int:
            pages = client.get_paginator("scan").paginate(TableName=local.name)  # type: ignore[attr-defined]
            return sum(_bytes_of(item) for page in pages for item in page["Items"])

        yield [
            Backend("DynamoDB Local, ours", on_table(local), on_table(local), of_dynamo, items),
            Backend(
                "SQLite, ours",
                on_table(file),
                on_table(file),
                of_file,
                lambda: _files(folder, "ours"),
            ),
            Backend(
                "SQLite, the SDK's",
                await on_sql(engines[0], poll_interval_s=SDK_POLL_S),
                await on_sql(engines[1], poll_interval_s=SDK_POLL_S),
                of_sql,
                lambda: _files(folder, "theirs"),
            ),
        ]
        for engine in engines:
            await engine.dispose()


def _bytes_of(item: dict[str, dict[str, Any]]) -> int:
    return sum(len(name) + sum(len(v) for v in value.values()) for name, value in item.items())


def _files(folder: Path, name: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"{name}*"))


async def _count_statements(engine: Any, counted: Counted) -> None:
    from sqlalchemy import event, text  # noqa: PLC0415 - it is not among our own packages

    async with engine.connect() as connection:
        await connection.execute(text("PRAGMA journal_mode = WAL"))

    def before(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if not statement.startswith("SELECT"):
            counted.written += sum(len(p) for p in parameters if isinstance(p, str | bytes))

    event.listen(engine.sync_engine, "before_cursor_execute", before)


async def chunks(backend: Backend, count: int) -> str:
    """Run one task of so many chunks through the SDK's request handler; return what it takes."""
    handler = DefaultRequestHandler(
        Chunks(), backend.one.tasks, CARD, event_stream=backend.one.stream
    )
    backend.counted.begin()
    stored, began, cpu = backend.stored(), time.perf_counter(), time.process_time()
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text=str(count))])
    request = SendMessageRequest(message=message)
    events = [event async for event in handler.on_message_send_stream(request, ME)]
    assert len(events) == count + 2
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    await handler.aclose()
    written, units = backend.counted.since()
    grown = backend.stored() - stored
    return (
        f"{backend.name:22} {count:5} chunks  written {written / 1e6:7.2f} MB"
        f"  stored {grown / 1e6:6.2f} MB  units {units:7.0f}  {took:6.1f} s  processor {cpu:5.1f} s"
    )


async def delays(backend: Backend, count: int = 60) -> str:
    """Measure the milliseconds from a save to the subscriber of the other replica."""
    task = Task(id=f"delays-{backend.name}", context_id="c")
    task.status.state = TaskState.TASK_STATE_WORKING
    version = await backend.one.tasks.save(task, event=task, prev_version=NEW, context=ME)
    saved: list[float] = []
    seen: list[float] = []

    async def follow() -> None:
        events = backend.other.stream.subscribe(task.id, after=version)
        async for _ in events:
            seen.append(time.perf_counter())
            if len(seen) == count:
                break
        await events.aclose()

    following = asyncio.create_task(follow())
    now = version
    for _ in range(count):
        await asyncio.sleep(0.1)
        event = TaskStatusUpdateEvent(task_id=task.id, context_id="c", status=task.status)
        now = await backend.one.tasks.save(task, event=event, prev_version=now, context=ME)
        saved.append(time.perf_counter())
    await following
    found = [1000 * max(0.0, s - c) for c, s in zip(saved, seen, strict=True)]
    return (
        f"{backend.name:22} save to the other replica's subscriber: p50 {median(found):.0f} ms,"
        f" p95 {quantiles(found, n=20)[-1]:.0f} ms"
    )


async def savers(backend: Backend, count: int) -> str:
    """Let so many savers save one task at the same time, each until it has won."""
    task = Task(id=f"savers-{backend.name}", context_id="c")
    await backend.one.tasks.save(task, event=None, prev=None, prev_version=NEW, context=ME)
    refused = 0

    async def save(number: int) -> None:
        nonlocal refused
        tasks = (backend.one, backend.other)[number % 2].tasks
        while True:
            stored = await tasks.get(task.id, ME)
            stored.task.artifacts.add(artifact_id=str(number))
            try:
                await tasks.save(
                    stored.task, event=None, prev=None, prev_version=stored.version, context=ME
                )
            except ConcurrentTaskModificationError:
                refused += 1
            else:
                return

    began = time.perf_counter()
    await asyncio.gather(*map(save, range(count)))
    stored = await backend.other.tasks.get(task.id, ME)
    assert len({one.artifact_id for one in stored.task.artifacts}) == count
    return (
        f"{backend.name:22} {count} savers: all saved, {stored.version} is the last,"
        f" {refused} refused, {time.perf_counter() - began:.0f} s"
    )


async def listing(backend: Backend, count: int) -> str:
    """Measure the first page of so many tasks; check that the next ones have each task once."""
    me = caller("lister")
    turns = asyncio.Semaphore(32 if backend.counted.units else 1)

    async def create(number: int) -> None:
        task = Task(id=f"{backend.name}-{number:06d}", context_id=f"c-{number % 100}")
        task.status.state = TaskState.TASK_STATE_COMPLETED
        task.status.timestamp.seconds = 1_700_000_000 + number
        async with turns:
            await backend.one.tasks.save(task, event=None, prev=None, prev_version=NEW, context=me)

    await asyncio.gather(*map(create, range(count)))
    backend.counted.begin()
    began = time.perf_counter()
    page = await backend.other.tasks.list(ListTasksRequest(page_size=50), me)
    took, (_, units) = time.perf_counter() - began, backend.counted.since()
    assert (len(page.tasks), page.total_size) == (50, count)
    found = [task.id for task in page.tasks]
    while page.next_page_token and len(found) < LISTED:
        request = ListTasksRequest(page_size=100, page_token=page.next_page_token)
        page = await backend.other.tasks.list(request, me)
        found += [task.id for task in page.tasks]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(found)
    return (
        f"{backend.name:22} first 50 of {count} tasks: {1000 * took:.0f} ms, {units:.0f} read units"
    )


def imports(rounds: int = 5) -> str:
    """Measure the processor time of a process that imports the stores, beside the stock server."""
    stock = "import a2a.server.routes, a2a.server.cluster, boto3; boto3.client('dynamodb')"
    ours = (
        "import a2a.server.routes, a2a_serverless.stores as s;"
        "from a2a_serverless import aws; aws.client('dynamodb')"
    )
    found: dict[str, list[float]] = {stock: [], ours: []}
    for _ in range(rounds):
        for script, times in found.items():
            code = f"import time\n{script}\nprint(time.process_time())"
            done = subprocess.run(  # noqa: S603 - our own interpreter
                [sys.executable, "-c", code],
                capture_output=True,
                check=True,
                env={"AWS_DEFAULT_REGION": "us-east-1"},
            )
            times.append(float(done.stdout))
    low = [min(times) for times in found.values()]
    return (
        f"import, with one client: the SDK's server and boto3 {low[0]:.2f} s of processor,"
        f" the SDK's server and the stores {low[1]:.2f} s ({low[1] / low[0]:.0%})"
    )


async def main(tasks: int, most_savers: int) -> None:
    """Print a line for each measurement."""
    print(imports(), flush=True)
    with TemporaryDirectory() as folder:
        async with backends(Path(folder)) as all_backends:
            for count in (400, 800, 1600):
                for backend in all_backends:
                    print(await chunks(backend, count), flush=True)
            for backend in all_backends:
                print(await delays(backend), flush=True)
            for backend in all_backends:
                print(await listing(backend, tasks), flush=True)
            print(await savers(all_backends[0], most_savers), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--savers", type=int, default=200)
    options = parser.parse_args()
    asyncio.run(main(options.tasks, options.savers))

"""What a commit costs beside others that write its task: `python -m benchmarks.races`.

On DynamoDB Local a worker commits chunks to one task. Others renew its lease, or set webhooks. Each
of their writes replaces HEAD, so that the worker's next commit is refused, read again, and made.
The program prints requests, units and milliseconds of a commit, and how many races it loses. The
exit status is 1 if a commit was never made.

Requests and units are counted by rule (`benchmarks.meter`), in a run of their own. DynamoDB Local
has no conflicts of transactions: DynamoDB refuses one of two that meet, and it is repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from a2a.types import SendMessageRequest, TaskPushNotificationConfig

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import ConcurrencyError, ConditionFailedError, UnavailableError
from a2a_serverless.storage.changes import MOST_TRIES, pause_after
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.dynamodb import DynamoTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Write
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope, new_id
from a2a_serverless.tasks.push import MAX_CONFIGS
from a2a_serverless.tasks.rules import Commit, renewing
from a2a_serverless_tools.local.provision import table_definition
from benchmarks.meter import Meter, Usage
from benchmarks.storage import artifact, client_of, message
from benchmarks.stream_figures import percentile
from tests.support.emulators import Emulator, dynamodb_local

TABLE = "tasks"
TOKEN = "a" * 22
PUTTERS = 8
PIECE = Commit(entries=(ArtifactWritten(artifact("x" * 200), append=True),), token=TOKEN)

Meanwhile = Callable[[DurableStorage, Head, int], Awaitable[object]]
"""What others do between the worker's read and its commit, in a round."""


@dataclass
class Tally:
    """How long writes of one kind took, and how many races each has lost."""

    ms: list[float] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    given_up: int = 0

    def __str__(self) -> str:
        """Return its figures: median and p95, races lost on average and at most, given up."""
        half, most = (percentile(self.ms, share) for share in (50, 95))
        mean = sum(self.lost) / len(self.lost)
        return f"{half:9.1f}{most:8.1f}{mean:8.2f}{max(self.lost):6}{self.given_up:7}"


@dataclass
class Worker:
    """Commits to one task as a worker's lease does."""

    storage: DurableStorage
    head: Head
    tally: Tally = field(default_factory=Tally)

    async def commit(self) -> None:
        """Make one commit; count the races that it loses."""
        began = time.perf_counter()
        for attempt in range(1, MOST_TRIES + 1):
            try:
                self.head = await self.storage.commit(self.head, PIECE)
            except ConcurrencyError:
                await pause_after(self.storage.clock, attempt)
                found = await self.storage.head(self.head.task_id)
                assert found is not None
                self.head = found
            else:
                self.tally.lost.append(attempt - 1)
                self.tally.ms.append(1000 * (time.perf_counter() - began))
                return
        self.tally.given_up += 1


async def worker_of(storage: DurableStorage) -> Worker:
    """Return a worker that has claimed the turn of a new task."""
    opened = await storage.open_task("context", SendMessageRequest(message=message("go")))
    head = await storage.commit(opened.head, Commit(token=TOKEN, claims=True, worker="w"))
    return Worker(storage, head)


async def nobody(storage: DurableStorage, head: Head, number: int) -> None:
    """Nobody else writes the task."""


async def renewal(storage: DurableStorage, head: Head, number: int) -> None:
    """The heartbeat renews the lease."""
    renewed = partial(renewing, token=TOKEN, due_at=(head.due_at or 0) + number + 1)
    assert await storage.change(head, renewed) is not None


async def registration(storage: DurableStorage, head: Head, number: int) -> None:
    """A client sets a webhook."""
    await storage.webhooks.put(hook(head, number))


def hook(head: Head, number: int) -> TaskPushNotificationConfig:
    """Return one of the webhooks that a task has room for."""
    url = f"https://receiver.example/{new_id()}"
    return TaskPushNotificationConfig(task_id=head.task_id, id=f"c{number % MAX_CONFIGS}", url=url)


async def in_turns(
    own: DurableStorage, others: DurableStorage, meanwhile: Meanwhile, rounds: int
) -> Tally:
    """Let another writer come between the worker's read and each of its commits."""
    worker = await worker_of(own)
    for number in range(rounds):
        await meanwhile(others, worker.head, number)
        await worker.commit()
    return worker.tally


@asynccontextmanager
async def putting(storage: DurableStorage, head: Head, putters: int) -> AsyncIterator[Tally]:
    """Set webhooks of a task without a pause, `putters` at a time; yield what becomes of it."""
    tally = Tally()

    async def put(number: int) -> None:
        while True:
            began = time.perf_counter()
            refused.set([])
            try:
                await storage.webhooks.put(hook(head, number))
            except UnavailableError:
                tally.given_up += 1
            else:
                tally.ms.append(1000 * (time.perf_counter() - began))
                tally.lost.append(len(refused.get()))

    tasks = [asyncio.ensure_future(put(number)) for number in range(putters)]
    try:
        yield tally
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


refused: ContextVar[list[bool]] = ContextVar("refused")
"""The writes of the put under way that were refused."""


class Counting(DynamoTable):
    """A table that notes the writes that are refused."""

    async def write(self, *writes: Write, exactly: bool = False) -> None:
        try:
            await super().write(*writes, exactly=exactly)
        except ConditionFailedError:
            refused.get([]).append(True)
            raise


async def at_once(
    own: DurableStorage, others: DurableStorage, putters: int, rounds: int
) -> tuple[Tally, Tally]:
    """Let a worker commit without a pause while others set webhooks without one."""
    worker = await worker_of(own)
    async with putting(others, worker.head, putters) as puts:
        for _ in range(rounds):
            await worker.commit()
    return worker.tally, puts


KINDS: tuple[tuple[str, Meanwhile], ...] = (
    ("alone", nobody),
    ("behind a renewal", renewal),
    ("behind a new webhook", registration),
)


def storage_on(client: Any, scope: Scope) -> DurableStorage:
    """Return a storage on a client."""
    clock = SystemClock()
    return DurableStorage(
        Counting(TABLE, INDEXES, client=client, clock=clock), scope=scope, clock=clock
    )


def measured(emulator: Emulator, rounds: int) -> bool:
    """Print the figures; return False if a commit has lost too many races."""
    observer = client_of(emulator)
    observer.create_table(TableName=TABLE, **table_definition(stream=False))
    scope = Scope.of("benchmark", new_id())
    own, others = (storage_on(client_of(emulator), scope) for _ in range(2))
    counted = client_of(emulator)
    meter, plain = Meter(counted, observer, TABLE), storage_on(counted, scope)
    print(
        f"{'a commit':<34}{'requests':>9}{'write':>7}{'read':>6}{'p50 ms':>9}{'p95':>8}{'lost':>8}"
        f"{'most':>6}{'failed':>7}"
    )
    tallies = []
    for name, meanwhile in KINDS:
        usage = asyncio.run(one_commit(meter, plain, others, meanwhile))
        tally = asyncio.run(in_turns(own, others, meanwhile, rounds))
        spent = f"{usage.requests:>9}{usage.write_units:>7.0f}{usage.read_units:>6.1f}"
        print(f"{name:<34}{spent}{tally}")
        tallies.append(tally)
    for putters in (1, PUTTERS):
        tally, puts = asyncio.run(at_once(own, others, putters, rounds))
        print(f"{f'beside {putters} that set webhooks':<34}{'':>22}{tally}")
        print(f"{'  a webhook set meanwhile':<34}{'':>22}{puts}, {len(puts.ms)} set")
        tallies.append(tally)
    return not any(tally.given_up for tally in tallies)


async def one_commit(
    meter: Meter, own: DurableStorage, others: DurableStorage, meanwhile: Meanwhile
) -> Usage:
    """Return what one commit costs the worker."""
    worker = await worker_of(own)
    await meanwhile(others, worker.head, 0)
    with meter.measure() as usage:
        await worker.commit()
    return usage


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="commits of each kind")
    rounds = parser.parse_args().rounds
    with dynamodb_local() as emulator:
        return 0 if measured(emulator, rounds) else 1


if __name__ == "__main__":
    sys.exit(main())

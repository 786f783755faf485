"""What sweeps cost while turns sleep.

`python -m benchmarks.sleepers [--parked 10000] [--due 1000]` prints for a table in this process and
for DynamoDB Local the requests, the units and the seconds of a sweep that finds no turn whose time
is over, and of those that send `--due` of them.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.head import Operation
from a2a_serverless.worker.sweeper import Sweeper
from a2a_serverless_tools.local.provision import table_definition
from benchmarks.meter import Meter, Usage
from tests.support.clocks import ManualClock
from tests.support.commits import asleep
from tests.support.databases import dynamo_storage
from tests.support.emulators import dynamodb_local
from tests.support.memory import memory_storage
from tests.support.queues import MemoryQueue

TABLE = "tasks"
AT_ONCE = 32
HOUR_MS = 3_600_000
Measure = Callable[[], AbstractContextManager[Usage | None]]


async def measure(
    storage: DurableStorage, made_by: DurableStorage, measured: Measure, parked: int, due: int
) -> None:
    """Print what the sweeps of one table cost; `made_by` is the same one, unmeasured."""
    clock = storage.clock
    assert isinstance(clock, ManualClock)
    at_ms, room = clock.now_ms() + HOUR_MS, asyncio.Semaphore(AT_ONCE)

    async def sleeps(number: int) -> None:
        async with room:
            until_ms = at_ms if number < due else at_ms + 24 * HOUR_MS
            await asleep(made_by, f"caller {number % 50}", until_ms)

    await asyncio.gather(*(sleeps(number) for number in range(due + parked)))
    queue, sent = MemoryQueue(Operation, clock=clock), 0
    while sent < due:
        begun = time.perf_counter()
        with measured() as usage:
            report = await Sweeper(storage, queue, clock=clock).sweep()
        seconds, sent = time.perf_counter() - begun, sent + report.requeued
        cost = ""
        if usage is not None:
            cost = f", {usage.requests} requests, {usage.read_units:.1f} read and"
            cost += f" {usage.write_units:.0f} write units"
        print(f"{report.requeued} of {due + parked} sent: {seconds:.2f} s{cost}")
        clock.advance(HOUR_MS / 1000 if not report.requeued else 60)


def main() -> None:
    """Measure on a table of this process, and on a DynamoDB Local that is started for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parked", type=int, default=10_000)
    parser.add_argument("--due", type=int, default=1000)
    chosen = parser.parse_args()
    timing = Settings().timing()
    print("dictionaries")
    own = memory_storage(clock=ManualClock(), timing=timing)
    asyncio.run(measure(own, own, partial(nullcontext, None), chosen.parked, chosen.due))
    print("DynamoDB Local")
    with dynamodb_local() as emulator:
        client, other = (emulator.client(max_pool_connections=64) for _ in range(2))
        client.create_table(TableName=TABLE, **table_definition(stream=False))
        meter, clock = Meter(client, emulator.client(), TABLE), ManualClock()
        far, made_by = (
            dynamo_storage(TABLE, client=each, clock=clock, timing=timing)
            for each in (client, other)
        )
        asyncio.run(measure(far, made_by, meter.measure, chosen.parked, chosen.due))


if __name__ == "__main__":
    main()

"""What the first page costs beside many tasks: `python -m benchmarks.status [--tasks 100000]`.

Fills a file and DynamoDB Local with tasks of 50 callers over three days, and reads the status of
each, as the command does (`new`) and as an open console does (`open`). Prints the times, the
requests and units of the table, and the load of the machine. The exit status is 1 if the median is
more than a second, or a look takes more than 12 requests with those of queues and CloudWatch.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from a2a.types import SendMessageRequest, TaskPushNotificationConfig, TaskState, TaskStatus

from a2a_serverless.clock import SystemClock
from a2a_serverless.settings import Settings
from a2a_serverless.storage.activity import Ended, count_ended, tell_of_process
from a2a_serverless.storage.codec import event_items, head_item
from a2a_serverless.storage.durable import DurableStorage, _encoded
from a2a_serverless.storage.dynamodb import typed
from a2a_serverless.storage.endings import gave_up
from a2a_serverless.storage.layout import HOUR_MS, INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import MAX_WRITES, Item, Put
from a2a_serverless.tasks.entries import Caller, StatusChanged
from a2a_serverless.tasks.head import AttemptEnd
from a2a_serverless.tasks.identity import Scope, new_id, new_incarnation, new_token
from a2a_serverless.tasks.rules import Commit, NewTask, Timing, advance, open_task, releasing
from a2a_serverless.wiring import OBSERVER
from a2a_serverless_tools.local.provision import table_definition
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.status import Status, status_of
from benchmarks.meter import Meter, Usage
from benchmarks.storage import TABLE, client_of, echo_commit, message, store
from tests.support.databases import dynamo_storage
from tests.support.emulators import dynamodb_local

CALLERS: Final = 50
HOURS: Final = 72
FAILED: Final = 670
"""Tasks that failed within 24 hours."""
WAITING: Final = 200
UNTOLD: Final = 40
LOOKS: Final = 20
MOST_S: Final = 1.0
MOST_REQUESTS: Final = 12
BESIDE: Final = 6
"""Requests beside those of the table: five of queues, and one of CloudWatch."""
STORED_AT_ONCE: Final = 10_000
REASONS: Final = ("ValueError", "TimeoutError", "HTTPStatusError", "KeyError", "ModelError")


class Fill:
    """Tasks that end in turn over `HOURS`, drawn from a seed.

    Args:
        tasks: how many.
        now_ms: the time of the last one's end.
    """

    def __init__(self, tasks: int, now_ms: int) -> None:
        self._random = random.Random(1)  # noqa: S311 - repeatable
        self._tasks = tasks
        self._now_ms = now_ms
        of_day = range(tasks * (HOURS - 22) // HOURS, tasks)  # filling takes its time
        self._failed = set(self._random.sample(of_day, min(FAILED, len(of_day))))
        self.ends: list[Ended] = []

    def items(self) -> Iterator[Item]:
        """Yield the items of all tasks."""
        for number in range(self._tasks):
            age = HOURS * HOUR_MS * (self._tasks - number) // self._tasks
            yield from self._task(number, self._now_ms - age)

    def _task(self, number: int, at_ms: int) -> Iterator[Item]:
        user = f"caller-{number % CALLERS}"
        took = round(self._random.lognormvariate(8, 1))
        new = NewTask(
            scope=Scope.of("", user).digest,
            task_id=new_id(),
            context_id="context",
            incarnation=new_incarnation(),
            request=SendMessageRequest(message=message(f"Question {number}")),
            caller=Caller(user=user),
        )
        opened = open_task(new, now_ms=at_ms - took, timing=Timing())
        has_failed = number in self._failed
        end = echo_commit("answer")
        if has_failed:
            lost = AttemptEnd(token=end.token or "", reason=self._random.choice(REASONS))
            end = replace(gave_up(opened.head, "0123456789abcdef"), failed=lost)
        ended = advance(opened.head, end, now_ms=at_ms, timing=Timing())
        for step in (opened, ended):
            yield from event_items(*_encoded(step))
        yield head_item(ended.head)
        state = "failed" if has_failed else "completed"
        self.ends.append(Ended(at=at_ms, state=state, took_ms=took, waited_ms=took // 10))


async def beside(storage: DurableStorage, fill: Fill) -> None:
    """Add open turns that wait, webhooks that were given up, the counts and a worker."""
    now_ms = storage.clock.now_ms()
    of_day = [end for end in fill.ends if end.at >= now_ms - 25 * HOUR_MS]
    await count_ended(storage.table, of_day, now_ms)
    await tell_of_process(storage.table, turns=0, now_ms=storage.clock.now_ms())
    working = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_WORKING))
    for number in range(WAITING):
        user = f"caller-{number % CALLERS}"
        own = storage.for_scope(Scope.of("", user))
        opening = SendMessageRequest(message=message("wait"))
        opened = await own.open_task(f"c-{number}", opening, caller=Caller(user=user))
        head, token = opened.head, new_token()
        head = await own.commit(head, Commit(entries=(working,), token=token, claims=True))
        end = AttemptEnd(token=token, reason="ModelBusy", at=now_ms, until=now_ms + HOUR_MS)
        assert await own.change(head, partial(releasing, end=end)) is not None
        if number < UNTOLD:
            url = "https://receiver.example/"
            hook = TaskPushNotificationConfig(task_id=head.task_id, id="hook", url=url)
            push = await own.webhooks.put(hook)
            lost = push.settled((1, 0), "status 503", now_ms, is_told=False)
            assert await own.webhooks.move(push, lost)


async def look(
    name: str, storage: DurableStorage, measure: Callable[[], AbstractContextManager[Usage]]
) -> bool:
    """Read the status `LOOKS` times, print what it took, and return whether that is in bounds."""
    kept, holds = Inspector(storage, Settings(), place=name), True
    _check(await status_of(kept))
    for kind in ("new", "open"):
        times: list[float] = []
        for _ in range(LOOKS):
            inspector = kept if kind == "open" else Inspector(storage, Settings(), place=name)
            start = time.perf_counter()
            with measure() as usage:
                await status_of(inspector)
            times.append(time.perf_counter() - start)
        median, slow = statistics.median(times), sorted(times)[LOOKS * 95 // 100]
        load = os.getloadavg()[0]
        counted = f"{usage.requests} requests, {usage.read_units:g} read units, "
        print(
            f"{name:<16}{kind:<6}p50 {median * 1000:.0f} ms, p95 {slow * 1000:.0f} ms,"
            f" {counted if usage.requests else ''}load {load:.1f}"
        )
        holds = holds and median <= MOST_S and usage.requests + BESIDE <= MOST_REQUESTS
    return holds


def _check(status: Status) -> None:
    """Assert that the page says what was filled in."""
    day = status.day
    assert (day.failed, day.untold) == (FAILED, UNTOLD), status
    assert status.waiting.kinds == {"retry": WAITING}, status
    assert (status.working, sum(status.last_day["ended"].values()) > 0) == (1, True), status


async def on_file(tasks: int) -> bool:
    """Fill and look at a file."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(SqliteTable(Path(folder) / "tasks.db", INDEXES)) as table,
    ):
        storage = DurableStorage(table, clock=SystemClock(), observer=OBSERVER)
        fill = Fill(tasks, storage.clock.now_ms())
        items = fill.items()
        while some := list(islice(items, MAX_WRITES)):
            await table.write(*(Put(item=item) for item in some))
        await beside(storage, fill)
        return await look("file", storage, lambda: nullcontext(Usage()))


async def on_dynamodb(tasks: int, client: Any, observer: Any) -> bool:
    """Fill and look at DynamoDB Local."""
    storage = dynamo_storage(TABLE, client=client)
    fill = Fill(tasks, storage.clock.now_ms())
    items = map(typed, fill.items())
    while some := list(islice(items, STORED_AT_ONCE)):
        await asyncio.to_thread(store, observer, some)
    await beside(storage, fill)
    return await look("DynamoDB Local", storage, Meter(client, observer, TABLE).measure)


def main() -> int:
    """Fill both tables and print what the page takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    tasks = parser.parse_args().tasks
    holds = asyncio.run(on_file(tasks))
    with dynamodb_local() as emulator:
        observer = client_of(emulator)
        observer.create_table(TableName=TABLE, **table_definition(stream=False))
        holds &= asyncio.run(on_dynamodb(tasks, client_of(emulator), observer))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

"""Webhooks that wait: after a failure they stand in the table, and are woken when it is time.

A job that waited on the queue would be in flight, and a FIFO queue has room for 120,000. So a wait
of a minute or more acknowledges the job, and leaves the configuration in the due index. The sweeper
sends a new job. The index lags behind: a condition on the configuration decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from a2a_serverless import faults
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.queues.fifo import MOST_AT_ONCE, FifoQueue
from a2a_serverless.storage import layout
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_in
from a2a_serverless.storage.table import Check, Item, Update, key_of

_WOKEN_MS: Final = 900_000
"""Milliseconds after which a configuration whose job was sent is woken again, if it waits still."""

_PAGE: Final = 500
"""Configurations of one shard that one look at the index names at most."""

_LANES: Final = 8
"""Batches of jobs that are sent at the same time."""

logger = logging.getLogger(__name__)


async def wake_due(storage: DurableStorage, jobs: FifoQueue[PushJob], until: float) -> int:
    """Send the jobs of the configurations whose wait is over; return how many were sent.

    Begin no new batch after the monotonic second `until`. Several processes may do this at once.

    Raises:
        UnavailableError: the table did not answer; the next run goes on.
    """
    sent = 0
    while storage.clock.monotonic() < until:
        shards = await asyncio.gather(*(_due(storage, shard) for shard in range(layout.SHARDS)))
        found = [item for shard in shards for item in shard]
        starts = range(0, len(found), MOST_AT_ONCE)
        batches = iter([found[start : start + MOST_AT_ONCE] for start in starts])
        lanes = [_lane(storage, jobs, batches, until) for _ in range(_LANES)]
        sent += sum(await asyncio.gather(*lanes))
        if all(len(shard) < _PAGE for shard in shards):
            break
    return sent


async def _due(storage: DurableStorage, shard: int) -> list[Item]:
    wanted = due_in(layout.push_due_key(shard), storage.clock.now_ms())
    return await storage.table.first(_PAGE, wanted)


async def _lane(
    storage: DurableStorage, jobs: FifoQueue[PushJob], batches: Iterator[list[Item]], until: float
) -> int:
    sent = 0
    for batch in batches:
        if storage.clock.monotonic() >= until:
            break
        woken = await asyncio.gather(*(_postponed(storage, entry) for entry in batch))
        messages = [_job_of(entry) for entry, is_own in zip(batch, woken, strict=True) if is_own]
        if messages:
            faults.point("push-postponed")
        for job, error in zip(messages, await jobs.send_all(messages), strict=True):
            if error is None:
                sent += 1
                continue
            extra = {"action": "wake_failed", "task_id": job.task_id, "config_id": job.config_id}
            logger.warning("A webhook waits on: its job was not sent", extra=extra, exc_info=error)
    return sent


async def _postponed(storage: DurableStorage, entry: Item) -> bool:
    """Move the due time, before the job is sent: of two processes one sends, and none is lost."""
    due_at = storage.clock.now_ms() + _WOKEN_MS
    when = [Check("due_at", "=", int(entry["due_at"]))]
    return await storage.table.did(Update(key=key_of(entry), values={"due_at": due_at}, when=when))


def _job_of(entry: Item) -> PushJob:
    scope, task_id = layout.owner_of(entry["PK"])
    incarnation, config_id = layout.push_names(entry["SK"])
    return PushJob(
        scope=scope,
        task_id=task_id,
        incarnation=incarnation,
        config_id=config_id,
        version=1,
        wake=int(entry["due_at"]),
    )

"""Push without Lambda: the commits of a table become jobs, and the jobs are delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.observability import metrics
from a2a_serverless.push.deliverer import Budget, Deliverer
from a2a_serverless.push.function import PushStream
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.table import Streamed
from a2a_serverless.wiring import Backends
from a2a_serverless_tools.local.background import Background, repeat, surviving
from a2a_serverless_tools.local.sources import AddedStream, Records, StreamSource, TableStream

DELIVERY_S: Final = 55.0
"""Seconds after which a delivery begins no further request: its job is hidden for 90 s."""

LONG_POLL_S: Final = 1.0
"""Seconds of one poll; stopping waits for it where a table is not told of writes."""

FIRST_RETRY_S: Final = 0.5
LONGEST_RETRY_S: Final = 10.0
"""The waits in seconds between two attempts at the same records of a stream."""


def stream_of(backends: Backends, settings: Settings) -> Callable[[], StreamSource]:
    """Return what makes the source of a table's commits.

    Raises:
        ConfigurationError: the table does not tell of its new items.
        ClientError, BotoCoreError: the table on AWS did not answer.
    """
    table = backends.storage.table
    if isinstance(table, Streamed):
        return partial(AddedStream, table)
    if isinstance(backends.pushing().jobs, TableQueue):
        raise ConfigurationError(
            f"A table of the kind {type(table).__name__} does not tell of its new items, so that"
            " nothing can be pushed from it: use another one, or unset A2A_PUSH_QUEUE."
        )
    asyncio.run(TableStream(settings.table).arn())
    return partial(TableStream, settings.table)


@contextmanager
def pushing(
    backends: Backends,
    settings: Settings,
    stream: Callable[[], StreamSource],
    *,
    concurrency: int,
) -> Iterator[Background]:
    """Run push for a `with` block; slow webhooks do not hold up the stream.

    Yields what ends with the last delivery after a shutdown of the jobs' queue.

    Args:
        backends: the backends, including those of push.
        settings: which events are pushed, allowed receivers, and for how long one may fail.
        stream: makes the source of the commits, in the loop that reads it.
        concurrency: webhooks that are called at the same time.
    """
    push = backends.pushing()
    jobs = PushStream(backends.storage, push.jobs, settings.push_events)
    own = settings.model_copy(update={"push_concurrency": concurrency})

    async def settle(records: Records) -> None:
        """Send the jobs of records; those that fail are tried again, and later ones wait."""
        pause_s = FIRST_RETRY_S
        while failed := set(await jobs.process(records)):
            records = [one for one in records if one["dynamodb"]["SequenceNumber"] in failed]
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_RETRY_S)

    async def read() -> None:
        await stream().feed(settle)

    async def deliver() -> None:
        free = asyncio.Semaphore(concurrency)
        deliverer = Deliverer(backends.storage, push, own)

        async def work(handle: Handle[PushJob]) -> None:
            try:
                now = deliverer.clock.monotonic()
                await deliverer.deliver(handle, Budget(own.push_timeout_s, now + DELIVERY_S))
            finally:
                free.release()
                metrics.flush()

        async with asyncio.TaskGroup() as running:
            while not push.jobs.is_closed:
                await free.acquire()  # first: a job's visibility runs from its receive on
                handles = await push.jobs.pull(1, LONG_POLL_S)
                for handle in handles:
                    running.create_task(work(handle))
                if not handles:
                    free.release()

    async def reading() -> None:
        failure = "The stream cannot be read."
        await repeat(read, pause_s=LONGEST_RETRY_S, failure=failure, action="pump_failed")

    async def delivering() -> None:
        while not push.jobs.is_closed:
            with surviving("The queue cannot be read.", action="pump_failed"):
                await deliver()
            await asyncio.sleep(FIRST_RETRY_S)

    with Background("push", delivering) as delivery, Background("push-stream", reading):
        yield delivery

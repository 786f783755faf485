"""The events of tasks, for the replicas that do not run them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

from a2a.server.cluster import TaskEventStream, TaskVersion, VersionedEvent

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.table import Table
from a2a_serverless.stores import layout
from a2a_serverless.stores.log import TaskLog, number_of, sdk_errors

_FASTEST_POLL_S: Final = 0.025
_SLOWEST_POLL_S: Final = 1.0
_SHARE_OF_SILENCE: Final = 0.1
"""A poll waits a tenth of the silence so far: quick while events come, once a second after 10 s."""


class DynamoDBTaskEventStream(TaskEventStream):
    """Follows tasks that other replicas run; it reads what `DynamoDBTaskStore` has saved.

    On DynamoDB a subscriber asks for a task's HEAD 40 times a second while events come, and once a
    second after 10 s of silence; each takes one read unit. On a file and in memory it is woken.

    Args:
        table: the one of the task store: the name of a DynamoDB table, or a table.
        bucket: as the task store's.
        clock: by default the system's.
    """

    def __init__(
        self, table: str | Table, *, bucket: str | None = None, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._table = layout.opened(table, self._clock)
        self._log = TaskLog(self._table, bucket, self._clock)

    async def publish(self, task_id: str, event: VersionedEvent) -> None:
        """Do nothing: the task store has committed the event together with the task."""

    async def subscribe(
        self, task_id: str, *, after: TaskVersion
    ) -> AsyncGenerator[VersionedEvent, None]:
        """Yield the events behind a version in their order, and then each that is saved.

        It ends when its reader closes it, as that of the SDK's SQL stream does. A request that the
        table does not answer is repeated.

        Raises:
            TypeError: the version is none of the task store's.
            InternalError: the table cannot be used.
        """
        cursor, incarnation = number_of(after), ""
        last_news = self._clock.monotonic()
        while True:
            events: list[VersionedEvent] = []
            # Watched before it is read: what is committed in between ends the wait.
            with self._table.watch(layout.partition_of(task_id)) as watch, sdk_errors():
                with suppress(UnavailableError):  # it is read again
                    head = await self._log.head(task_id)
                    if head is not None and head.incarnation != incarnation:
                        # The id of a deleted task may be that of a new one, which counts anew.
                        cursor, incarnation = number_of(after), head.incarnation
                    if head is not None and head.version > cursor:
                        events = await self._log.events(task_id, head, cursor)
                        cursor = head.version
                if not events:
                    wait_s = (self._clock.monotonic() - last_news) * _SHARE_OF_SILENCE
                    await watch.wait(min(_SLOWEST_POLL_S, max(_FASTEST_POLL_S, wait_s)))
            for event in events:
                yield event
                last_news = self._clock.monotonic()

    async def destroy(self, task_id: str) -> None:
        """Do nothing: the events stay as long as the task does."""

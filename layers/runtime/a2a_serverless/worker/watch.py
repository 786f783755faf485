"""Watching the tasks of running turns: one may be canceled, taken over, or ended elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import Context
from dataclasses import dataclass

from a2a_serverless.clock import Clock
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.log import LOOK_AT_ONCE, TaskKey
from a2a_serverless.tasks.head import Head
from a2a_serverless.worker.failures import going_on

logger = logging.getLogger(__name__)

POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Watched:
    """A task that is watched, and the function that takes each look at it."""

    key: TaskKey
    on_look: Callable[[Head | None], Awaitable[None]]


class Watch:
    """Looks once a second at HEAD of all tasks whose turns a process runs.

    One request serves `LOOK_AT_ONCE` tasks. It runs only while there is a task to watch: Lambda
    freezes background work. A look that fails, or has no capacity, shows nothing; the next one
    follows after `interval_s`.
    """

    def __init__(self, log: DurableStorage, clock: Clock, *, interval_s: float = POLL_S) -> None:
        self._log = log
        self._clock = clock
        self._interval_s = interval_s
        self._watched: set[Watched] = set()
        self._poller: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def over(self, watched: Watched) -> AsyncIterator[None]:
        """Watch a task for as long as the block runs."""
        self.add(watched)
        try:
            yield
        finally:
            await self.remove(watched)

    def add(self, watched: Watched) -> None:
        """Watch a task until it is removed."""
        self._watched.add(watched)
        if self._poller is None:
            # In a context of its own: it outlives the turn that has started it.
            self._poller = asyncio.create_task(self._poll(), context=Context())

    async def remove(self, watched: Watched) -> None:
        """Stop watching a task. Idempotent; with the last one the polling ends."""
        self._watched.discard(watched)
        if not self._watched and self._poller is not None:
            poller, self._poller = self._poller, None
            poller.cancel()
            await asyncio.gather(poller, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            await self._clock.sleep(self._interval_s)
            tasks = list({watched.key for watched in self._watched})
            starts = range(0, len(tasks), LOOK_AT_ONCE)
            await asyncio.gather(*(self._look(tasks[at : at + LOOK_AT_ONCE]) for at in starts))

    async def _look(self, tasks: Collection[TaskKey]) -> None:
        with _going_on(tasks=len(tasks)):
            looks = await self._log.look(tasks)
            seen = [watched for watched in self._watched if watched.key in looks]
            await asyncio.gather(*(self._tell(watched, looks[watched.key]) for watched in seen))

    async def _tell(self, watched: Watched, head: Head | None) -> None:
        with _going_on(task_id=watched.key[1]):
            await watched.on_look(head)


def _going_on(**fields: object) -> AbstractContextManager[None]:
    """Log an exception and go on: one failed look must not end the watch."""
    return going_on(
        logger, logging.WARNING, "Turns not watched", action="watch_failed", fields=fields
    )

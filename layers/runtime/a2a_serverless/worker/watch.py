"""Seeing from a running turn that it was cancelled, taken over or ended by somebody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass

from a2a_serverless.cancel.base import CancelRegistry
from a2a_serverless.clock import Clock
from a2a_serverless.storage.log import TaskLog
from a2a_serverless.tasks.head import Head

logger = logging.getLogger(__name__)

POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Watched:
    """A running turn: where its flag and HEAD are, and who wants to know."""

    task_id: str
    log: TaskLog
    registry: CancelRegistry
    on_cancel: Callable[[], None]
    on_head: Callable[[Head | None], None]


class Watch:
    """One poller for all turns that a process runs; it runs while there is a turn to watch."""

    def __init__(self, clock: Clock, *, interval_s: float = POLL_S) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._turns: set[Watched] = set()
        self._poller: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def over(self, turn: Watched) -> AsyncIterator[None]:
        """Watch a turn for as long as the block runs."""
        self._turns.add(turn)
        if self._poller is None:
            # In a context of its own: it outlives the turn that happens to begin it.
            self._poller = asyncio.create_task(self._poll(), context=Context())
        try:
            yield
        finally:
            self._turns.discard(turn)
            if not self._turns:
                poller, self._poller = self._poller, None
                poller.cancel()
                await asyncio.gather(poller, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            await self._clock.sleep(self._interval_s)
            await asyncio.gather(*(self._look(turn) for turn in tuple(self._turns)))

    async def _look(self, turn: Watched) -> None:
        try:
            if await turn.registry.is_cancelled(turn.task_id):
                turn.on_cancel()
            turn.on_head(await turn.log.head(turn.task_id))
        except Exception:
            # Whatever it is, the watch must not go blind. Nothing is known, so nothing is done.
            extra = {"action": "watch_failed", "task_id": turn.task_id}
            logger.warning("Turn not watched", extra=extra, exc_info=True)

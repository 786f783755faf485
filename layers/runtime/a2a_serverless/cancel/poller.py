"""One periodic look at the flags of all turns that an event loop runs."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from a2a_serverless.clock import Clock

GRACE_S = 5.0
"""How long the end of the poller waits for a request that is under way."""

logger = logging.getLogger(__name__)


class Poller:
    """Sets the events of the tasks that `raised` names, until they are removed.

    It runs from the first event to the last: nothing is left in the background after that. A
    failed look sets nothing, is logged, and the next one follows after the period.
    """

    def __init__(
        self,
        raised: Callable[[Iterable[str]], Awaitable[set[str]]],
        *,
        clock: Clock,
        period_s: float,
    ) -> None:
        self._raised = raised
        self._clock = clock
        self._period_s = period_s
        self._events: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def add(self, partition: str, event: asyncio.Event) -> None:
        """Set `event` once the task has a flag; the first look is taken at once."""
        self._events[partition].add(event)
        if self._task is None:
            self._ended = asyncio.Event()
            self._task = asyncio.create_task(self._run(self._ended), name="cancel-poller")

    async def remove(self, partition: str, event: asyncio.Event) -> None:
        """Forget `event`. Idempotent."""
        if partition in self._events:
            self._events[partition].discard(event)
            if not self._events[partition]:
                del self._events[partition]
        await self._end_if_idle()

    async def remove_all(self, partition: str) -> None:
        """Forget all events of a task. Idempotent."""
        self._events.pop(partition, None)
        await self._end_if_idle()

    async def _end_if_idle(self) -> None:
        if self._events or self._task is None:
            return
        task, self._task = self._task, None
        self._ended.set()
        # A request that is under way would be frozen with the Lambda; it is let through.
        await asyncio.wait({task}, timeout=GRACE_S)
        task.cancel()

    async def _run(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await self._look()
            await self._pause(ended)

    async def _look(self) -> None:
        waiting = [p for p, events in self._events.items() if not all(e.is_set() for e in events)]
        if not waiting:
            return
        try:
            raised = await self._raised(waiting)
        except Exception as error:  # noqa: BLE001 - whatever it is, the scopes must not go deaf
            logger.warning(
                "Cancel flags were not read: %s",
                error,
                extra={"action": "cancel_poll_failed", "tasks": len(waiting)},
            )
            return
        for partition in raised:
            for event in self._events.get(partition, ()):
                event.set()

    async def _pause(self, ended: asyncio.Event) -> None:
        pauses = [
            asyncio.ensure_future(self._clock.sleep(self._period_s)),
            asyncio.ensure_future(ended.wait()),
        ]
        try:
            await asyncio.wait(pauses, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pause in pauses:
                pause.cancel()

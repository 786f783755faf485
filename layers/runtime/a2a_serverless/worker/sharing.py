"""Turns that share a worker: those that it was handed, and those that it pulls in addition.

A turn that waits for its model occupies the whole process. So while a turn runs, the process asks
the queue for others. It pulls only while it has time to finish what it gets, and only once a turn
has run for a second, so that quick agents pay for no poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from a2a_serverless.clock import Clock
from a2a_serverless.errors import A2AServerlessError
from a2a_serverless.observability import metrics
from a2a_serverless.queues.fifo import FifoQueue, Handle
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.worker.loops import first_of

T = TypeVar("T")

logger = logging.getLogger(__name__)

POLL_S: Final = 2.0
"""Seconds of one poll: an invocation may have to wait that long before it returns."""
MOST_AT_ONCE: Final = 10
"""Deliveries that one poll brings at most."""
LONG_TURN_S: Final = 1.0
"""Seconds that a turn must have run before others are pulled."""
SPARE_S: Final = 15.0
"""Seconds between the limit of a turn that is pulled now and the deadline of its process."""
LAG_S: Final = 0.25
"""Seconds of lag above which a loop has no time for more turns."""
LOOK_S: Final = 0.25
"""Seconds between two checks whether a poll may begin."""
FLUSH_EVERY_S: Final = 60.0
"""Seconds between two lines of metrics of a long invocation."""


@dataclass(eq=False)
class Place:
    """The place of one delivery among those of its process."""

    sharing: Sharing
    begun_at: float

    async def alone(self, *, may_wait: bool) -> bool:
        """Return True once no other delivery is worked on, and none will be until this one ends.

        Until then nothing is pulled. Return False if the delivery is to be given back: the wait
        could be too long for the turn, another delivery waits to be alone as well, or there are
        neighbours and `may_wait` is False.
        """
        return await self.sharing.alone(self, may_wait=may_wait)


Process = Callable[[Handle[Operation], Place], Awaitable[bool]]
"""Works on one delivery to its end; returns True if it is done and acknowledged."""


@dataclass(kw_only=True, eq=False)
class Sharing:
    """The deliveries that one process works on at the same time, from its first to its last.

    Args:
        operations: is pulled from.
        process: works on each delivery.
        clock: the source of time.
        turns: the most deliveries at a time.
        turn_limit_s: the longest run of one turn, in seconds.
        deadline: the monotonic second by which all has to be over; None without one.
        lag_s: returns how many seconds late the loop last answered.
    """

    operations: FifoQueue[Operation]
    process: Process
    clock: Clock
    turns: int
    turn_limit_s: float
    deadline: float | None = None
    lag_s: Callable[[], float] = lambda: 0.0
    _places: set[Place] = field(default_factory=set, init=False)
    _alone: Place | None = field(default=None, init=False)
    """The delivery that is alone, or waits to be alone."""
    _is_polling: bool = field(default=False, init=False)
    _has_queue: bool = field(default=True, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`, whose deliveries go through `run`, and pull other deliveries meanwhile.

        Return what `work` returns, once no delivery is worked on and no poll is under way: if the
        process were frozen during a poll, the deliveries would wait until their visibility ends.
        """
        own = asyncio.create_task(work)
        own.add_done_callback(lambda _: self._changed.set())
        flushing = asyncio.create_task(flush_now_and_then(self.clock))
        try:
            async with asyncio.TaskGroup() as pulled:
                while self._places or not own.done():
                    self._changed.clear()
                    if self._may_poll():
                        for handle in await self._poll():
                            pulled.create_task(self.run(handle, self._take()))
                    else:
                        await first_of(self.clock.sleep(LOOK_S), self._changed.wait())
            return await own
        finally:
            for task in (own, flushing):
                task.cancel()
            await asyncio.gather(own, flushing, return_exceptions=True)

    async def run(self, handle: Handle[Operation], place: Place | None = None) -> bool:
        """Work on one delivery; return True if it is done and acknowledged."""
        with self._left(place or self._take()) as taken:
            return await self.process(handle, taken)

    async def alone(self, place: Place, *, may_wait: bool) -> bool:
        """Do what `Place.alone` says."""
        if self._alone is not None:
            return self._alone is place
        if self._has_neighbours(place) and not (may_wait and self._can_wait()):
            return False
        self._alone = place
        while self._has_neighbours(place):
            self._changed.clear()
            await self._changed.wait()
        return self._fits(self.clock.monotonic())

    def _has_neighbours(self, place: Place) -> bool:
        return self._is_polling or self._places != {place}

    def _can_wait(self) -> bool:
        """Return True if there is time for a turn after those that run or that a poll may bring."""
        return self._fits(self.clock.monotonic() + self.turn_limit_s)

    def _may_poll(self) -> bool:
        now = self.clock.monotonic()
        is_long = any(now - place.begun_at >= LONG_TURN_S for place in self._places)
        has_room = len(self._places) < self.turns and self._alone is None
        is_in_time = self._fits(now + POLL_S) and self.lag_s() < LAG_S
        return is_long and has_room and is_in_time and self._has_queue

    def _fits(self, begins_at: float) -> bool:
        """Return True if a turn that begins at `begins_at` ends before the deadline."""
        ends_at = begins_at + self.turn_limit_s + SPARE_S
        return self.deadline is None or ends_at <= self.deadline

    async def _poll(self) -> list[Handle[Operation]]:
        """Return what one poll brings; if it fails, return nothing and end all polling."""
        free = self.turns - len(self._places)
        self._is_polling = True
        try:
            return await self.operations.pull(min(MOST_AT_ONCE, free), POLL_S)
        except A2AServerlessError as error:
            self._has_queue = False
            extra = {"action": "pull_failed"}
            logger.error("No more turns are pulled: %s", error, extra=extra)  # noqa: TRY400 - its sentence says all
            return []
        finally:
            self._is_polling = False
            self._changed.set()

    def _take(self) -> Place:
        place = Place(self, self.clock.monotonic())
        self._places.add(place)
        return place

    @contextmanager
    def _left(self, place: Place) -> Iterator[Place]:
        """Leave the place at the end of the block."""
        try:
            yield place
        finally:
            self._places.discard(place)
            if self._alone is place:
                self._alone = None
            self._changed.set()


async def flush_now_and_then(clock: Clock) -> None:
    """Write the metrics of a process each minute, until cancelled."""
    while True:
        await clock.sleep(FLUSH_EVERY_S)
        metrics.flush()

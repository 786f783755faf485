"""One client's stream of a task: its events with their cursors, and the lease that it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from a2a_serverless.http.errors import log_refusal
from a2a_serverless.http.streaming import announce, remark
from a2a_serverless.storage.leases import Lease, StreamLeases
from a2a_serverless.storage.tail import Tail, TailEvent
from a2a_serverless.tasks.events import Event
from a2a_serverless.tasks.head import Head

TOO_MANY: Final = (
    "Too many streams are open: this one ends. Subscribe again with Last-Event-ID to go on."
)
"""The comment at the end of a stream above the limit."""
TOO_LONG: Final = (
    "The stream has reached its time limit. Subscribe again with Last-Event-ID to go on."
)
"""The comment at the end of a stream whose turn or task goes on."""

_GRACE_S: Final = 15.0
"""Seconds of a lease beyond its stream's limit, in which the stream ends and gives it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a stream ends by itself, in monotonic seconds.

    It does not wait after `deadline`. The events of a finished turn are still sent up to `stop`, a
    margin before the function ends.
    """

    deadline: float
    stop: float


class TaskStream:
    """A stream: the opening event and those of a tail.

    Args:
        caller: the client's identity; empty where callers are not known.
        leases: the leases of open streams; None if the answer goes out in one piece.
        flush_s: the seconds from a commit of chunks to the next one, as the workers are set.
    """

    def __init__(
        self,
        opening: TailEvent,
        tail: Tail,
        *,
        caller: str,
        leases: StreamLeases | None,
        flush_s: float,
    ) -> None:
        self._opening = opening
        self._tail = tail
        self._caller = caller
        self._leases = leases
        self._flush_s = flush_s
        self._lease: Lease | None = None
        self._may_go_on = True

    async def events(self, until: Callable[[Head], bool], limits: Limits) -> AsyncIterator[Event]:
        """Yield the events, each announced by its cursor, until HEAD satisfies `until`.

        A stream takes a lease before it waits for the first time. If it gets none, it ends there
        with a remark. What was committed until then has been delivered, so that a client that comes
        back makes progress.
        """
        announce(self._opening.cursor)
        yield self._opening.event
        deliveries = self._tail.events(
            until=until,
            deadline=limits.deadline,
            stop=limits.stop,
            may_wait=lambda: self._may_wait(limits),
            flush_s=self._flush_s,
        )
        try:
            async for delivery in deliveries:
                is_last = until(self._tail.head) and not self._tail.has_more
                announce(delivery.cursor, is_last=is_last)
                yield delivery.event
            if self._tail.has_more or not until(self._tail.head):
                remark(TOO_LONG if self._may_go_on else TOO_MANY)
        finally:
            await self._give_back()

    async def _may_wait(self, limits: Limits) -> bool:
        if self._leases is None:
            return True
        for_s = limits.deadline - self._tail.clock.monotonic() + _GRACE_S
        self._lease = await self._leases.take(self._caller, for_s=for_s)
        if self._lease is None:
            log_refusal("TooManyStreams")
            self._may_go_on = False
        return self._may_go_on

    async def _give_back(self) -> None:
        """Give the lease back, even if the client has left and the stream is cancelled."""
        if self._leases is not None and self._lease is not None:
            await asyncio.shield(asyncio.ensure_future(self._leases.give_back(self._lease)))
            self._lease = None

"""Keeping a delivery from other workers while its agent runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConcurrencyError
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.worker.waiting import first_of

logger = logging.getLogger(__name__)

RENEW_AFTER = 1 / 3
RETRY_AFTER = 1 / 12
LOST_AFTER = 3 / 4
GRACE_S = 6.0
"""Shares of the visibility after which it is renewed, a failed renewal is tried again, and a
delivery without renewal counts as lost (before another worker can have it). At its end a heartbeat
waits `GRACE_S` for a renewal under way: a little longer than a request's read time-out."""


class Heartbeat:
    """Renews the visibility of one delivery.

    `lost` turns true, and `on_lost` is called in the loop that called `take`, when the delivery has
    expired or could not be renewed in time.
    """

    def __init__(
        self,
        handle: Handle[Operation],
        *,
        visibility_s: float,
        clock: Clock,
        on_lost: Callable[[], None],
    ) -> None:
        self._handle = handle
        self._visibility_s = visibility_s
        self._clock = clock
        self._on_lost = on_lost
        self.lost = False

    async def take(self) -> None:
        """Keep the delivery for `visibility_s` from now.

        Raises:
            ConcurrencyError: the delivery has expired already.
        """
        await self._handle.extend(self._visibility_s)
        self._renewed_at = self._clock.monotonic()
        self._home = asyncio.get_running_loop()

    async def beat(self, stop: asyncio.Event) -> None:
        """Renew the delivery until `stop`; a duty of the keeper.

        After it has returned there are no more renewals: the delivery may be given back.
        """
        try:
            await self._beat(stop)
        finally:
            if not stop.is_set() and not self.lost:  # ended unasked, as with its loop
                self._lose()

    async def _beat(self, stop: asyncio.Event) -> None:
        pause_s = self._visibility_s * RENEW_AFTER
        while True:
            pause_s = min(pause_s, self._left_s())
            await first_of(self._clock.sleep(max(0, pause_s)), stop.wait())
            if stop.is_set():
                return
            if self._left_s() <= 0 or self.lost:
                self._lose()
                return
            renewed = await self._renew(stop)
            pause_s = self._visibility_s * (RENEW_AFTER if renewed else RETRY_AFTER)

    async def _renew(self, stop: asyncio.Event) -> bool:
        """Extend the delivery once; return False if that failed or had no answer in time."""
        asked_at = self._clock.monotonic()
        extending = asyncio.ensure_future(self._handle.extend(self._visibility_s))
        await first_of(self._clock.sleep(self._left_s()), stop.wait(), tasks=[extending])
        if not extending.done():
            if stop.is_set():
                # A request that is under way would undo a later nack, or freeze with the Lambda.
                await asyncio.wait({extending}, timeout=GRACE_S)
            extending.cancel()
            await asyncio.gather(extending, return_exceptions=True)
            return False
        error = extending.exception()
        if error is None:
            self._renewed_at = asked_at
            return True
        self.lost = isinstance(error, ConcurrencyError)
        logger.warning("Visibility not renewed: %s", error, extra=self._extra("renewal_failed"))
        return False

    def _left_s(self) -> float:
        """Return the seconds until the delivery counts as lost."""
        return self._renewed_at + LOST_AFTER * self._visibility_s - self._clock.monotonic()

    def _lose(self) -> None:
        self.lost = True
        logger.error("Delivery lost", extra=self._extra("delivery_lost"))
        with contextlib.suppress(RuntimeError):  # its loop has ended, and the attempt with it
            self._home.call_soon_threadsafe(self._on_lost)

    def _extra(self, action: str) -> dict[str, object]:
        params = self._handle.message.params
        return {"action": action, "task_id": params.task_id, "turn": params.turn}

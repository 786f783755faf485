"""Keeping a delivery from other workers while its agent runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Self

from a2a_serverless.broker.base import OperationHandle
from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConcurrencyError, UnavailableError
from a2a_serverless.worker.waiting import first_of

logger = logging.getLogger(__name__)

RENEW_AFTER = 1 / 3
RETRY_AFTER = 1 / 12
LOST_AFTER = 3 / 4
GRACE_S = 6.0
"""Shares of the visibility: when it is renewed, when a failed renewal is tried again, and when a
delivery that was not renewed counts as lost, while nobody else can have it yet. `GRACE_S` is how
long the end waits for a renewal under way: a little longer than a request's read time-out."""


class Heartbeat:
    """Renews the visibility of one delivery, from a thread and an event loop of its own.

    So an agent that blocks its event loop keeps its message. `lost` turns true, and `on_lost` is
    called in the loop that entered, when the delivery has expired or could not be renewed in time.
    """

    def __init__(
        self,
        handle: OperationHandle,
        *,
        visibility_s: float,
        clock: Clock,
        on_lost: Callable[[], None],
    ) -> None:
        self._handle = handle
        self._visibility_s = visibility_s
        self._clock = clock
        self._on_lost = on_lost
        # What it logs says which attempt it keeps.
        run = partial(copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name="heartbeat", daemon=True)
        self._running = threading.Event()
        self.lost = False

    async def __aenter__(self) -> Self:
        """Take the delivery for `visibility_s` from now, then keep it.

        Raises:
            ConcurrencyError: the delivery has expired already.
        """
        await self._handle.extend(self._visibility_s)
        self._renewed_at = self._clock.monotonic()
        self._home = asyncio.get_running_loop()
        self._thread.start()
        self._running.wait()
        if not hasattr(self, "_stop"):
            msg = "No thread could keep the delivery."
            raise UnavailableError(msg)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Return when no renewal can happen any more: the delivery may be given back."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # its loop has just closed: it is ending
                self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._beat())
        finally:
            self._running.set()  # also when there was no loop to be had

    async def _beat(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._running.set()
        pause_s = self._visibility_s * RENEW_AFTER
        while True:
            pause_s = min(pause_s, self._left_s())
            await first_of(self._clock.sleep(max(0, pause_s)), self._stop.wait())
            if self._stop.is_set():
                return
            if self._left_s() <= 0 or self.lost:
                self._lose()
                return
            renewed = await self._renew()
            pause_s = self._visibility_s * (RENEW_AFTER if renewed else RETRY_AFTER)

    async def _renew(self) -> bool:
        """Extend once; False when it failed or did not answer in time."""
        asked_at = self._clock.monotonic()
        extending = asyncio.ensure_future(self._handle.extend(self._visibility_s))
        await first_of(self._clock.sleep(self._left_s()), self._stop.wait(), tasks=[extending])
        if not extending.done():
            if self._stop.is_set():
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
        """Seconds until the delivery counts as lost."""
        return self._renewed_at + LOST_AFTER * self._visibility_s - self._clock.monotonic()

    def _lose(self) -> None:
        self.lost = True
        logger.error("Delivery lost", extra=self._extra("delivery_lost"))
        self._home.call_soon_threadsafe(self._on_lost)

    def _extra(self, action: str) -> dict[str, object]:
        params = self._handle.operation.params
        return {"action": action, "task_id": params.task_id, "turn": params.turn}

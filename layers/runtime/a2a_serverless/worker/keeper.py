"""A second event loop, in a thread, for the work that goes on while an agent blocks its own.

Its duties are those of the turns' guards (`guard.Guard`).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any, Final

from a2a_serverless.errors import UnavailableError
from a2a_serverless.worker.failures import going_on, own_frame
from a2a_serverless.worker.loops import call_in, first_of

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.25
BLOCKED_S: Final = 1.0
REPORT_AFTER_S: Final = 10.0
"""Seconds between two questions to the agents' loop; without an answer until the loop counts as
blocked; and until a blockage that has not ended is reported."""

Duty = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Runs in the keeper's loop until the event is set, and returns soon after."""

OnBlocked = Callable[[float, str], None]
"""Takes the seconds for which the loop was blocked, and the place in the code as FILE:LINE."""


class Keeper:
    """Runs the duties of a process's turns in one thread, as long as there are any.

    So the delivery and the lease of a turn are renewed, and the turn is claimed, even if its agent
    blocks the event loop. Between two invocations of a Lambda no thread is left. One keeper belongs
    to one event loop, that of the agents.

    >>> async def run(keeper: Keeper, renew: Duty) -> None:
    ...     async with keeper.over(renew):
    ...         time.sleep(600)  # the renewals go on
    """

    def __init__(self) -> None:
        self._side: _Side | None = None

    @property
    def lag_s(self) -> float:
        """Return how many seconds late the agents' loop last answered; 0 while no turn runs."""
        return 0.0 if self._side is None else self._side.lag.seconds

    @asynccontextmanager
    async def over(self, *duties: Duty, on_blocked: OnBlocked | None = None) -> AsyncIterator[None]:
        """Run duties while the block runs; they have ended when the block is left.

        `on_blocked` is called for each blockage of the loop that runs the block: in the keeper's
        thread, or when the block is left after one that the keeper has not reported yet.

        Raises:
            UnavailableError: no thread could be started.
        """
        if self._side is None or self._side.has_left:
            self._side = _Side()
        side = self._side
        side.users += 1
        listener = side.listen(on_blocked) if on_blocked else None
        try:
            running = [side.start(duty) for duty in duties]
            try:
                yield
            finally:
                await _ended(running)
        finally:
            side.users -= 1
            if listener is not None:
                side.forget(listener)
            if not side.users:
                if self._side is side:
                    self._side = None
                await side.end()


class _OnDuty:
    """One duty in the keeper's loop."""

    def __init__(self, duty: Duty, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stop = asyncio.Event()
        self.done = asyncio.run_coroutine_threadsafe(duty(self._stop), loop)

    def stop(self) -> None:
        """Ask the duty to return; harmless when its loop has ended."""
        call_in(self._loop, self._stop.set)


async def _ended(running: list[_OnDuty]) -> None:
    """Stop duties and return when they have ended; log their exceptions."""
    for duty in running:
        duty.stop()
    ends = [asyncio.wrap_future(duty.done) for duty in running]
    for error in await asyncio.gather(*ends, return_exceptions=True):
        if error is not None:
            logger.error("A keeper's duty failed", extra={"action": "keeper"}, exc_info=error)


class _Side:
    """The thread, its loop, and its watch on the agents' loop, the home loop."""

    def __init__(self) -> None:
        """Start the thread; raise UnavailableError if the system has none."""
        self.users = 0
        self.has_left = False
        self._listeners: set[OnBlocked] = set()
        self._home = asyncio.get_running_loop()
        self.lag = _Lag(self._home, threading.get_ident())
        self._has_ended = self._home.create_future()
        self._duties: list[_OnDuty] = []
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise _no_thread() from error
        self._ready.wait()

    def start(self, duty: Duty) -> _OnDuty:
        """Begin a duty in the context of the caller, so that its log lines name the turn."""
        if self._loop is None:
            raise _no_thread()
        running = _OnDuty(duty, self._loop)
        self._duties.append(running)
        running.done.add_done_callback(lambda _: self._duties.remove(running))
        return running

    def listen(self, on_blocked: OnBlocked) -> OnBlocked:
        """Call `on_blocked` for blockages, in the caller's context; return the added listener."""
        context = copy_context()

        def listener(seconds: float, place: str) -> None:
            # A copy: the agents' thread may call it at the end of a turn while the keeper's does.
            context.copy().run(on_blocked, seconds, place)

        self._listeners.add(listener)
        return listener

    def forget(self, listener: OnBlocked) -> None:
        """Stop calling `listener`; tell it of a blockage that has ended just now."""
        self._listeners.discard(listener)
        blocked = self.lag.unreported()
        if blocked is not None:
            _tell(listener, *blocked)

    async def end(self) -> None:
        """Return when the thread has ended."""
        if self._loop is not None:
            call_in(self._loop, self._stop.set)
        await self._has_ended
        self._thread.join()  # immediate: the future is set by its last statement

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._stay())
        except Exception:
            # The thread's edge: deliveries count as lost, and the next turn gets another thread.
            logger.exception("The keeper's thread has failed", extra={"action": "keeper"})
        finally:
            self.has_left = True
            self._ready.set()  # also if no loop could be made
            call_in(self._home, self._resolve)

    def _resolve(self) -> None:
        if not self._has_ended.done():
            self._has_ended.set_result(None)

    async def _stay(self) -> None:
        """Look at the home loop until the end, or until that loop has died with its turns."""
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        absent = 0
        while not self._stop.is_set():
            await first_of(asyncio.sleep(LOOK_S), self._stop.wait())
            # The home loop may stand still for a moment between two of its runs.
            absent = 0 if self._home.is_running() else absent + 1
            if absent > 1:
                break
            blocked = self.lag.look()
            if blocked is not None:
                for listener in tuple(self._listeners):
                    _tell(listener, *blocked)
        self.has_left = True
        for duty in tuple(self._duties):
            duty.stop()
        await asyncio.gather(
            *(asyncio.wrap_future(duty.done) for duty in tuple(self._duties)),
            return_exceptions=True,
        )


def _tell(listener: OnBlocked, seconds: float, place: str) -> None:
    # A warning that cannot be written must not end the heartbeats.
    with going_on(logger, logging.ERROR, "A blockage was not reported", action="keeper"):
        listener(seconds, place)


class _Lag:
    """Notices that a loop does not answer, and which place in the code its thread is at."""

    def __init__(self, home: asyncio.AbstractEventLoop, thread_id: int) -> None:
        self._home = home
        self._thread_id = thread_id
        self._asked_at = 0.0
        self._answered_after_s = 0.0
        self._is_waiting = False
        self._place = ""
        self._is_reported = False

    @property
    def seconds(self) -> float:
        """Return the seconds that the last answer took, or that the next one has taken so far."""
        waited_s = time.monotonic() - self._asked_at if self._is_waiting else 0.0
        return max(self._answered_after_s, waited_s)

    def unreported(self) -> tuple[float, str] | None:
        """Return seconds and place of a blockage that no look has reported yet; None if none is."""
        return None if self._is_reported or not self._place else (self.seconds, self._place)

    def look(self) -> tuple[float, str] | None:
        """Return seconds and place of a blockage to report now; None if there is none."""
        lag_s = time.monotonic() - self._asked_at
        if not self._is_waiting:
            return self._ask()
        if lag_s >= BLOCKED_S and not self._place:
            self._place = _place_of(self._thread_id)
        if lag_s >= REPORT_AFTER_S and not self._is_reported:
            self._is_reported = True
            return lag_s, self._place
        return None

    def _ask(self) -> tuple[float, str] | None:
        """Ask the loop for an answer; return the blockage that has ended with the last one."""
        ended = (self._answered_after_s, self._place) if self._place else None
        was_reported, self._is_reported, self._place = self._is_reported, False, ""
        self._asked_at, self._is_waiting = time.monotonic(), True
        call_in(self._home, self._answer)  # if the loop is closed, `_Side` sees that
        return None if was_reported else ended

    def _answer(self) -> None:
        self._answered_after_s = time.monotonic() - self._asked_at
        self._is_waiting = False


def _place_of(thread_id: int) -> str:
    """Return FILE:LINE of the author's innermost frame, of the innermost one if there is none."""
    innermost = sys._current_frames().get(thread_id)  # noqa: SLF001 - the one way to it
    frame = own_frame(innermost) or innermost
    return "unknown" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _no_thread() -> UnavailableError:
    return UnavailableError("No thread could be started to keep the delivery.")

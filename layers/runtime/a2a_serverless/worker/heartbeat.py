"""The thread beside the agents' event loop: what goes on even while an agent blocks that loop.

In it deliveries and leases are renewed, silent turns are claimed, and HEAD is looked at. It also
notices that the loop is blocked, and by which line of the agent's code.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from typing import Final

from a2a_serverless.clock import call_in
from a2a_serverless.errors import UnavailableError
from a2a_serverless.worker.failures import log_exceptions, own_frame

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.25
BLOCKED_S: Final = 1.0
REPORT_AFTER_S: Final = 10.0
"""Seconds between two questions to the agents' loop; without an answer until the loop counts as
blocked; and until a blockage that has not ended is reported."""

Job = Callable[[asyncio.Event], Coroutine[object, object, None]]
"""Runs in the thread's loop until the event is set, and returns soon after."""

OnBlocked = Callable[[float, str], None]
"""Takes the seconds for which the loop was blocked, and the place in the code as FILE:LINE."""


class Heartbeat:
    """Runs jobs of a process's turns in one thread, as long as there are any.

    So the delivery and the lease of a turn are renewed, and the turn is claimed, even if its agent
    blocks the event loop. Between two invocations of a Lambda no thread is left; a process that
    goes on between its turns keeps the thread. One heartbeat belongs to one event loop, that of the
    agents.

    >>> async def run(heartbeat: Heartbeat, renew: Job) -> None:
    ...     async with heartbeat.over(renew):
    ...         time.sleep(600)  # the renewals go on
    """

    def __init__(self) -> None:
        self._thread: _Thread | None = None

    @property
    def lag_s(self) -> float:
        """Return how many seconds late the agents' loop last answered; 0 while no turn runs."""
        return 0.0 if self._thread is None else self._thread.lag.seconds

    @property
    def is_blocked(self) -> bool:
        """Return True while the agents' loop has not answered for `BLOCKED_S`."""
        return self._thread is not None and self._thread.lag.is_blocked

    async def stay(self) -> None:
        """Keep the thread, with or without jobs, until cancelled."""
        async with self.over():
            await asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def over(
        self, *jobs: Job, on_blocked: OnBlocked | None = None, later: bool = False
    ) -> AsyncIterator[None]:
        """Run jobs while the block runs; they have ended when the block is left.

        `later`: they begin within `LOOK_S`, and not at all if the block is left before that.
        `on_blocked` is called for each blockage of the loop that runs the block: in the thread, or
        when the block is left after a blockage that was not reported yet.

        Raises:
            UnavailableError: no thread could be started.
        """
        if self._thread is None or self._thread.has_ended:
            self._thread = _Thread()
        thread = self._thread
        thread.users += 1
        if on_blocked:
            thread.listeners[on_blocked] = copy_context()
        running: list[_Running] = []
        try:
            try:
                # One after the other: those before one that cannot begin are ended, too.
                running.extend(thread.start(job, later=later) for job in jobs)
                if thread.rests:
                    call_in(thread.loop, thread.woken.set)
                yield
            finally:
                # Without a call into the thread for what has not begun.
                ends = [asyncio.wrap_future(end) for one in running if (end := one.stop())]
                for error in await asyncio.gather(*ends, return_exceptions=True) if ends else ():
                    if error is not None:
                        extra = {"action": "heartbeat"}
                        logger.error("A job of the heartbeat failed", extra=extra, exc_info=error)
        finally:
            thread.jobs.difference_update(running)
            thread.users -= 1
            if on_blocked:
                context = thread.listeners.pop(on_blocked)
                if thread.lag.place:
                    thread.tell_end(on_blocked, context)
            if not thread.users:
                if self._thread is thread:
                    self._thread = None
                await thread.end()


class _Running:
    """A job that a thread has begun, or is to begin, in the context of its caller."""

    def __init__(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._loop = loop
        self._context = copy_context()
        self._lock = threading.Lock()
        self._stop = asyncio.Event()
        self._is_over = False
        self.done: Future[None] | None = None
        """Its end; None: it has not begun."""

    def begin(self) -> None:
        """Begin it, unless it has begun, or was stopped before."""
        with self._lock:
            if self.done is None and not self._is_over:
                self.done = self._context.run(
                    asyncio.run_coroutine_threadsafe, self._job(self._stop), self._loop
                )

    def stop(self) -> Future[None] | None:
        """Ask for its end, and return that; None: it never begins."""
        with self._lock:
            self._is_over = True
            if self.done is not None:
                call_in(self._loop, self._stop.set)
            return self.done


class _Thread:
    """The thread, its loop, and its watch on the agents' loop, the home loop."""

    def __init__(self) -> None:
        """Start the thread; raise UnavailableError if the system has none."""
        self.users = 0
        self.has_ended = False
        self.listeners: dict[OnBlocked, Context] = {}
        """Who hears of a blockage, each in its own context, so that its line names the turn."""
        self.loop = asyncio.new_event_loop()
        self._home = asyncio.get_running_loop()
        self._home_thread = threading.get_ident()
        self.lag = _Lag(self._home, self._home_thread)
        self.jobs: set[_Running] = set()
        """Those of the blocks that run."""
        self._is_ending = False
        self.woken = asyncio.Event()
        self.rests = False
        """True while it waits for the next job or listener, and does not look at the home loop."""
        self._over = self._home.create_future()
        # A daemon, so that it never keeps a process alive whose loop has died.
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self.loop.close()
            raise _no_thread() from error

    def start(self, job: Job, *, later: bool) -> _Running:
        """Begin a job in the context of the caller, so that its log lines name the turn.

        `later`: at the next look, without waking a thread that looks.
        """
        if self.has_ended:
            raise _no_thread()
        running = _Running(job, self.loop)
        self.jobs.add(running)
        if not later:
            running.begin()
        return running

    def tell_end(self, listener: OnBlocked, context: Context) -> None:
        """Tell a listener, which has been removed, of a blockage that has ended just now."""
        lag = self.lag
        if not lag.is_reported:
            _report(listener, context, lag.seconds, lag.place)
        if not self.listeners:  # no later turn hears of this blockage
            self.lag = _Lag(self._home, self._home_thread)

    async def end(self) -> None:
        """Return when the thread has ended."""
        self._is_ending = True
        call_in(self.loop, self.woken.set)
        await self._over
        self._thread.join()  # immediate: the future is set by its last statement

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._stay())
        except Exception:
            # The thread's edge: deliveries count as lost, and the next turn gets another thread.
            logger.exception("The heartbeat's thread has failed", extra={"action": "heartbeat"})
        finally:
            self.has_ended = True
            call_in(self._home, self._resolve)

    def _resolve(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    async def _stay(self) -> None:
        """Look at the home loop until the end, or until that loop has died with its turns."""
        try:
            await self._look()
        finally:
            self.has_ended = True
            # What was to begin at the next look hears of the end as well: it begins before that.
            self._begin_jobs()
            for _ in range(2):
                await asyncio.sleep(0)
        ends = [asyncio.wrap_future(end) for job in tuple(self.jobs) if (end := job.stop())]
        await asyncio.gather(*ends, return_exceptions=True)

    async def _look(self) -> None:
        absent = 0
        while not self._is_ending:
            self.rests = True  # first: a job that comes after the question below wakes the thread
            self.rests = not (self.jobs or self.listeners)
            self.woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self.rests else LOOK_S):
                    await self.woken.wait()
                    continue
            # The home loop may stand still for a moment between two of its runs.
            absent = 0 if self._home.is_running() else absent + 1
            if absent > 1:
                return
            self._begin_jobs()
            if not (self.jobs or self.listeners):
                continue
            blocked = self.lag.look()
            if blocked is not None:
                for listener, context in tuple(self.listeners.items()):
                    _report(listener, context, *blocked)

    def _begin_jobs(self) -> None:
        for job in tuple(self.jobs):
            job.begin()


def _report(listener: OnBlocked, context: Context, seconds: float, place: str) -> None:
    # A warning that cannot be written must not end the heartbeats. The context is copied, since the
    # agents' thread may report at the end of a turn while this one does.
    with log_exceptions(logger, logging.ERROR, "A blockage was not reported", action="heartbeat"):
        context.copy().run(listener, seconds, place)


class _Lag:
    """Notices that a loop does not answer, and which place in the code its thread is at."""

    def __init__(self, home: asyncio.AbstractEventLoop, thread_id: int) -> None:
        self._home = home
        self._thread_id = thread_id
        self._asked_at = 0.0
        self._answered_after_s = 0.0
        self._is_waiting = False
        self.place = ""
        """The place of the last blockage; empty without one."""
        self.is_reported = False

    @property
    def seconds(self) -> float:
        """Return the seconds that the last answer took, or that the next one has taken so far."""
        waited_s = time.monotonic() - self._asked_at if self._is_waiting else 0.0
        return max(self._answered_after_s, waited_s)

    @property
    def is_blocked(self) -> bool:
        return self._is_waiting and time.monotonic() - self._asked_at >= BLOCKED_S

    def look(self) -> tuple[float, str] | None:
        """Return seconds and place of a blockage to report now; None if there is none."""
        lag_s = time.monotonic() - self._asked_at
        if not self._is_waiting:
            return self._ask()
        if lag_s >= BLOCKED_S and not self.place:
            self.place = _place_of(self._thread_id)
        if lag_s >= REPORT_AFTER_S and not self.is_reported:
            self.is_reported = True
            return lag_s, self.place
        return None

    def _ask(self) -> tuple[float, str] | None:
        """Ask the loop for an answer; return the blockage that has ended with the last one."""
        ended = (self._answered_after_s, self.place) if self.place else None
        was_reported, self.is_reported, self.place = self.is_reported, False, ""
        self._asked_at, self._is_waiting = time.monotonic(), True
        call_in(self._home, self._answer)  # if the loop is closed, `_Thread` sees that
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
    return UnavailableError("No thread could be started for the heartbeat.")

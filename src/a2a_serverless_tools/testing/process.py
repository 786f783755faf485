"""A worker's process in a test: an event loop of its own, which a kill stops for good."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import Context
from typing import Any, Final, ParamSpec, TypeVar

from a2a.server.agent_execution import AgentExecutor

from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.guard import POLL_S
from a2a_serverless.worker.keeper import Duty, Keeper, OnBlocked
from a2a_serverless.worker.loops import run_to_end
from a2a_serverless_tools.testing.clock import PacedClock, idle
from a2a_serverless_tools.testing.engine import Engine, InlineKeeper
from a2a_serverless_tools.testing.points import Points, StoppedAgent

P = ParamSpec("P")
T = TypeVar("T")

TICK_S: Final = 0.005
"""Seconds of the machine's time between two looks at an agent that waits for something real."""
WAIT_S: Final = 1.0
"""Seconds of the test's time between two looks at the queue."""
LONGEST_WAIT_S: Final = 12 * 3600.0
"""The longest invisibility of a message."""
CLOSE_S: Final = 1.0
"""Seconds of the machine's time within which left behind tasks have to end with the test."""


class KilledError(Exception):
    """The process was killed before the work was done."""


class StuckError(AssertionError):
    """The agent has not ended its turn in time."""


class Process:
    """Runs the operations of a queue with one agent, as long as it lives.

    While the agent works, time passes as on the machine. It passes faster while the agent only
    sleeps by its `ctx`, while a cancel is on its way to it, and while a message is invisible.
    """

    def __init__(self, backends: Backends, settings: Settings, clock: PacedClock) -> None:
        self._clock = clock
        self._settings = settings
        self._is_dead = False
        self._agent = StoppedAgent(self._kill)
        self._loop = asyncio.new_event_loop()
        self._threads = _Threads()
        self._loop.set_default_executor(self._threads)
        self._is_waiting = False
        self._asides: set[asyncio.Task[None]] = set()
        self.engine = Engine(
            self._agent, settings, backends=backends, clock=clock, keeper=_TellingKeeper()
        )

    def turn(self, agent: AgentExecutor, points: Points) -> None:
        """Run the operations that follow as a turn of `agent`."""
        self._agent.agent, self._agent.points = agent, points

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end in the process's loop.

        Raises:
            KilledError: the process was killed meanwhile.
            RuntimeError: this thread runs an event loop already.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            work.close()
            raise RuntimeError(
                "AgentBench runs the agent in an event loop of its own: call it from a plain test"
                " function, `def test_…`, not from an async one."
            )
        try:
            return run_to_end(self._loop, work, may_stop=lambda: self._is_dead)
        except RuntimeError as error:
            if not self._is_dead:
                raise
            self._clock.forget_sleepers()
            raise KilledError from error

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` while the agent runs; the agent may call this in any of its threads."""
        self._loop.call_soon_threadsafe(self._begin, work, context=Context())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        aside = self._loop.create_task(work)
        self._asides.add(aside)
        aside.add_done_callback(self._asides.discard)

    async def work(self, *, timeout_s: float) -> None:
        """Take the next delivery, as soon as there is one, and run it.

        Raises:
            StuckError: the delivery takes longer than `timeout_s` of the machine's time.
        """
        working = asyncio.create_task(self._next())
        until = time.monotonic() + timeout_s
        while not working.done():
            await self._pass_time(working)
            if time.monotonic() >= until and not working.done():
                raise StuckError(
                    f"The agent has not ended its turn within {timeout_s:g} s. What it waits for"
                    " may need a fake; AgentBench(…, timeout_s=…) gives it more time."
                )
        await working

    async def _next(self) -> None:
        self._is_waiting = True
        handles = await self.engine.operations.pull(1, LONGEST_WAIT_S)
        self._is_waiting = False
        for handle in handles:
            deadline = self._clock.monotonic() + self._settings.run_limit_s
            await self.engine.adapter.process(handle, deadline=deadline)

    async def _pass_time(self, working: asyncio.Task[None]) -> None:
        await idle()
        if working.done():
            return
        seconds = self._to_skip()
        if seconds is None:
            began = time.monotonic()
            await asyncio.wait([working], timeout=TICK_S)
            seconds = time.monotonic() - began
        await self._clock.pass_time(seconds)

    def _to_skip(self) -> float | None:
        """Return the seconds to skip; None if the agent waits for something other than time."""
        if self._is_waiting:
            return WAIT_S
        points = self._agent.points
        if points is not None and points.awaits_hearing:
            return POLL_S
        wakes_at = self._clock.agent_wakes_at
        if wakes_at is None or self._threads.working:
            return None
        return max(0.0, wakes_at - self._clock.monotonic())

    def _kill(self) -> None:
        self._is_dead = True
        self._loop.stop()

    def close(self) -> None:
        """End what is left of the process; if it is dead, log nothing."""
        self._loop.set_exception_handler(lambda *_: None)  # of tasks that do not end
        with _silence() if self._is_dead else nullcontext():
            with suppress(RuntimeError):
                self._loop.run_until_complete(_ended(asyncio.all_tasks(self._loop)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


@contextmanager
def _silence() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_S)


class _Threads(ThreadPoolExecutor):
    """The threads of a loop; `working` is how many of them run a function."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="agent")
        self._calls: set[Future[Any]] = set()

    @property
    def working(self) -> int:
        return sum(not call.done() for call in tuple(self._calls))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        call = super().submit(fn, *args, **kwargs)
        self._calls = {other for other in self._calls if not other.done()} | {call}
        return call


class _TellingKeeper(InlineKeeper):
    """An inline keeper that also notices, in a thread, that the agent blocks its loop."""

    def __init__(self) -> None:
        super().__init__()
        self._noticing = Keeper()

    @asynccontextmanager
    async def over(self, *duties: Duty, on_blocked: OnBlocked | None = None) -> AsyncIterator[None]:
        async with super().over(*duties), self._noticing.over(on_blocked=on_blocked):
            yield

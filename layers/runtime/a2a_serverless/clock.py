"""Time as a dependency: the runtime makes all decisions by this clock, and waits by it.

Only the measuring of a blocked event loop (`worker/heartbeat.py`) reads the system's clock itself.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

RECANCEL_S: Final = 1.0
"""Seconds that a cancelled task has before it is cancelled again."""
STOP_GRACE_S: Final = 5.0
"""Seconds that a cancelled task has to end; after that it is left behind."""
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 2.0


class Clock(Protocol):
    """The source of time."""

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back; only differences mean something."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def now_s(clock: Clock) -> int:
    """Return the whole seconds since the epoch."""
    return clock.now_ms() // 1000


class Waker:
    """A wait in the current event loop that any thread can end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def clear(self) -> None:
        """Forget that the wait was ended: the next one begins anew."""
        self._woken.clear()

    def wake(self) -> None:
        """End the wait, from any thread."""
        call_in(self._loop, self._woken.set)

    async def wait(self, seconds: float) -> None:
        """Return when woken, at the latest after `seconds` of the machine's time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()


async def first_of(
    *waits: Coroutine[Any, Any, object], tasks: Iterable[asyncio.Future[Any]] = ()
) -> None:
    """Return when one of `waits` and `tasks` is done; end the other `waits`, not the `tasks`.

    Raises:
        Exception: that of the wait; those of tasks are not raised here.
    """
    own = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait([*own, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in own:
            wait.cancel()
        await asyncio.gather(*own, return_exceptions=True)
    for wait in own:
        if wait in done and not wait.cancelled():
            wait.result()


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Run `callback` in another thread's loop; do nothing if that loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


def error_of(task: asyncio.Future[Any]) -> BaseException | None:
    """Return the exception of a task; None if the task still runs, or has raised none."""
    if not task.done():
        return None
    try:
        return task.exception()
    except asyncio.CancelledError as error:
        return error


async def completed(work: Coroutine[Any, Any, T]) -> T:
    """Await work of which a thread does the most, and to its end also if it is cancelled.

    The thread would go on: what it stores would be stored behind the caller's back.
    """
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        error_of(task)  # retrieved, so that asyncio does not report it as lost
        raise cancelled
    return task.result()


async def end_tasks(
    *tasks: asyncio.Task[Any], clock: Clock, grace_s: float = STOP_GRACE_S
) -> list[asyncio.Task[Any]]:
    """Cancel tasks and wait for them; return those that run on after `grace_s`.

    A task that swallows a cancellation gets another one every second.
    """
    deadline = clock.monotonic() + grace_s
    running = [task for task in tasks if not task.done()]
    while running:
        for task in running:
            task.cancel()
        await asyncio.sleep(0)  # most end in this moment, and need no timer
        running = [task for task in running if not task.done()]
        left_s = deadline - clock.monotonic()
        if left_s <= 0 or not running:
            break
        ended = asyncio.gather(*running, return_exceptions=True)
        await first_of(clock.sleep(min(RECANCEL_S, left_s)), tasks=[ended])
        running = [task for task in running if not task.done()]
    return running


async def with_timeout(
    work: Coroutine[Any, Any, Any], *, clock: Clock, seconds: float
) -> BaseException | None:
    """Run `work` for at most `seconds`; return its exception, TimeoutError if it did not end."""
    task = asyncio.create_task(work)
    try:
        await first_of(clock.sleep(seconds), tasks=[task])
        if not task.done():
            return TimeoutError(f"No end within {seconds} s.")
        return error_of(task)
    finally:
        await end_tasks(task, clock=clock)


def pause_s(attempt: int) -> float:
    """Return the seconds to wait after attempt 1, 2, …: exponential, with full jitter."""
    ceiling = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt)
    return random.uniform(0, ceiling)  # noqa: S311 - spreads load, guards nothing


def retry_after_s(text: str, now_ms: int) -> float:
    """Return the seconds of a `Retry-After` (RFC 9110, 10.2.3: a number or a date); 0 for others.

    A peer may send anything.
    """
    text = text.strip()
    if text.isdecimal() and text.isascii():
        return float(text[:9])
    try:
        date = parsedate_to_datetime(text)
        at = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0
    return max(0.0, at - now_ms / 1000)

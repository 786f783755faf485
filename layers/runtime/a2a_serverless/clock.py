"""Time as a dependency: the runtime makes all decisions by this clock.

Only the measuring of a blocked event loop (`worker/keeper.py`) reads the system's clock itself.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, Protocol

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
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, seconds: float) -> None:
        """Return when woken, at the latest after `seconds` of the machine's time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()


async def first_of(*waits: Awaitable[object]) -> None:
    """Return when the first of several waits has ended, and end the others.

    Raises:
        Exception: that of the wait.
    """
    running = [asyncio.ensure_future(wait) for wait in waits]
    try:
        ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for wait in ended:
            wait.result()
    finally:
        for wait in running:
            wait.cancel()
        await asyncio.gather(*running, return_exceptions=True)


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

"""Time as a dependency: the runtime decides by this clock, and by no other.

Only the measuring of a blocked event loop (`worker/keeper.py`) reads the system's clock itself.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


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

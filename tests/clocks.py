"""Time that passes only when a test says so, or when somebody sleeps."""

from __future__ import annotations

import asyncio


class ManualClock:
    """A Clock that a test sets. A sleep returns at once, and its time has passed."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = float(start_ms)
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return int(self._now_ms)

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self._now_ms += seconds * 1000
        self._monotonic += seconds

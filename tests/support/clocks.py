"""Time that passes only when a test says so, or when somebody sleeps."""

import asyncio
from collections.abc import Awaitable, Callable


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
        self._now_ms += seconds * 1000
        self._monotonic += seconds


class Timetable(ManualClock):
    """A manual clock with appointments: a sleep that passes one does what is due, in its time."""

    def __init__(self) -> None:
        super().__init__()
        self._due: list[tuple[float, Callable[[], Awaitable[object]]]] = []

    def at(self, seconds: float, action: Callable[[], Awaitable[object]]) -> None:
        """Do `action` when the monotonic clock shows `seconds`."""
        self._due.append((seconds, action))
        self._due.sort(key=lambda appointment: appointment[0])

    async def sleep(self, seconds: float) -> None:
        until = self.monotonic() + seconds
        while self._due and self._due[0][0] <= until:
            at, action = self._due.pop(0)
            self.advance(max(0.0, at - self.monotonic()))
            await action()
        await super().sleep(max(0.0, until - self.monotonic()))

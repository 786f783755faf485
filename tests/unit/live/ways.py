"""A clock that can be moved on, and what a check finds."""

from __future__ import annotations

from a2a_serverless.clock import SystemClock
from tests.live.findings import Check, Finding
from tests.live.runner import run
from tests.live.subject import Subject


class MovableClock(SystemClock):
    """The machine's clock, which a test moves on; pauses take no time."""

    def __init__(self) -> None:
        self._moved_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self._moved_s * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self._moved_s

    def move(self, seconds: float) -> None:
        self._moved_s += seconds


class HastyClock(MovableClock):
    """One on which a pause has passed at once."""

    async def sleep(self, seconds: float) -> None:
        self.move(seconds)
        await super().sleep(0)


class QuickClock(MovableClock):
    """One on which a second passes in ten milliseconds."""

    async def sleep(self, seconds: float) -> None:
        self.move(seconds)
        await super().sleep(seconds / 100)


async def finding(subject: Subject, check: Check) -> Finding:
    """What a check finds."""
    (found,) = (await run(subject, [check], lambda _: None)).findings
    return found

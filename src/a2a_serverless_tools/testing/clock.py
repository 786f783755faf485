"""The time of a test, which stands still until the test moves it."""

from __future__ import annotations

import asyncio

from a2a_serverless.worker.loops import in_agent

START_MS = 1_700_000_000_000
"""14 November 2023, 22:13:20 UTC, in milliseconds since the epoch."""

_ROUNDS = 100


class PacedClock:
    """A Clock that stands still until a test moves it; a sleep ends when its time has come.

    A bench has one: `bench.clock`.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: set[tuple[float, asyncio.Future[None]]] = set()
        self._agents: set[tuple[float, asyncio.Future[None]]] = set()

    def now_ms(self) -> int:
        """Return the time in milliseconds since the epoch.

        >>> before = bench.clock.now_ms()
        """
        return START_MS + int(self._now * 1000)

    def monotonic(self) -> float:
        """Return the seconds since the clock was made.

        >>> seconds = bench.clock.monotonic()
        """
        return self._now

    @property
    def agent_wakes_at(self) -> float | None:
        """Return when the next sleep of an agent ends; None while no agent sleeps."""
        return min((at for at, _ in self._agents), default=None)

    async def sleep(self, seconds: float) -> None:
        """Wait until the test has moved the clock so far.

        >>> await bench.clock.sleep(60)
        """
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = (self._now + seconds, asyncio.get_running_loop().create_future())
        self._sleepers.add(sleeper)
        if in_agent():
            self._agents.add(sleeper)
        try:
            await sleeper[1]
        finally:
            self._sleepers.discard(sleeper)
            self._agents.discard(sleeper)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass: end one sleep after the other, and let all tasks react to each.

        >>> await bench.clock.pass_time(60)
        """
        await idle()
        until = self._now + seconds
        while due := [at for at, woken in self._sleepers if at <= until and not woken.done()]:
            self._now = max(self._now, min(due))
            for at, woken in tuple(self._sleepers):
                if at <= self._now and not woken.done():
                    woken.set_result(None)
            await idle()
        self._now = until
        await idle()

    def forget_sleepers(self) -> None:
        """Forget the present sleeps, so that they never end: their process is dead.

        >>> bench.clock.forget_sleepers()
        """
        self._sleepers.clear()
        self._agents.clear()


async def idle() -> None:
    """Let every task of the loop run as far as it can."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)

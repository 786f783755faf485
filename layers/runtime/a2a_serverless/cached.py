"""A value of AWS or an issuer that is kept, and read again when it is old."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from a2a_serverless.clock import Clock
from a2a_serverless.errors import UnavailableError

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Cached(Generic[T]):
    """Keeps the value that `read` returns.

    One caller at a time reads the value, within its own call: nothing runs on afterwards. If the
    read fails, the earlier value stays. Attempts are at least `pause_s` seconds apart, however many
    callers ask.

    Args:
        name: the value's name, for the log.
        read: reads the value; raises UnavailableError when it cannot.
        max_age_s: the age at which the value is read again, in seconds.
        pause_s: the least time from one attempt to the next, in seconds.
        keep_s: the age up to which a value is used if it cannot be read again; by default any age.
        first: the value that was read when the process started, if there is one.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Awaitable[T]],
        *,
        clock: Clock,
        max_age_s: float,
        pause_s: float,
        keep_s: float = float("inf"),
        first: T | None = None,
    ) -> None:
        self._name = name
        self._read = read
        self._clock = clock
        self._max_age_s = max_age_s
        self._pause_s = pause_s
        self._keep_s = keep_s
        self._value = first
        self._read_at = clock.now_ms()
        self._tried_at = clock.now_ms() if first is not None else None
        self._reading = asyncio.Lock()

    async def get(self) -> T:
        """Return the value, read again if it is old; meanwhile other callers get the old one.

        Raises:
            UnavailableError: there is no value, or it is older than `keep_s`.
        """
        is_due = self._value is None or self._age_s(self._read_at) >= self._max_age_s
        if is_due and not (self._reading.locked() and self._is_kept()):
            await self._attempt()
        return self._kept()

    async def newer(self) -> T:
        """Return the value after a new attempt, or as it is if the last one is too recent.

        Meant for a caller that misses something in the value. It waits for an attempt under way.

        Raises:
            UnavailableError: as `get`.
        """
        await self._attempt()
        return self._kept()

    async def _attempt(self) -> None:
        async with self._reading:
            if self._tried_at is not None and self._age_s(self._tried_at) < self._pause_s:
                return
            try:
                value = await self._read()
            except UnavailableError as error:
                self._tried_at = self._clock.now_ms()
                extra = {"action": "refresh_failed", "reason": str(error)}
                logger.warning("%s could not be read", self._name, extra=extra)
            except Exception:
                # An unforeseen error also counts as an attempt: it must not cause more reads.
                self._tried_at = self._clock.now_ms()
                raise
            else:
                self._value = value
                self._read_at = self._tried_at = self._clock.now_ms()

    def _kept(self) -> T:
        if self._value is None or not self._is_kept():
            raise UnavailableError(f"{self._name} cannot be read.")
        return self._value

    def _is_kept(self) -> bool:
        return self._value is not None and self._age_s(self._read_at) < self._keep_s

    def _age_s(self, since_ms: int) -> float:
        """Return an age by the wall clock, which also counts while an environment is frozen."""
        return (self._clock.now_ms() - since_ms) / 1000

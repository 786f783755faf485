"""How many of something each caller may have, by counts that are made now and then."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import lives, seconds
from a2a_serverless.storage.table import Range, Update
from a2a_serverless.tasks.rules import expiry

if TYPE_CHECKING:
    from a2a_serverless.storage.durable import DurableStorage

_COUNTED_S: Final = 60.0
"""Seconds for which a count is good."""
_FULL_S: Final = 1.0
"""Seconds for which a caller with too many is refused without a new count."""
_PROCESSES: Final = 4
"""Processes that may admit one caller on counts of the same moment."""
_MOST_CALLERS: Final = 1000
"""Callers whose counts a process keeps."""


class Allowance:
    """How many more each caller may have, by a count that is made now and then.

    A count is good for `_COUNTED_S` and for a part of what was left, so that most calls cost no
    request, and processes that count at the same time do not admit many more than `most`; 0: any
    number.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._left: dict[str, tuple[int, int]] = {}
        """By caller: how many more it may have, and until when that is good."""

    async def admits(self, caller: str, now_ms: int, count: Callable[[], Awaitable[int]]) -> bool:
        """Return True if the caller may have one more; `count` tells how many it has.

        Raises:
            UnavailableError: the table did not answer.
        """
        if not self.most:
            return True
        left, until_ms = self._left.get(caller, (0, 0))
        if now_ms >= until_ms:
            left = math.ceil(max(self.most - await count(), 0) / _PROCESSES)
            until_ms = now_ms + round((_COUNTED_S if left else _FULL_S) * 1000)
        if len(self._left) >= _MOST_CALLERS:
            self._left.clear()
        is_last = left == 1  # the next one is counted for anew
        self._left[caller] = max(left - 1, 0), 0 if is_last else until_ms
        return left > 0


class Sleepers:
    """The sleeping turns of each caller: how many there are, and of whom there are many.

    A worker notes each turn that falls asleep. From half of `most` on it stores that the caller is
    to be counted before a message is accepted: so the messages of others cost no request. That
    holds until the last of the turns has expired which slept then.

    Args:
        storage: where the turns are, of any scope.
        most: the sleeping turns that a caller may have; 0: any number.
    """

    def __init__(self, storage: DurableStorage, most: int) -> None:
        self._table = storage.table
        self._clock = storage.clock
        self._ttl_s = storage.timing.ttl_s
        self._allowed = Allowance(most)
        self._few = Allowance(math.ceil(most / 2))
        self._watched: dict[str, int] = {}
        """By caller: when this process has stored that there are many."""

    async def count(self, caller: str) -> int:
        """Return how many turns of a caller sleep, in all tenants, some milliseconds ago."""
        is_live = lives(self._clock.now_ms())
        partition = layout.asleep_key(caller)
        return await self._table.count(
            Range(partition=partition, index=layout.BY_LINE, when=[is_live])
        )

    async def admits(self, caller: str) -> bool:
        """Return True if one more turn of a caller may fall asleep.

        Raises:
            UnavailableError: the table did not answer.
        """
        return await self._allowed.admits(caller, self._clock.now_ms(), lambda: self.count(caller))

    async def note(self, caller: str) -> None:
        """Take note of a turn that has fallen asleep.

        Raises:
            UnavailableError: the table did not answer.
        """
        now_ms = self._clock.now_ms()
        is_told = now_ms - self._watched.get(caller, 0) < _COUNTED_S * 1000
        if is_told or await self._few.admits(caller, now_ms, lambda: self.count(caller)):
            return
        if len(self._watched) >= _MOST_CALLERS:
            self._watched.clear()
        self._watched[caller] = now_ms
        until = expiry(now_ms, self._ttl_s)
        values = {"until": until, "expires_at": seconds(until)}
        await self._table.write(Update(key=layout.sleeper_item(caller), values=values))

"""How fast a turn may write: what a commit costs its task's partition, and when the next one may.

Pure. The page `load` says why, and how long large artifacts take.
"""

from __future__ import annotations

from collections import deque
from typing import Final

PART_BYTES: Final = 340_000
"""The longest body of one EVENT item: with its keys it stays under 350 KB."""

_EVENT_BYTES: Final = 300
"""Bytes of an EVENT item's keys and attributes besides its body."""
_HEAD_BYTES: Final = 800
"""Bytes of HEAD without its status and its metadata."""
_UNIT: Final = 1024
_TRANSACTION: Final = 2

_SECOND: Final = 1.0
_SHARE: Final = 0.9
"""Of what a partition takes: the rest is for claims, renewals, cancels, messages and webhooks."""


def commit_units(body: int, inline: int = 0) -> int:
    """Return the write units that a commit costs in its task's partition; indexes have their own.

    An item costs one unit for each KB, also for one that is only begun; a transaction costs twice
    that.

    Args:
        body: the bytes of its entries.
        inline: the bytes of status and metadata that HEAD keeps.
    """
    parts = [min(PART_BYTES, body - start) for start in range(0, max(1, body), PART_BYTES)]
    items = [_EVENT_BYTES + part for part in parts] + [_HEAD_BYTES + inline]
    return _TRANSACTION * sum(-(-item // _UNIT) for item in items)


class Pace:
    """Lets a turn write nine tenths of what a partition takes, in any second.

    So a turn that writes little never waits. A commit that is larger than that by itself waits for
    a second in which nothing else was written, and counts for as many seconds as it needs.

    Args:
        takes: the units that a partition takes in a second.
    """

    def __init__(self, takes: int) -> None:
        self.most = int(takes * _SHARE)
        self._spent: deque[tuple[float, int]] = deque()
        """Units, and the time until which they count."""

    def wait_s(self, units: int, now: float) -> float:
        """Return the seconds until a commit may write; 0: at once."""
        while self._spent and self._spent[0][0] <= now:
            self._spent.popleft()
        over, free_at = sum(spent for _, spent in self._spent) + units - self.most, now
        for until, spent in self._spent:
            if over <= 0:
                break
            over, free_at = over - spent, until
        return free_at - now

    def spend(self, units: int, now: float) -> None:
        """Count a commit that has been answered: it was written at `now` at the latest."""
        self._spent.append((now + max(_SECOND, units / self.most), units))

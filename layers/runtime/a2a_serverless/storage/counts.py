"""The codec of COUNT items: how many tasks a listing's filters matched when they were counted.

The listing that has made a count stores it, and it serves the first pages of other listings for a
while. Nothing depends on it: if it is missing or damaged, the tasks are counted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from a2a.types import TaskState

from a2a_serverless.storage.codec import misfits_of
from a2a_serverless.storage.layout import count_partition, count_sort
from a2a_serverless.storage.listing import MAX_TOTAL, Listing
from a2a_serverless.storage.table import Check, Key, Update
from a2a_serverless.tasks.head import Head, is_terminal, state_name

FRESH_S: Final = 60
"""Seconds for which a count serves, at least."""

ENTRIES_A_SECOND: Final = 100
"""A count serves one second for each `ENTRIES_A_SECOND` index entries that were read for it.

So the first pages of a large scope do not read more entries a second than that for counting.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A count, the millisecond in which it began, and the second until which it serves."""

    total: int
    at: int
    expires_at: int

    @classmethod
    def made(cls, total: int, looked_at: int, at: int) -> Counted:
        """Return a new count, for which `looked_at` entries were read, begun at `at`."""
        fresh_s = max(FRESH_S, looked_at // ENTRIES_A_SECOND)
        return cls(total=min(total, MAX_TOTAL), at=at, expires_at=at // 1000 + fresh_s)

    @classmethod
    def of(cls, item: Mapping[str, Any], now_s: int) -> Counted | None:
        """Return the count in an item; None if it has expired or is damaged."""
        if any(name not in item for name in _FORMS) or misfits_of(item, _FORMS):
            return None
        counted = cls(total=item["total"], at=item["counted_at"], expires_at=item["expires_at"])
        return counted if counted.expires_at > now_s and counted.total <= MAX_TOTAL else None

    def with_newer(self, heads: Iterable[Head], state: TaskState | None) -> int:
        """Return the total, with those tasks of the page that came into the listing since.

        A task comes into a listing by a terminal `state` once, when it ends. It may come into any
        other state again and again, and would count each time: there, as in a listing by no state,
        only tasks that were created since are added.
        """
        by_end = state is not None and is_terminal(state)
        came = (head.status_at if by_end else head.created_at for head in heads)
        return min(MAX_TOTAL, self.total + sum(at > self.at for at in came))

    def update(self, key: Key) -> Update:
        """Return the update that stores the count, unless a later one is stored."""
        values = {"total": self.total, "counted_at": self.at, "expires_at": self.expires_at}
        is_later = [Check("counted_at", "absent"), Check("counted_at", "<", self.at)]
        return Update(key=key, values=values, when=[is_later])


_FORMS: Final = {"total": int, "counted_at": int, "expires_at": int}


def count_key(scope: str, listing: Listing) -> Key:
    """Return the key of the count for a listing's filters, for a listing without a context."""
    state = "" if listing.state is None else state_name(listing.state)
    return Key(count_partition(scope), count_sort(state, listing.since))

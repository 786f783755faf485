"""What the parts of `DynamoStorage` have in common, one for each kind of item."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import UnreadableTaskError
from a2a_serverless.storage import dynamodb_layout as layout
from a2a_serverless.storage.attributes import due_of
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.dynamodb_heads import head_of
from a2a_serverless.storage.log import Due, Place
from a2a_serverless.storage.reading import tell_left_out
from a2a_serverless.storage.table import Check, Item, Key, Range, Table
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import ANONYMOUS, Scope, is_task_id
from a2a_serverless.tasks.rules import Timing


class TableStorage(DurableStorage):
    """A table seen through one scope."""

    def __init__(
        self,
        table: Table,
        *,
        scope: Scope = ANONYMOUS,
        clock: Clock | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.table = table
        self.scope = scope
        self.clock = clock or SystemClock()
        self.timing = timing or Timing()

    def for_scope(self, scope: Scope) -> Self:
        return type(self)(self.table, scope=scope, clock=self.clock, timing=self.timing)

    async def head(self, task_id: str) -> Head | None:
        if not is_task_id(task_id):
            return None
        return self._live(await self.table.get(self._head_key(task_id)))

    async def _overdue(
        self, kind: str, now_ms: int, limit: int, after: Due | None, *, only_live: bool = False
    ) -> list[Item]:
        """Return the first entries of the due index behind `after`, the longest overdue first.

        `kind` is that of `due_keys`. The index lags behind the table. If more than `limit` entries
        of one shard have the same due time, the page behind them may miss some.
        """
        shards = [
            self._first(
                limit,
                Range(
                    partition=due_key,
                    index=layout.BY_DUE,
                    first=after.due_at if after else 0,
                    last=now_ms,
                    when=[Check("expires_at", ">", now_ms // 1000)] if only_live else (),
                ),
                lambda entry: after is None or _place_of(entry) > after.place,
            )
            for due_key in layout.due_keys(kind)
        ]
        entries = [entry for shard in await asyncio.gather(*shards) for entry in shard]
        return sorted(entries, key=_place_of)[:limit]

    async def _first(
        self, limit: int, wanted: Range, is_wanted: Callable[[Item], bool] = lambda _: True
    ) -> list[Item]:
        """Return the first `limit` items of a range that pass its filter and are wanted."""
        found: list[Item] = []
        # One more: a key range includes its end, which is not wanted.
        async for page in self.table.query(replace(wanted, page=limit + 1)):
            found += filter(is_wanted, page)
            if len(found) >= limit:
                break
        return found[:limit]

    async def _all(self, wanted: Range) -> list[Item]:
        """Return the items of a range."""
        return [item async for page in self.table.query(wanted) for item in page]

    def _partition(self, task_id: str) -> str:
        return layout.task_partition(self.scope.digest, task_id)

    def _head_key(self, task_id: str) -> Key:
        return Key(self._partition(task_id), layout.HEAD)

    def _now_s(self) -> int:
        """Return the present second: an item is live while its `expires_at` is greater."""
        return self.clock.now_ms() // 1000

    def _is_live(self, item: Mapping[str, Any]) -> bool:
        """Return True unless the item says that it has expired; the rest may be damaged."""
        expires_at = item.get("expires_at")
        return not isinstance(expires_at, int) or expires_at > self._now_s()

    def _live(self, item: Mapping[str, Any] | None) -> Head | None:
        head = head_of(item) if item else None
        return None if head is None or head.has_expired(self.clock.now_ms()) else head

    def _readable(self, item: Mapping[str, Any] | None) -> Head | None:
        """Return the item's HEAD if it is live; None, with a line in the log, if it is damaged.

        For reads of many tasks, in which a damaged one must not hide the others.
        """
        try:
            return self._live(item)
        except UnreadableTaskError as error:
            tell_left_out(error)
            return None


def stored(items: Mapping[Key, Item | None]) -> list[Item]:
    """Return the items that exist, of those that were loaded."""
    return [item for item in items.values() if item is not None]


def _place_of(entry: Item) -> Place:
    """Return the place of an entry of the due index, as `Due.place`."""
    scope, task_id = layout.owner_of(entry["PK"])
    return due_of(entry), task_id, scope

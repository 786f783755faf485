"""Finding tasks of all scopes that are due, and the HEADs that an index names.

An index lags behind the table. It names candidates; each task's HEAD, read consistently, says
whether and where it belongs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from a2a_serverless.errors import UnreadableTaskError
from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import head_of, lives
from a2a_serverless.storage.durable import DurableStorage, readable_head
from a2a_serverless.storage.table import Item, Key, Range
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.values import dataclass

Place: TypeAlias = tuple[int, str, str]
"""Due time, id and the scope's digest of a task that is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A task that has to be looked at from `due_at` on (milliseconds since the epoch)."""

    scope: Scope
    task_id: str
    due_at: int

    @property
    def head(self) -> Key:
        """Return the key of the task's HEAD."""
        return layout.head_key(self.scope.digest, self.task_id)

    @property
    def place(self) -> Place:
        """Return the task's place in the order of what is due, the longest overdue first."""
        return self.due_at, self.task_id, self.scope.digest


async def due_tasks(
    storage: DurableStorage, now_ms: int, *, limit: int = 100, after: Due | None = None
) -> list[Due]:
    """Return the first `limit` overdue tasks of all scopes, the longest overdue first.

    Their turn waits, or the deadline of their cancel has passed. With `after`, the first ones
    behind it; if more than `limit` tasks of one shard have the same due time, some may be missing.
    Tasks that cannot be read are included.
    """
    shards = [
        storage.table.first(
            limit,
            due_in(layout.due_key(shard), now_ms, after.due_at if after else 0),
            lambda entry: after is None or _due(entry).place > after.place,
        )
        for shard in range(layout.SHARDS)
    ]
    found = [_due(entry) for shard in await asyncio.gather(*shards) for entry in shard]
    return sorted(found, key=lambda due: due.place)[:limit]


def due_in(partition: str, now_ms: int, since_ms: int = 0) -> Range:
    """Return what is due by now in a partition of the due index, and has not expired."""
    # What has expired stays for up to two days; it must not starve the others.
    when = [lives(now_ms)]
    return Range(partition=partition, index=layout.BY_DUE, first=since_ms, last=now_ms, when=when)


def _due(entry: Item) -> Due:
    scope, task_id = layout.owner_of(entry["PK"])
    # The index has numbers alone; a damaged one may be no whole number.
    return Due(scope=Scope(scope), task_id=task_id, due_at=int(entry["due_at"]))


async def opened_at(log: DurableStorage, head: Head) -> int | None:
    """Return when the open turn became the current one, in milliseconds; None: unknown."""
    return await committed_at(log, head, head.turn.base)


async def committed_at(log: DurableStorage, head: Head, version: int) -> int | None:
    """Return the time of a commit of the task, in milliseconds; None: unknown."""
    if version == 1:
        return head.created_at
    read = await log.read(head.task_id, after=version - 1, incarnation=head.incarnation)
    records = () if read is None else read.records
    return next((record.at for record in records if record.version == version), None)


# -- candidates and their HEADs --------------------------------------------------------------


def head_keys(entries: Iterable[Item]) -> list[Key]:
    """Return the keys of the HEADs that entries name; an index may name a task twice."""
    return list({entry["PK"]: Key(entry["PK"], layout.HEAD) for entry in entries}.values())


def stored(loaded: Mapping[Key, Item | None]) -> list[Item]:
    """Return the items that exist, of those that were loaded."""
    return [item for item in loaded.values() if item is not None]


async def readable_heads(storage: DurableStorage, keys: Iterable[Key]) -> list[Head]:
    """Return the live HEADs with these keys; a line in the log names a damaged one."""
    found = await storage.table.made(_head_or_item, keys)
    now_ms = storage.clock.now_ms()
    heads = [one if isinstance(one, Head) else readable_head(one, now_ms) for one in found]
    return [head for head in heads if head is not None and not head.has_expired(now_ms)]


def _head_or_item(item: Item) -> Head | Item:
    """Return the HEAD that an item holds, or the item if it is damaged, or expired without one."""
    try:
        return head_of(item)
    except UnreadableTaskError:
        return item

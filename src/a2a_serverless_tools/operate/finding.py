"""Finding tasks of all scopes for a person: by id, by the hour of creation, by what is the matter.

An index lags behind the table. It names candidates; each task's HEAD, read consistently, says
whether and where it belongs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import is_live, lives
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import head_keys, load_heads, readable_heads, stored
from a2a_serverless.storage.table import Item, Range
from a2a_serverless.tasks.head import Attention, Head, Wait
from a2a_serverless.tasks.identity import TaskKey, is_task_id


async def find_tasks(storage: DurableStorage, task_id: str) -> list[TaskKey]:
    """Return the live tasks with this id, of all scopes, also one whose HEAD is damaged.

    A task that a release without this index has created is not found. The index lags behind by
    milliseconds.

    Raises:
        ConfigurationError: the table has no such index.
    """
    if not is_task_id(task_id):
        return []
    entries = await _by_id(storage, layout.id_key(task_id))
    heads = stored(await storage.table.load(head_keys(entries)))
    now_ms = storage.clock.now_ms()
    return sorted(layout.owner_of(head["PK"]) for head in heads if is_live(head, now_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """Tasks of all scopes that were created in one hour, the newest first."""

    heads: tuple[Head, ...]
    before: str
    """The place where the look has ended, for the next one; empty: the hour has no more."""

    @staticmethod
    def place(head: Head) -> str:
        """Return a task's place in its hour, as text that sorts correctly."""
        return _place(layout.status_key(head.created_at, head.task_id), head.scope)


async def created_in(
    storage: DurableStorage, hour_ms: int, *, before: str = "", limit: int = 100
) -> Created:
    """Return the live ones of `limit` tasks that were created in an hour, the newest first.

    The tasks are those of all scopes. The cost depends on `limit` alone. A HEAD that cannot be
    read is left out. The index lags behind by milliseconds.

    Args:
        storage: of any scope.
        hour_ms: any time in the hour (UTC), in milliseconds since the epoch.
        before: the place where the page before ended; empty: from the newest on.
        limit: how many tasks are looked at, including those that have expired.

    Raises:
        ConfigurationError: the table has no such index.
    """
    keys = [layout.hour_key(hour_ms, shard) for shard in range(layout.SHARDS)]
    shards = await asyncio.gather(*(_by_id(storage, key, before, limit + 1) for key in keys))
    has_more = any(len(shard) > limit for shard in shards)
    floor = max(_incomplete(shard, limit) for shard in shards)
    found = [entry for shard in shards for entry in shard if _created_key(entry) > floor]
    found.sort(key=_place_of, reverse=True)
    entries = found[:limit]
    heads = await load_heads(storage, entries)
    heads.sort(key=Created.place, reverse=True)
    has_more = has_more or len(found) > limit
    return Created(heads=tuple(heads), before=_place_of(entries[-1]) if has_more else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A task that a person may have to look at, as the index of what needs attention has it."""

    scope: str
    task_id: str
    why: Attention
    incarnation: str
    config_id: str
    """The webhook of which a notification was given up; empty: it is about the task itself."""
    place: str
    """Its place in the order of the index, which is that of its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedTasks:
    """The first of those tasks, in their order."""

    found: tuple[Noted, ...]
    is_all: bool
    """False: there are more behind them."""


async def tasks_in_trouble(
    storage: DurableStorage, *, since_ms: int = 0, before: str = "", limit: int = 100
) -> NotedTasks:
    """Return the newest `limit` tasks that failed, were rejected, or have a webhook untold.

    They are those of all scopes, by the time of that; with `before`, those behind that place. One
    request reads about 4,000 of a shard. The index lags behind by milliseconds.

    Raises:
        ConfigurationError: the table has no such index.
    """
    first = f"{max(0, since_ms):015d}"
    return await _noted(storage, layout.TROUBLE, first, before, before=before, limit=limit)


async def waiting_tasks(
    storage: DurableStorage, kind: Wait | None = None, *, after: str = "", limit: int = 100
) -> NotedTasks:
    """Return the first `limit` tasks of all scopes whose open turn waits, or was sent again.

    With `kind` they are those that wait for this, the longest waiting first; else kind by kind.
    With `after`, those behind that place. It costs, lags and raises as `tasks_in_trouble`.
    """
    first = after or (f"{kind}#" if kind else "")
    last = f"{kind}$" if kind else ""
    return await _noted(storage, layout.WAITS, first, last, before=after, limit=limit)


async def _noted(
    storage: DurableStorage,
    kind: Literal["TROUBLE", "WAITS"],
    first: str,
    last: str,
    *,
    before: str,
    limit: int,
) -> NotedTasks:
    """Return entries from `first` to `last`, without those at the place `before`.

    A page ends between two places: two webhooks of a task may have the same one.
    """
    if first and last and first > last:
        return NotedTasks(found=(), is_all=True)
    newest_first = kind == layout.TROUBLE
    when = [lives(storage.clock.now_ms())]
    shards = [
        storage.table.first(
            limit + 1,
            Range(
                partition=key,
                index=layout.BY_ATTENTION,
                first=first or None,
                last=last or None,
                when=when,
                newest_first=newest_first,
            ),
            lambda entry: entry["attention_at"] != before,
        )
        for key in layout.attention_keys(kind)
    ]
    entries = [entry for shard in await asyncio.gather(*shards) for entry in shard]
    entries.sort(key=lambda entry: str(entry["attention_at"]), reverse=newest_first)
    end = limit
    while 0 < end < len(entries) and _noted_at(entries[end - 1]) == _noted_at(entries[end]):
        end -= 1
    shown = entries[: end or limit]
    found = [noted for noted in map(_noted_of, shown) if noted is not None]
    return NotedTasks(found=tuple(found), is_all=len(shown) == len(entries))


async def load_noted(storage: DurableStorage, noted: Iterable[Noted]) -> dict[TaskKey, Head]:
    """Return the live HEADs of tasks that the index names, each once, read consistently."""
    keys = list(dict.fromkeys(layout.head_key(one.scope, one.task_id) for one in noted))
    heads = readable_heads(await storage.table.load(keys) if keys else {}, storage.clock.now_ms())
    return {(head.scope, head.task_id): head for head in heads}


def _noted_at(entry: Item) -> str:
    return str(entry["attention_at"])


def _noted_of(entry: Item) -> Noted | None:
    """Return an entry of the index; None for one that no release writes."""
    why = layout.attention_in(_noted_at(entry))
    if why is None or not entry["PK"].startswith("TASK#"):
        return None
    scope, task_id = layout.owner_of(entry["PK"])
    is_head = entry["SK"] == layout.HEAD
    names = (entry.get("incarnation", ""), "") if is_head else layout.push_names(entry["SK"])
    return Noted(
        scope=scope,
        task_id=task_id,
        why=why,
        incarnation=str(names[0]),
        config_id=names[1],
        place=_noted_at(entry),
    )


async def _by_id(
    storage: DurableStorage, id_key: str, before: str = "", limit: int = 100
) -> list[Item]:
    """Return the newest `limit` entries of the index by id, from behind `before`."""
    wanted = Range(
        partition=id_key,
        index=layout.BY_ID,
        last=before.rpartition("#")[0] if before else None,
        newest_first=True,
    )
    return await storage.table.first(
        limit, wanted, lambda entry: not before or _place_of(entry) < before
    )


def _incomplete(entries: Sequence[Item], limit: int) -> str:
    """Return the creation key of the last entry if its entries may go on behind `entries`; or "".

    `entries` are a shard's first `limit` and one more. The index orders entries with the same key
    as it likes, so a page that had only some of them would lose the rest. That loss remains where
    more than `limit` entries have one key, which takes as many scopes.
    """
    if len(entries) <= limit or _created_key(entries[0]) == _created_key(entries[-1]):
        return ""
    return _created_key(entries[-1])


def _created_key(entry: Item) -> str:
    return str(entry["created_key"])


def _place_of(entry: Item) -> str:
    """Return the place of an entry of the index by id, as `Created.place`."""
    scope, _ = layout.owner_of(entry["PK"])
    return _place(_created_key(entry), scope)


def _place(created_key: str, scope: str) -> str:
    return f"{created_key}#{scope}"

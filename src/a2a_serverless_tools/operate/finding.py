"""Finding tasks of all scopes for a person: by id, by the hour of creation, by what is the matter.

An index lags behind the table by milliseconds. It names candidates; each task's HEAD, read
consistently, says whether and where it belongs.

Each search raises:
    ConfigurationError: the table has no such index.
    PageTokenError: `after` is no place of such a search.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from a2a_serverless.errors import PageTokenError
from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import is_live, lives
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import head_keys, readable_heads, stored
from a2a_serverless.storage.listing import page_place, page_token
from a2a_serverless.storage.table import Item, Range
from a2a_serverless.tasks.head import Attention, Head, Wait
from a2a_serverless.tasks.identity import TaskKey, is_task_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A task, as an index over all scopes names it."""

    scope: str
    task_id: str
    order: tuple[str, ...]
    """Its place in the order of the index: the name and the value of its sort key, PK and SK."""
    why: Attention | None = None
    """What is the matter with it; None: the index is not about that."""
    incarnation: str = ""
    config_id: str = ""
    """The webhook that fails, or of which something was given up; empty: it is about the task."""

    @property
    def place(self) -> str:
        """Return what a search for what is behind it takes as `after`."""
        return page_token(self.order)

    @property
    def at(self) -> int:
        """Return since when it is so, or when the task was created, in milliseconds."""
        return self.why.at if self.why else int(self.order[1].partition("#")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The first tasks that a search has found, in its order."""

    found: tuple[Named, ...]
    after: str
    """Where the next look goes on; empty: there are no more."""


async def find_tasks(storage: DurableStorage, task_id: str) -> list[TaskKey]:
    """Return the live tasks with this id, of all scopes, also one whose HEAD is damaged.

    A task that a release without this index has created is not found.
    """
    if not is_task_id(task_id):
        return []
    wanted = Range(partition=layout.id_key(task_id), index=layout.BY_ID, newest_first=True)
    heads = stored(await storage.table.load(head_keys(await storage.table.first(100, wanted))))
    now_ms = storage.clock.now_ms()
    return sorted(layout.owner_of(head["PK"]) for head in heads if is_live(head, now_ms))


async def created_in(
    storage: DurableStorage, hour_ms: int, *, after: str = "", limit: int = 100
) -> Look:
    """Return `limit` tasks that were created in an hour, the newest first, also expired ones.

    The tasks are those of all scopes. The cost depends on `limit` alone.

    Args:
        storage: of any scope.
        hour_ms: any time in the hour (UTC), in milliseconds since the epoch.
        after: the place where the look before ended; empty: from the newest on.
        limit: how many tasks are looked at.
    """
    keys = [layout.hour_key(hour_ms, shard) for shard in range(layout.SHARDS)]
    every = Range(partition="", index=layout.BY_ID, newest_first=True)
    return await _merged(storage, keys, every, after, limit)


async def tasks_in_trouble(
    storage: DurableStorage,
    *,
    since_ms: int = 0,
    until_ms: int | None = None,
    after: str = "",
    limit: int = 100,
) -> Look:
    """Return the newest `limit` tasks that failed, were rejected, or have a webhook untold.

    They are those of all scopes, by the time of that. One request reads about 4,000 of a shard.
    """
    first, last = f"{since_ms:015d}", None if until_ms is None else f"{until_ms:015d}"
    return await _attention(storage, layout.TROUBLE, (first, last), after, limit)


async def waiting_tasks(
    storage: DurableStorage, kind: Wait | None = None, *, after: str = "", limit: int = 100
) -> Look:
    """Return the first `limit` tasks of all scopes whose open turn waits, or was sent again.

    With `kind` they are those that wait for this, the longest waiting first; else kind by kind.
    """
    bounds = (f"{kind}#", f"{kind}$") if kind else (None, None)
    return await _attention(storage, layout.WAITS, bounds, after, limit)


_Bounds: TypeAlias = tuple[str | None, str | None]


async def _attention(
    storage: DurableStorage,
    of: Literal["TROUBLE", "WAITS"],
    bounds: _Bounds,
    after: str,
    limit: int,
) -> Look:
    wanted = Range(
        partition="",
        index=layout.BY_ATTENTION,
        when=[lives(storage.clock.now_ms())],
        newest_first=of == layout.TROUBLE,
    )
    return await _merged(storage, layout.attention_keys(of), wanted, after, limit, bounds)


async def named_heads(storage: DurableStorage, named: Iterable[Named]) -> dict[TaskKey, Head]:
    """Return the live HEADs of tasks that an index names, each once; one may be unreadable."""
    keys = list(dict.fromkeys(layout.head_key(one.scope, one.task_id) for one in named))
    heads = await readable_heads(storage, keys) if keys else []
    return {(head.scope, head.task_id): head for head in heads}


# -- one order over the partitions of an index -----------------------------------------------


async def _merged(
    storage: DurableStorage,
    partitions: Iterable[str],
    wanted: Range,
    after: str,
    limit: int,
    bounds: _Bounds = (None, None),
) -> Look:
    """Return the first `limit` entries between two sort keys in several partitions of an index."""
    name, is_down = layout.INDEXES[wanted.index].sort, wanted.newest_first
    behind = _place_in(after, name) if after else None
    first, last = bounds
    if behind is not None:
        first, last = (first, behind[1]) if is_down else (behind[1], last)
    if first is not None and last is not None and first > last:
        return Look(found=(), after="")
    wanted = replace(wanted, first=first, last=last)

    def is_behind(entry: Item) -> bool:
        place = _place(entry, name)
        return behind is None or (place < behind if is_down else place > behind)

    parts = await asyncio.gather(
        *(
            storage.table.first(limit + 1, replace(wanted, partition=key), is_behind)
            for key in partitions
        )
    )
    # An index orders entries of one sort key as it likes. A part that is cut off between such
    # entries lacks some of them, so all of them are left to the next look. That loses some only
    # where more than `limit` have one sort key, which takes as many scopes.
    cut = [
        part[-1][name] for part in parts if len(part) > limit and part[0][name] != part[-1][name]
    ]
    end = (max(cut) if is_down else min(cut)) if cut else None
    entries = [
        entry
        for part in parts
        for entry in part
        if end is None or (entry[name] > end if is_down else entry[name] < end)
    ]
    entries.sort(key=lambda entry: _place(entry, name), reverse=is_down)
    has_more = len(entries) > limit or any(len(part) > limit for part in parts)
    shown = entries[:limit]
    found = filter(None, (_named(entry, name) for entry in shown))
    return Look(found=tuple(found), after=page_token(_place(shown[-1], name)) if has_more else "")


def _place(entry: Item, name: str) -> tuple[str, ...]:
    return name, str(entry[name]), entry["PK"], entry["SK"]


def _place_in(after: str, name: str) -> tuple[str, ...]:
    match page_place(after):
        case [own, str(sort), str(partition), str(key)] if own == name:
            return name, sort, partition, key
        case _:
            raise PageTokenError


def _named(entry: Item, name: str) -> Named | None:
    """Return what an entry says; None for one that no release writes."""
    if not entry["PK"].startswith("TASK#"):
        return None
    scope, task_id = layout.owner_of(entry["PK"])
    named = Named(scope=scope, task_id=task_id, order=_place(entry, name))
    if name != layout.ATTENTION[1]:
        return named
    why = layout.attention_in(str(entry[name]))
    is_head = entry["SK"] == layout.HEAD
    names = (entry.get("incarnation", ""), "") if is_head else layout.push_names(entry["SK"])
    if why is None:
        return None
    return replace(named, why=why, incarnation=str(names[0]), config_id=names[1])

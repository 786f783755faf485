"""Finding tasks by index: a scope's listing, a context's tasks, turns that are due.

An index lags behind the table. It names candidates; each task's HEAD, read consistently, says
whether and where it belongs.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from a2a_serverless.errors import ConditionFailedError, UnavailableError
from a2a_serverless.storage import dynamodb_layout as layout
from a2a_serverless.storage.attributes import due_of
from a2a_serverless.storage.dynamodb_commits import FOLDED, PART_BYTES, Commits
from a2a_serverless.storage.dynamodb_counts import Counted, count_key
from a2a_serverless.storage.listing import Found, Listing
from a2a_serverless.storage.log import Created, Due, Log, TaskKey, created_place
from a2a_serverless.storage.table import Check, Item, Key, Range
from a2a_serverless.storage.table_storage import TableStorage, stored
from a2a_serverless.tasks.head import Head, state_name
from a2a_serverless.tasks.identity import Scope, is_task_id
from a2a_serverless.tasks.storing import belonging_to

FIRST_COMMITS: Final = 8
"""Commits of a listed task that are read together with those of others.

A longer log is cheaper to read by a query of its own, which does not round up each commit's size.
"""


class IndexedTasks(TableStorage):
    """The part of `DynamoStorage` that reads the indexes."""

    async def _newest(self, listing: Listing, limit: int) -> Found:
        """Find HEADs as the contract says; mostly by one query for each shard and one batch."""
        if listing.context_id is not None:
            return listing.found(await self._context_heads(listing.context_id), limit)
        place = count_key(self.scope.digest, listing)
        heads: dict[str, Head] = {}
        before, counted, is_all = listing.before, None, False
        while len(heads) < limit and not is_all:
            candidates = await self._candidates(listing, before, limit)
            is_all = len(candidates) < limit
            keys = _heads_of(candidates)
            asks = listing.total_size is None and before is None and not is_all
            items = await self.table.load([*keys, place] if asks else keys)
            # The count comes with the HEADs, and costs no request of its own.
            count = items.pop(place, None)
            if count is not None:
                counted = Counted.of(count, self._now_s())
            found = self._readable_heads(stored(items))
            heads |= {head.task_id: head for head in listing.page(found)}
            if candidates:
                before = candidates[-1]["status_key"]
        newest = listing.page(heads.values())[:limit]
        total = listing.total_size
        if total is None:
            is_whole = is_all and len(newest) == len(heads)
            total = len(newest) if is_whole else await self._total(listing, newest, counted)
        return Found(heads=newest, total=total)

    async def _total(self, listing: Listing, newest: list[Head], counted: Counted | None) -> int:
        """Return how many tasks the filters match: from a stored count, or by counting them.

        Counting reads one index entry for each task.
        """
        if counted is not None:
            return max(counted.with_newer(newest, listing.state), len(newest))
        at = self.clock.now_ms()
        counts = [
            self.table.count(self._by_scope(scope_key, listing, None))
            for scope_key in layout.scope_keys(self.scope.digest)
        ]
        totals, looked_at = zip(*await asyncio.gather(*counts), strict=True)
        made = Counted.made(sum(totals), sum(looked_at), at)
        with suppress(ConditionFailedError, UnavailableError):  # it spares others the counting
            await self.table.write(made.update(count_key(self.scope.digest, listing)), once=True)
        return made.total

    async def _short_logs(self, heads: Sequence[Head]) -> Mapping[str, Log]:
        """Read logs of a few small commits by batches of their items.

        The items are written once, together with HEAD, so that it does not matter when they are
        read. If an item cannot be seen yet, its log is left out.
        """
        short = [h for h in heads if h.version <= FIRST_COMMITS and h.size <= PART_BYTES]
        keys = [
            Key(self._partition(head.task_id), layout.event_sort(head.incarnation, version, 0))
            for head in short
            for version in range(1, head.version + 1)
        ]
        items: defaultdict[str, list[Item]] = defaultdict(list)
        for item in stored(await self.table.load(keys, consistent=False, only=FOLDED)):
            items[item["PK"]].append(item)
        logs: dict[str, Log] = {}
        for head in short:
            commits = Commits(head.incarnation, 0)
            found = items[self._partition(head.task_id)]
            commits.add(sorted(found, key=lambda item: str(item["SK"])))
            records = belonging_to(head, commits.records, commits.version)
            if records is not None:
                logs[head.task_id] = Log(head=head, records=records)
        return logs

    async def _context_heads(self, context_id: str) -> list[Head]:
        """Return HEADs as the contract says, in the order of the index."""
        wanted = Range(
            partition=layout.context_key(self.scope.digest, context_id),
            index=layout.BY_CONTEXT,
            when=[Check("expires_at", ">", self._now_s())],
        )
        return await self._heads(await self._all(wanted))

    async def due(self, now_ms: int, *, limit: int = 100, after: Due | None = None) -> list[Due]:
        """Return turns as the contract says, from their keys alone."""
        # Expired turns stay in the index for up to two days; they must not starve the others.
        entries = await self._overdue("TURN", now_ms, limit, after, only_live=True)
        return [_due_of(entry) for entry in entries]

    async def find(self, task_id: str) -> list[TaskKey]:
        if not is_task_id(task_id):
            return []
        entries = await self._by_id(layout.id_key(task_id))
        heads = stored(await self.table.load(_heads_of(entries)))
        return sorted(layout.owner_of(head["PK"]) for head in heads if self._is_live(head))

    async def created_in(self, hour_ms: int, *, before: str = "", limit: int = 100) -> Created:
        shards = await asyncio.gather(
            *(self._by_id(id_key, before, limit + 1) for id_key in layout.hour_keys(hour_ms))
        )
        has_more = any(len(shard) > limit for shard in shards)
        floor = max(_incomplete(shard, limit) for shard in shards)
        found = [entry for shard in shards for entry in shard if _created_key(entry) > floor]
        found.sort(key=_place_of, reverse=True)
        entries = found[:limit]
        heads = await self._heads(entries)
        heads.sort(key=Created.place, reverse=True)
        has_more = has_more or len(found) > limit
        return Created(heads=tuple(heads), before=_place_of(entries[-1]) if has_more else "")

    async def _by_id(self, id_key: str, before: str = "", limit: int = 100) -> list[Item]:
        """Return the newest `limit` entries of the index by id, from behind `before`."""
        wanted = Range(
            partition=id_key,
            index=layout.BY_ID,
            last=before.rpartition("#")[0] if before else None,
            newest_first=True,
        )
        return await self._first(
            limit, wanted, lambda entry: not before or _place_of(entry) < before
        )

    async def _candidates(self, listing: Listing, before: str | None, limit: int) -> list[Item]:
        """Return the first `limit` entries of the index by scope over all shards."""
        if before is not None and before <= listing.since:
            return []
        shards = [
            self._first(
                limit,
                replace(self._by_scope(scope_key, listing, before), only=("status_key",)),
                lambda entry: before is None or entry["status_key"] < before,
            )
            for scope_key in layout.scope_keys(self.scope.digest)
        ]
        entries = [entry for shard in await asyncio.gather(*shards) for entry in shard]
        entries.sort(key=lambda entry: str(entry["status_key"]), reverse=True)
        return entries[:limit]

    def _by_scope(self, scope_key: str, listing: Listing, before: str | None) -> Range:
        """Return one shard of the index by scope, newest first."""
        when = [Check("expires_at", ">", self._now_s())]
        if listing.state is not None:
            when.append(Check("state", "=", state_name(listing.state)))
        return Range(
            partition=scope_key,
            index=layout.BY_SCOPE,
            first=listing.since,
            last=before,
            when=when,
            newest_first=True,
        )

    async def _heads(self, entries: Iterable[Item]) -> list[Head]:
        """Return the live HEADs that entries of an index name, each once."""
        return self._readable_heads(stored(await self.table.load(_heads_of(entries))))

    def _readable_heads(self, items: Iterable[Item]) -> list[Head]:
        """Return the live HEADs among `items`; a line in the log names a damaged one."""
        heads = [self._readable(item) for item in items]
        return [head for head in heads if head is not None]


def _heads_of(entries: Iterable[Item]) -> list[Key]:
    """Return the keys of the HEADs that entries name; an index may name a task twice."""
    return list({entry["PK"]: Key(entry["PK"], layout.HEAD) for entry in entries}.values())


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
    return created_place(_created_key(entry), scope)


def _due_of(entry: Item) -> Due:
    scope, task_id = layout.owner_of(entry["PK"])
    return Due(scope=Scope(scope), task_id=task_id, due_at=due_of(entry))

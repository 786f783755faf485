"""Finding tasks by index: a scope's listing, a context's tasks, turns that are due.

An index lags behind the table. It names candidates; each task's HEAD, read consistently, says
whether and where it belongs.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage import dynamodb_layout as layout
from a2a_serverless.storage.dynamodb_attributes import Item, attribute, due_of
from a2a_serverless.storage.dynamodb_commits import FOLDED, PART_BYTES, Commits
from a2a_serverless.storage.dynamodb_counts import Counted, count_key
from a2a_serverless.storage.dynamodb_layout import key
from a2a_serverless.storage.dynamodb_table import TableStorage
from a2a_serverless.storage.listing import Found, Listing
from a2a_serverless.storage.log import Created, Due, Log, TaskKey, created_place
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
            keys = [key(candidate["PK"]["S"], layout.HEAD) for candidate in candidates]
            asks = listing.total_size is None and before is None and not is_all
            items = await self._table.load(_distinct([*keys, place] if asks else keys))
            if asks:  # the count comes with the HEADs, and costs no request of its own
                counted = _split_count(items, self._now_s())
            found = self._readable_heads(items)
            heads |= {head.task_id: head for head in listing.page(found)}
            if candidates:
                before = candidates[-1]["status_key"]["S"]
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
            self._table.count(**self._by_scope(scope_key, listing, None))
            for scope_key in layout.scope_keys(self.scope.digest)
        ]
        totals, looked_at = zip(*await asyncio.gather(*counts), strict=True)
        made = Counted.made(sum(totals), sum(looked_at), at)
        await self._table.note(**made.update(count_key(self.scope.digest, listing)))
        return made.total

    async def _short_logs(self, heads: Sequence[Head]) -> Mapping[str, Log]:
        """Read logs of a few small commits by batches of their items.

        The items are written once, together with HEAD, so that it does not matter when they are
        read. If an item cannot be seen yet, its log is left out.
        """
        short = [h for h in heads if h.version <= FIRST_COMMITS and h.size <= PART_BYTES]
        keys = [
            key(self._partition(head.task_id), layout.event_sort(head.incarnation, version, 0))
            for head in short
            for version in range(1, head.version + 1)
        ]
        items: defaultdict[str, list[Item]] = defaultdict(list)
        for item in await self._table.load(keys, consistent=False, only=FOLDED):
            items[item["PK"]["S"]].append(item)
        logs: dict[str, Log] = {}
        for head in short:
            commits = Commits(head.incarnation, 0)
            found = items[self._partition(head.task_id)]
            commits.add(sorted(found, key=lambda item: str(item["SK"]["S"])))
            records = belonging_to(head, commits.records, commits.version)
            if records is not None:
                logs[head.task_id] = Log(head=head, records=records)
        return logs

    async def _context_heads(self, context_id: str) -> list[Head]:
        """Return HEADs as the contract says, in the order of the index."""
        keys: list[Item] = []
        async for page in self._table.query(
            IndexName=layout.BY_CONTEXT,
            KeyConditionExpression="context_key = :context",
            FilterExpression="expires_at > :now",
            ExpressionAttributeValues={
                ":context": attribute(layout.context_key(self.scope.digest, context_id)),
                ":now": attribute(self._now_s()),
            },
        ):
            keys += [key(entry["PK"]["S"], layout.HEAD) for entry in page]
        return await self._heads(keys)

    async def due(self, now_ms: int, *, limit: int = 100, after: Due | None = None) -> list[Due]:
        """Return turns as the contract says, from their keys alone."""
        # Expired turns stay in the index for up to two days; they must not starve the others.
        entries = await self._overdue("TURN", now_ms, limit, after, only_live=True)
        return [_due_of(entry) for entry in entries]

    async def find(self, task_id: str) -> list[TaskKey]:
        if not is_task_id(task_id):
            return []
        entries = await self._by_id(layout.id_key(task_id))
        partitions = {entry["PK"]["S"] for entry in entries}
        heads = await self._table.load([key(partition, layout.HEAD) for partition in partitions])
        return sorted(layout.owner_of(head["PK"]["S"]) for head in heads if self._is_live(head))

    async def created_in(self, hour_ms: int, *, before: str = "", limit: int = 100) -> Created:
        shards = await asyncio.gather(
            *(self._by_id(id_key, before, limit + 1) for id_key in layout.hour_keys(hour_ms))
        )
        has_more = any(len(shard) > limit for shard in shards)
        floor = max(_incomplete(shard, limit) for shard in shards)
        found = [entry for shard in shards for entry in shard if _created_key(entry) > floor]
        found.sort(key=_place_of, reverse=True)
        entries = found[:limit]
        heads = await self._heads([key(entry["PK"]["S"], layout.HEAD) for entry in entries])
        heads.sort(key=Created.place, reverse=True)
        has_more = has_more or len(found) > limit
        return Created(heads=tuple(heads), before=_place_of(entries[-1]) if has_more else "")

    async def _by_id(self, id_key: str, before: str = "", limit: int = 100) -> list[Item]:
        """Return the newest `limit` entries under a key of the index by id, from behind `before`.

        Raises:
            ConfigurationError: the table was made by an earlier release and has no such index.
        """
        condition, values = "id_key = :id_key", {":id_key": attribute(id_key)}
        if before:
            condition += " AND created_key <= :last"
            values[":last"] = attribute(before.rpartition("#")[0])
        try:
            return await self._first(
                limit,
                lambda entry: not before or _place_of(entry) < before,
                IndexName=layout.BY_ID,
                KeyConditionExpression=condition,
                ExpressionAttributeValues=values,
                ScanIndexForward=False,
            )
        except aws.ERRORS as error:
            if aws.error_code(error) != "ValidationException" or not _lacks_index(error):
                raise
            msg = (
                f"The table has no index {layout.BY_ID} yet, by which a task is found without its"
                " scope: deploy this release's template, or wait until the index is filled."
            )
            raise ConfigurationError(msg) from error

    async def _candidates(self, listing: Listing, before: str | None, limit: int) -> list[Item]:
        """Return the first `limit` entries of the index by scope over all shards."""
        if before is not None and before <= listing.since:
            return []
        shards = [
            self._first(
                limit,
                lambda entry: before is None or entry["status_key"]["S"] < before,
                ProjectionExpression="PK, status_key",
                **self._by_scope(scope_key, listing, before),
            )
            for scope_key in layout.scope_keys(self.scope.digest)
        ]
        entries = [entry for shard in await asyncio.gather(*shards) for entry in shard]
        return sorted(entries, key=lambda entry: str(entry["status_key"]["S"]), reverse=True)[
            :limit
        ]

    def _by_scope(self, scope_key: str, listing: Listing, before: str | None) -> dict[str, Any]:
        """Return the query for one shard of the index by scope, newest first."""
        condition = "scope_key = :scope_key AND status_key >= :since"
        live = "expires_at > :now"
        values: dict[str, str | int] = {
            ":scope_key": scope_key,
            ":since": listing.since,
            ":now": self._now_s(),
        }
        names: dict[str, Any] = {}
        if before is not None:
            condition = "scope_key = :scope_key AND status_key BETWEEN :since AND :before"
            values[":before"] = before
        if listing.state is not None:
            live += " AND #state = :state"
            values[":state"] = state_name(listing.state)
            names = {"ExpressionAttributeNames": {"#state": "state"}}
        return {
            "IndexName": layout.BY_SCOPE,
            "KeyConditionExpression": condition,
            "FilterExpression": live,
            "ExpressionAttributeValues": {n: attribute(v) for n, v in values.items()},
            "ScanIndexForward": False,
            **names,
        }

    async def _heads(self, keys: Sequence[Item]) -> list[Head]:
        """Return the live HEADs under `keys`, each once, though an index may name a task twice."""
        return self._readable_heads(await self._table.load(_distinct(keys)))

    def _readable_heads(self, items: Iterable[Item]) -> list[Head]:
        """Return the live HEADs among `items`; a line in the log names a damaged one."""
        heads = [self._readable(item) for item in items]
        return [head for head in heads if head is not None]


def _distinct(keys: Iterable[Item]) -> list[Item]:
    """Return one key for each partition: an index may name a task twice."""
    return list({one["PK"]["S"]: one for one in keys}.values())


def _split_count(items: list[Item], now_s: int) -> Counted | None:
    """Take the COUNT out of a batch's items; return it if it still serves."""
    place = next((n for n, item in enumerate(items) if layout.is_count(item)), None)
    return None if place is None else Counted.of(items.pop(place), now_s)


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
    return str(entry["created_key"]["S"])


def _place_of(entry: Item) -> str:
    """Return the place of an entry of the index by id, as `Created.place`."""
    scope, _ = layout.owner_of(entry["PK"]["S"])
    return created_place(_created_key(entry), scope)


def _lacks_index(error: Exception) -> bool:
    """Return True if DynamoDB refuses a Query because its index is not there, or not filled."""
    return any(sentence in str(error) for sentence in _NO_INDEX)


_NO_INDEX: Final = (
    "The table does not have the specified index",
    "Cannot read from backfilling global secondary index",
)


def _due_of(entry: Item) -> Due:
    scope, task_id = layout.owner_of(entry["PK"]["S"])
    return Due(scope=Scope(scope), task_id=task_id, due_at=due_of(entry))

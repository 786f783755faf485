"""Finding tasks by index: a scope's listing, a context's tasks, turns that are due.

An index lags behind the table. It names candidates; each task's HEAD, read consistently, says
whether and where it belongs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from a2a_serverless.clock import Clock
from a2a_serverless.storage import dynamodb_items as items
from a2a_serverless.storage.dynamodb_items import Item, attribute, key
from a2a_serverless.storage.dynamodb_table import Table
from a2a_serverless.storage.listing import Listing, status_key
from a2a_serverless.storage.log import Due
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.states import state_name


class Index:
    """The indexes of one table, seen through one scope."""

    def __init__(self, table: Table, scope: Scope, clock: Clock) -> None:
        self._table = table
        self._scope = scope.digest
        self._clock = clock

    async def newest(self, listing: Listing, limit: int) -> list[Head]:
        """Return the first `limit` live HEADs that the listing asks for, newest status first."""
        if listing.context_id is not None:
            heads = await self.of_context(listing.context_id)
            return _page(heads, listing)[:limit]
        found: dict[str, Head] = {}
        before = listing.before
        while True:
            candidates = await self._candidates(listing, before, limit)
            heads = await self._heads([key(c["PK"]["S"], items.HEAD) for c in candidates])
            found |= {head.task_id: head for head in _page(heads, listing)}
            if len(found) >= limit or len(candidates) < limit:
                return _page(list(found.values()), listing)[:limit]
            before = candidates[-1]["status_key"]["S"]

    async def count(self, listing: Listing) -> int:
        """Count the live tasks that the filters match: one index entry read for each task."""
        if listing.context_id is not None:
            return sum(map(listing.matches, await self.of_context(listing.context_id)))
        conditions = [
            self._by_scope(scope_key, listing, None) for scope_key in items.scope_keys(self._scope)
        ]
        counts = [self._table.count(**condition) for condition in conditions]
        return sum(await asyncio.gather(*counts))

    async def of_context(self, context_id: str) -> list[Head]:
        """Return HEADs of the live tasks of a context, in the order of the index."""
        keys: list[Item] = []
        async for page in self._table.query(
            IndexName=items.BY_CONTEXT,
            KeyConditionExpression="context_key = :context",
            FilterExpression="expires_at > :now",
            ExpressionAttributeValues={
                ":context": attribute(items.context_key(self._scope, context_id)),
                ":now": attribute(self._now_s()),
            },
        ):
            keys += [key(entry["PK"]["S"], items.HEAD) for entry in page]
        return await self._heads(keys)

    async def due(self, now_ms: int, limit: int) -> list[Due]:
        """Return overdue turns of all scopes, the longest overdue first, from their keys alone."""
        shards = [self._overdue(due_key, now_ms, limit) for due_key in items.due_keys("TURN")]
        entries = [entry for shard in await asyncio.gather(*shards) for entry in shard]
        overdue = [_due_of(entry) for entry in entries]
        return sorted(overdue, key=lambda due: (due.due_at, due.task_id))[:limit]

    async def _overdue(self, due_key: str, now_ms: int, limit: int) -> list[Item]:
        return await self._first(
            limit,
            IndexName=items.BY_DUE,
            KeyConditionExpression="due_key = :due_key AND due_at <= :due",
            # Expired turns stay in the index for up to two days; they must not starve the others.
            FilterExpression="expires_at > :now",
            ExpressionAttributeValues={
                ":due_key": attribute(due_key),
                ":due": attribute(now_ms),
                ":now": attribute(now_ms // 1000),
            },
        )

    async def _candidates(self, listing: Listing, before: str | None, limit: int) -> list[Item]:
        """Return the first `limit` entries of the scope's index over all shards."""
        if before is not None and before <= listing.since:
            return []
        shards = [
            self._first(limit, before, **self._by_scope(scope_key, listing, before))
            for scope_key in items.scope_keys(self._scope)
        ]
        entries = [entry for shard in await asyncio.gather(*shards) for entry in shard]
        return sorted(entries, key=lambda entry: str(entry["status_key"]["S"]), reverse=True)[
            :limit
        ]

    async def _first(self, limit: int, before: str | None = None, **request: Any) -> list[Item]:
        """Return the first `limit` entries that pass the query's filter, without `before`."""
        found: list[Item] = []
        # One more, as a key range has no exclusive end.
        async for page in self._table.query(Limit=limit + 1, **request):
            found += [e for e in page if before is None or e["status_key"]["S"] < before]
            if len(found) >= limit:
                break
        return found[:limit]

    def _by_scope(self, scope_key: str, listing: Listing, before: str | None) -> dict[str, Any]:
        """Return the query for one shard of the scope's index, newest first."""
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
            "IndexName": items.BY_SCOPE,
            "KeyConditionExpression": condition,
            "FilterExpression": live,
            "ExpressionAttributeValues": {n: attribute(v) for n, v in values.items()},
            "ScanIndexForward": False,
            **names,
        }

    async def _heads(self, keys: Sequence[Item]) -> list[Head]:
        """Return the live HEADs under `keys`, each once, though an index may name a task twice."""
        distinct = list({k["PK"]["S"]: k for k in keys}.values())
        now_ms = self._clock.now_ms()
        heads = [items.head_of(item) for item in await self._table.load(distinct)]
        return [head for head in heads if not head.has_expired(now_ms)]

    def _now_s(self) -> int:
        return self._clock.now_ms() // 1000


def _page(heads: Sequence[Head], listing: Listing) -> list[Head]:
    """Return those of `heads` that belong behind the listing's cursor, in its order."""
    keyed = {status_key(head.status_at, head.task_id): head for head in heads}
    return [
        keyed[place]
        for place in sorted(keyed, reverse=True)
        if (listing.before is None or place < listing.before) and listing.matches(keyed[place])
    ]


def _due_of(entry: Item) -> Due:
    scope, task_id = items.owner_of(entry["PK"]["S"])
    return Due(scope=Scope(scope), task_id=task_id, due_at=int(entry["due_at"]["N"]))

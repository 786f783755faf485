"""Deleting the items of tasks and contexts, so that nothing of them comes back.

HEAD is fenced first: it gets another incarnation and an expiry in the past, in one step. From then
on no reader of any release finds the task, and no commit, renewal, cursor or flag of a process that
has read it meets its condition. HEAD stays in the indexes until all else is deleted: if a deletion
stops in between, the next call finds the task and finishes it.

DynamoDB's time to live does not remove such a HEAD: it leaves alone what expired more than five
years ago.
"""

from __future__ import annotations

from typing import Final

from a2a_serverless.aws import ConditionFailedError
from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage import dynamodb_layout as layout
from a2a_serverless.storage.deletion import Erased, Place
from a2a_serverless.storage.dynamodb_attributes import Item, attribute, plain
from a2a_serverless.storage.dynamodb_heads import incarnation_of
from a2a_serverless.storage.dynamodb_layout import key
from a2a_serverless.storage.dynamodb_table import Action, TableStorage
from a2a_serverless.tasks.identity import is_task_id, new_incarnation

DELETED: Final = 1
"""`expires_at` of a HEAD whose task is being deleted, in seconds since the epoch."""

FENCES: Final = 5
"""How often fencing a task is tried, if the task is replaced meanwhile."""


class DeletedItems(TableStorage):
    """The part of `DynamoStorage` that deletes."""

    async def _places(self, context_id: str | None, limit: int, after: str) -> list[Place]:
        if context_id is None:
            return await self._places_in_scope(limit, after)
        context = layout.context_key(self.scope.digest, context_id)
        found = await self._entries(layout.BY_CONTEXT, context, limit, after)
        places = [self._place(entry, str(entry["created_key"]["S"])) for entry in found]
        if len(places) < limit:
            item = await self._table.get(self._context_key(context_id))
            if item is not None and after != layout.CONTEXT:
                is_live = self._is_live(item)
                places.append(Place(context_id=context_id, is_live=is_live, at=layout.CONTEXT))
        return places

    async def _places_in_scope(self, limit: int, after: str) -> list[Place]:
        """Return what the index by scope has, shard by shard; `after` is `<shard>:<status_key>`."""
        first, _, behind = after.partition(":")
        places: list[Place] = []
        for shard in range(int(first or 0), layout.SHARDS):
            scope_key = layout.scope_keys(self.scope.digest)[shard]
            room = limit - len(places)
            found = await self._entries(layout.BY_SCOPE, scope_key, room, behind)
            places += [self._place(e, f"{shard}:{e['status_key']['S']}") for e in found]
            behind = ""
            if len(places) >= limit:
                break
        return places

    async def _entries(self, index: str, value: str, limit: int, behind: str) -> list[Item]:
        """Return the first `limit` entries of an index's partition, also of what has expired."""
        partition, sort = _KEYS[index]
        condition, values = f"{partition} = :value", {":value": attribute(value)}
        if behind:
            condition += f" AND {sort} > :behind"
            values[":behind"] = attribute(behind)
        return await self._first(
            limit,
            lambda _: True,
            IndexName=index,
            KeyConditionExpression=condition,
            ExpressionAttributeValues=values,
        )

    def _place(self, entry: Item, at: str) -> Place:
        is_live = self._is_live(entry)
        context_id = layout.context_in(entry)
        if context_id is not None:
            return Place(context_id=context_id, is_live=is_live, at=at)
        _, task_id = layout.owner_of(entry["PK"]["S"])
        return Place(task_id=task_id, is_live=is_live, at=at)

    async def _webhooks(self, task_id: str) -> int:
        found, _ = await self._table.count(
            ConsistentRead=True,
            KeyConditionExpression="PK = :pk AND begins_with(SK, :push)",
            ExpressionAttributeValues={
                ":pk": attribute(self._partition(task_id)),
                ":push": attribute(layout.PUSH),
            },
        )
        return found

    async def _delete_context_item(self, context_id: str) -> bool:
        return await self._table.delete_one(
            Key=self._context_key(context_id), ConditionExpression="attribute_exists(PK)"
        )

    async def _delete_counts(self, limit: int) -> int:
        counts = await self._first(
            limit,
            lambda _: True,
            ConsistentRead=True,
            KeyConditionExpression="PK = :pk",
            ProjectionExpression="PK, SK",
            ExpressionAttributeValues={":pk": attribute(layout.count_partition(self.scope.digest))},
        )
        await self._table.delete(counts)
        return len(counts)

    async def _erase(
        self, task_id: str, *, incarnation: str | None = None, limit: int | None = None
    ) -> Erased:
        if not is_task_id(task_id):
            return Erased()
        partition = self._partition(task_id)
        head, was_live = await self._fenced(partition, incarnation)
        if head is None:
            return Erased()
        fence = head["incarnation"]
        keys = await self._keys(partition, limit)
        is_whole = limit is None or len(keys) < limit
        # Read after the keys: each of them is of this incarnation, or of none that lives.
        now = await self._table.get(key(partition, layout.HEAD))
        is_own = now is not None and now.get("incarnation") == fence
        doomed = keys if is_own else [k for k in keys if not _is_of(k, incarnation_of(now))]
        await self._table.delete(doomed)
        if is_whole and is_own:
            await self._table.delete_one(
                Key=key(partition, layout.HEAD),
                ConditionExpression="incarnation = :fence",
                ExpressionAttributeValues={":fence": fence},
            )
        context_id = plain(head).get("context_id")
        return Erased(
            items=len(doomed) + 1,
            webhooks=sum(k["SK"]["S"].startswith(layout.PUSH) for k in doomed),
            was_live=was_live,
            context_id=context_id if isinstance(context_id, str) else None,
        )

    async def _fenced(self, partition: str, incarnation: str | None) -> tuple[Item | None, bool]:
        """Fence HEAD; return it as it is then, and whether its task existed until now.

        None when there is no HEAD, or not one of `incarnation`.
        """
        fence = attribute(new_incarnation())
        was_live = False
        for _ in range(FENCES):
            item = await self._table.get(key(partition, layout.HEAD))
            if item is not None and item.get("incarnation") == fence:
                return item, was_live  # an earlier request, whose answer was lost
            if item is None or incarnation not in (None, incarnation_of(item)):
                return None, False
            if plain(item).get("expires_at") == DELETED and "incarnation" in item:
                return item, False
            was_live = self._is_live(item)
            try:
                await self._table.transact(_fence(item, fence))
            except ConditionFailedError:
                continue
            return item | {"incarnation": fence}, was_live
        msg = f"A task was replaced {FENCES} times while it was deleted; delete it again."
        raise UnavailableError(msg)

    async def _keys(self, partition: str, limit: int | None) -> list[Item]:
        """Return the keys of a task's first items, without HEAD and flag."""
        keys: list[Item] = []
        async for page in self._table.query(
            ConsistentRead=True,
            KeyConditionExpression="PK = :pk",
            ProjectionExpression="PK, SK",
            ExpressionAttributeValues={":pk": attribute(partition)},
            **({} if limit is None else {"Limit": limit + 2}),
        ):
            keys += [k for k in page if k["SK"]["S"] not in (layout.HEAD, layout.CANCEL)]
            if limit is not None and len(keys) >= limit:
                return keys[:limit]
        return keys

    def _context_key(self, context_id: str) -> Item:
        return key(layout.context_partition(self.scope.digest, context_id), layout.CONTEXT)


_KEYS: Final = {
    layout.BY_SCOPE: ("scope_key", "status_key"),
    layout.BY_CONTEXT: ("context_key", "created_key"),
}
"""The attributes that are an index's keys."""


def _fence(head: Item, fence: Item) -> list[Action]:
    """Return the actions after which a task is gone, if HEAD is the one that was read."""
    seen = head.get("incarnation")
    values = {":fence": fence, ":deleted": attribute(DELETED)}
    place = {name: head[name] for name in ("PK", "SK")}
    return [
        {
            "Update": {
                "Key": place,
                "UpdateExpression": "SET incarnation = :fence, expires_at = :deleted",
                "ConditionExpression": "attribute_exists(PK) AND attribute_not_exists(incarnation)"
                if seen is None
                else "incarnation = :seen",
                "ExpressionAttributeValues": values | ({} if seen is None else {":seen": seen}),
            }
        },
        {"Delete": {"Key": place | {"SK": attribute(layout.CANCEL)}}},
    ]


def _is_of(item_key: Item, incarnation: str | None) -> bool:
    """Return True unless a key says that it is of another incarnation."""
    found = layout.incarnation_in(item_key["SK"]["S"])
    return found is None or found == incarnation

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

from a2a_serverless.errors import ConditionFailedError, UnavailableError
from a2a_serverless.storage import dynamodb_layout as layout
from a2a_serverless.storage.deletion import Erased, Place
from a2a_serverless.storage.dynamodb_heads import incarnation_of
from a2a_serverless.storage.table import (
    STORED,
    Check,
    Delete,
    Item,
    Key,
    Range,
    Update,
    Write,
    are,
    beginning,
    key_of,
)
from a2a_serverless.storage.table_storage import TableStorage
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
        places = [self._place(entry, entry["created_key"]) for entry in found]
        if len(places) < limit:
            item = await self.table.get(self._context_key(context_id))
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
            places += [self._place(e, f"{shard}:{e['status_key']}") for e in found]
            behind = ""
            if len(places) >= limit:
                break
        return places

    async def _entries(self, index: str, value: str, limit: int, behind: str) -> list[Item]:
        """Return the first `limit` entries of an index's partition, also of what has expired."""
        sort = layout.INDEXES[index].sort
        wanted = Range(partition=value, index=index, first=behind or None)
        return await self._first(limit, wanted, lambda entry: entry[sort] != behind)

    def _place(self, entry: Item, at: str) -> Place:
        is_live = self._is_live(entry)
        context_id = layout.context_in(entry)
        if context_id is not None:
            return Place(context_id=context_id, is_live=is_live, at=at)
        _, task_id = layout.owner_of(entry["PK"])
        return Place(task_id=task_id, is_live=is_live, at=at)

    async def _webhooks(self, task_id: str) -> int:
        counted = await self.table.count(beginning(self._partition(task_id), layout.PUSH))
        return counted.passed

    async def _delete_context_item(self, context_id: str) -> bool:
        return await self.table.did(Delete(key=self._context_key(context_id), when=[STORED]))

    async def _delete_counts(self, limit: int) -> int:
        partition = layout.count_partition(self.scope.digest)
        counts = await self._first(limit, Range(partition=partition, only=_KEYS))
        await self.table.delete(map(key_of, counts))
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
        now = await self.table.get(Key(partition, layout.HEAD))
        is_own = now is not None and now.get("incarnation") == fence
        doomed = keys if is_own else [k for k in keys if not _is_of(k, incarnation_of(now))]
        await self.table.delete(doomed)
        if is_whole and is_own:
            own = Delete(key=Key(partition, layout.HEAD), when=are(incarnation=fence))
            await self.table.did(own)
        context_id = head.get("context_id")
        return Erased(
            items=len(doomed) + 1,
            webhooks=sum(k.SK.startswith(layout.PUSH) for k in doomed),
            was_live=was_live,
            context_id=context_id if isinstance(context_id, str) else None,
        )

    async def _fenced(self, partition: str, incarnation: str | None) -> tuple[Item | None, bool]:
        """Fence HEAD; return it as it is then, and whether its task existed until now.

        None when there is no HEAD, or not one of `incarnation`.
        """
        fence = new_incarnation()
        was_live = False
        for _ in range(FENCES):
            item = await self.table.get(Key(partition, layout.HEAD))
            if item is not None and item.get("incarnation") == fence:
                return item, was_live  # an earlier request, whose answer was lost
            if item is None or incarnation not in (None, incarnation_of(item)):
                return None, False
            if item.get("expires_at") == DELETED and "incarnation" in item:
                return item, False
            was_live = self._is_live(item)
            try:
                await self.table.write(*_fence(item, fence))
            except ConditionFailedError:
                continue
            return item | {"incarnation": fence}, was_live
        msg = f"A task was replaced {FENCES} times while it was deleted; delete it again."
        raise UnavailableError(msg)

    async def _keys(self, partition: str, limit: int | None) -> list[Key]:
        """Return the keys of a task's first items, without HEAD and flag."""
        keys: list[Key] = []
        page_size = None if limit is None else limit + 2
        async for page in self.table.query(Range(partition=partition, only=_KEYS, page=page_size)):
            keys += [key_of(k) for k in page if k["SK"] not in (layout.HEAD, layout.CANCEL)]
            if limit is not None and len(keys) >= limit:
                return keys[:limit]
        return keys

    def _context_key(self, context_id: str) -> Key:
        return Key(layout.context_partition(self.scope.digest, context_id), layout.CONTEXT)


_KEYS: Final = ("PK", "SK")


def _fence(head: Item, fence: str) -> list[Write]:
    """Return the writes after which a task is gone, if HEAD is the one that was read."""
    is_same = [STORED, Check("incarnation", "absent")]
    if "incarnation" in head:
        is_same = are(incarnation=head["incarnation"])
    place = key_of(head)
    return [
        Update(key=place, values={"incarnation": fence, "expires_at": DELETED}, when=is_same),
        Delete(key=place._replace(SK=layout.CANCEL)),
    ]


def _is_of(key: Key, incarnation: str | None) -> bool:
    """Return True unless a key says that it is of another incarnation."""
    found = layout.incarnation_in(key.SK)
    return found is None or found == incarnation

"""Deleting a task, a context, or all that an owner has, so that nothing of it comes back.

HEAD is fenced first: it gets another incarnation and an expiry in the past, in one step. From then
on no reader of any release finds the task, and no commit, renewal, cursor or request to cancel of a
process that has read it meets its condition. HEAD stays in the indexes until all else is deleted:
if a deletion stops in between, the next call finds the task and finishes it.

DynamoDB's time to live does not remove such a HEAD: it leaves alone what expired more than five
years ago.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from a2a_serverless.errors import ConditionFailedError, InvalidArgumentError, UnavailableError
from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import incarnation_of
from a2a_serverless.storage.table import (
    STORED,
    Check,
    Delete,
    Item,
    Key,
    Range,
    Update,
    are,
    beginning,
    key_of,
)
from a2a_serverless.storage.table_storage import TableStorage
from a2a_serverless.tasks.identity import check_context_id, is_task_id, new_incarnation

ITEMS_A_STEP: Final = 1000
"""Items that one step deletes, by default: a few seconds on DynamoDB."""

TASKS_A_COUNT: Final = 100
"""Tasks and contexts that one step counts, by default."""

AT_ONCE: Final = 8
"""Tasks that a step deletes, or counts, at the same time."""

DELETED: Final = 1
"""`expires_at` of a HEAD whose task is being deleted, in seconds since the epoch."""

FENCES: Final = 5
"""How often fencing a task is tried, if the task is replaced meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A step of counting: what the storage holds, as `delete_data` would delete it."""

    tasks: int
    """Tasks that exist."""
    contexts: int
    """Contexts with a state of their own."""
    webhooks: int
    remains: int
    """Tasks and states that are still stored but not found any more: expired, or half deleted."""
    after: str
    """The place behind which the next step goes on; empty: this was the last step."""

    def __add__(self, later: Counted) -> Counted:
        """Return what both steps have counted, and where the later one ended."""
        return Counted(
            tasks=self.tasks + later.tasks,
            contexts=self.contexts + later.contexts,
            webhooks=self.webhooks + later.webhooks,
            remains=self.remains + later.remains,
            after=later.after,
        )

    @property
    def is_nothing(self) -> bool:
        """Return True if nothing was found: no task, context, webhook or remains."""
        return not (self.tasks or self.contexts or self.webhooks or self.remains)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A step of deleting: what it has removed."""

    tasks: int = 0
    """Tasks that cannot be found since this step; a later one may delete the rest of them."""
    contexts: int = 0
    webhooks: int = 0
    is_done: bool
    """True if nothing was left to delete. Until then the caller repeats the step."""

    def __add__(self, later: Deleted) -> Deleted:
        """Return what both steps have deleted; done if the later one found nothing."""
        return Deleted(
            tasks=self.tasks + later.tasks,
            contexts=self.contexts + later.contexts,
            webhooks=self.webhooks + later.webhooks,
            is_done=later.is_done,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A stored task, or the stored state of a context; the other of the two ids is None."""

    task_id: str | None = None
    context_id: str | None = None
    is_live: bool
    at: str
    """Its place in the order in which it was found, opaque to callers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What a storage has deleted of one task."""

    items: int = 0
    webhooks: int = 0
    was_live: bool = False
    """True if the task existed until now."""
    context_id: str | None = None


def check_limit(limit: int) -> int:
    """Return the bound of a step; refuse one that would do nothing."""
    if limit < 1:
        raise InvalidArgumentError(f"A step takes at least 1 item, not {limit}.")
    return limit


class DeletedItems(TableStorage):
    """The part of `DurableStorage` that deletes."""

    async def delete_task(self, task_id: str) -> bool:
        """Delete a task and all that belongs to it; return True if it existed.

        A task that is worked on is deleted as well: its attempt cannot commit any more, and ends
        when it looks at its task again.
        """
        head = await self.head(task_id)
        if head is None:
            return False
        return (await self._erase(task_id, incarnation=head.incarnation)).was_live

    async def delete_context(self, context_id: str) -> int:
        """Delete a context's tasks and its stored state; return the number of tasks deleted.

        It takes as many steps as are needed. Versions of the state begin anew: a caller that has
        read the state before the deletion may replace a state that is stored after it.
        """
        deleted = await self.delete_data(context_id)
        while not deleted.is_done:
            deleted += await self.delete_data(context_id)
        return deleted.tasks

    async def delete_data(
        self, context_id: str | None = None, *, limit: int = ITEMS_A_STEP
    ) -> Deleted:
        """Delete a part of this scope's data, or of one of its contexts; call it until it is done.

        Tasks are deleted with their logs and webhooks, also those that run: see
        `delete_task`. A context's state is deleted when no deleted task can write it any more. If
        the whole scope is deleted, the stored counts of its lists are deleted last.

        A step deletes about `limit` items. If it stops halfway, the next call continues it, in any
        process; repeating a finished step is harmless. What is created meanwhile is deleted too:
        stop a caller that goes on sending first.

        Raises:
            InvalidArgumentError: no context id, or a limit below 1.
            UnavailableError: no answer within the retry budget; call it again.
        """
        stored = await self._of_this_step(context_id, limit, "")
        contexts = dict.fromkeys(p.context_id for p in stored if p.context_id is not None)
        items, tasks, webhooks = 0, 0, 0
        ids = [place.task_id for place in stored if place.task_id is not None]
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            share = max(1, (limit - items) // len(some))
            for erased in await asyncio.gather(*(self._erase(i, limit=share) for i in some)):
                items += erased.items
                tasks += erased.was_live
                webhooks += erased.webhooks
                if erased.context_id is not None and context_id in (None, erased.context_id):
                    contexts[erased.context_id] = None
            if items >= limit:
                break
        # After the tasks: none of them can write a state any more.
        states = sum([await self._delete_context_item(context) for context in contexts])
        # An index may still name what is gone: that is nothing to delete.
        is_done = items + states == 0
        if is_done and context_id is None:  # after the tasks: a list stores a new count
            is_done = await self._delete_counts(limit) == 0
        return Deleted(tasks=tasks, contexts=states, webhooks=webhooks, is_done=is_done)

    async def count_data(
        self, context_id: str | None = None, *, limit: int = TASKS_A_COUNT, after: str = ""
    ) -> Counted:
        """Count what `delete_data` would delete: the next `limit` tasks and contexts.

        `after` is the one that the step before returned; empty for the first step. A task that
        changes meanwhile may be counted twice.

        Raises:
            InvalidArgumentError, UnavailableError: as `delete_data`.
        """
        stored = await self._of_this_step(context_id, limit, after)
        webhooks = 0
        ids = [place.task_id for place in stored if place.task_id is not None]
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            webhooks += sum(await asyncio.gather(*map(self._webhooks, some)))
        live = [place for place in stored if place.is_live]
        return Counted(
            tasks=sum(place.task_id is not None for place in live),
            contexts=sum(place.context_id is not None for place in live),
            webhooks=webhooks,
            remains=len(stored) - len(live),
            after=stored[-1].at if len(stored) == limit else "",
        )

    async def _of_this_step(self, context_id: str | None, limit: int, after: str) -> list[Place]:
        if context_id is not None:
            check_context_id(context_id)
        return await self._places(context_id, check_limit(limit), after)

    async def _places(self, context_id: str | None, limit: int, after: str) -> list[Place]:
        """Return the first tasks and contexts' states of a context, or of the whole scope.

        They come from behind the place `after`, in an order that stays the same. Those that have
        expired or are half deleted are among them.
        """
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
        """Count the push configurations that are stored for a task."""
        counted = await self.table.count(beginning(self._partition(task_id), layout.PUSH))
        return counted.passed

    async def _delete_context_item(self, context_id: str) -> bool:
        """Forget a context's state; return True if there was one."""
        return await self.table.did(Delete(key=self._context_key(context_id), when=[STORED]))

    async def _delete_counts(self, limit: int) -> int:
        partition = layout.count_partition(self.scope.digest)
        counts = await self._first(limit, Range(partition=partition, only=_KEYS))
        await self.table.delete(map(key_of, counts))
        return len(counts)

    async def _erase(
        self, task_id: str, *, incarnation: str | None = None, limit: int | None = None
    ) -> Erased:
        """Delete a task, or its first `limit` items; from the first item on no reader finds it.

        With `incarnation` a later task with this id stays. `_places` finds what is left.
        """
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
                await self.table.write(_fence(item, fence))
            except ConditionFailedError:
                continue
            return item | {"incarnation": fence}, was_live
        msg = f"A task was replaced {FENCES} times while it was deleted; delete it again."
        raise UnavailableError(msg)

    async def _keys(self, partition: str, limit: int | None) -> list[Key]:
        """Return the keys of a task's first items, without HEAD."""
        keys: list[Key] = []
        page_size = None if limit is None else limit + 2
        async for page in self.table.query(Range(partition=partition, only=_KEYS, page=page_size)):
            keys += [key_of(k) for k in page if k["SK"] != layout.HEAD]
            if limit is not None and len(keys) >= limit:
                return keys[:limit]
        return keys

    def _context_key(self, context_id: str) -> Key:
        return Key(layout.context_partition(self.scope.digest, context_id), layout.CONTEXT)


_KEYS: Final = ("PK", "SK")


def _fence(head: Item, fence: str) -> Update:
    """Return the write after which a task is gone, if HEAD is the one that was read."""
    is_same = [STORED, Check("incarnation", "absent")]
    if "incarnation" in head:
        is_same = are(incarnation=head["incarnation"])
    values = {"incarnation": fence, "expires_at": DELETED}
    return Update(key=key_of(head), values=values, when=is_same)


def _is_of(key: Key, incarnation: str | None) -> bool:
    """Return True unless a key says that it is of another incarnation."""
    found = layout.incarnation_in(key.SK)
    return found is None or found == incarnation

"""Deleting a task, a context, or all that an owner has, so that nothing of it comes back.

HEAD is fenced first: it gets another incarnation and an expiry in the past, in one step. From then
on no reader of any release finds the task, and no commit, renewal, cursor or request to cancel of a
process that has read it meets its condition. HEAD stays in the indexes until all else is deleted:
if a deletion stops in between, the next call finds the task and finishes it.

DynamoDB's time to live does not remove such a HEAD: it leaves alone what expired more than five
years ago.

What is created meanwhile is held off by a barrier, an item that every creation looks at before and
after its write: see `DeletionJob`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from a2a_serverless import faults
from a2a_serverless.errors import ConditionFailedError, InvalidArgumentError, UnavailableError
from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import is_live
from a2a_serverless.storage.conversation import forget_queue, start_next_turn
from a2a_serverless.storage.durable import DeletionBarriers, DurableStorage
from a2a_serverless.storage.finding import stored
from a2a_serverless.storage.table import (
    STORED,
    Check,
    Delete,
    Item,
    Key,
    Put,
    Range,
    Update,
    are,
    beginning,
    key_of,
)
from a2a_serverless.tasks.blobs import Blob, BlobOwner
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import (
    PRINCIPAL_CHARS,
    Scope,
    check_context_id,
    first_task_id,
    is_task_id,
    new_incarnation,
    new_token,
)
from a2a_serverless.tasks.rules import is_last_look
from a2a_serverless.values import dataclass

ITEMS_A_STEP: Final = 1000
"""Items that one step deletes, by default: a few seconds on DynamoDB."""

TASKS_A_COUNT: Final = 100
"""Tasks and contexts that one step counts, by default."""

AT_ONCE: Final = 8
"""Tasks that a step deletes, or counts, at the same time."""

_DELETED: Final = 1
"""`expires_at` of a HEAD whose task is being deleted, in seconds since the epoch."""

_FENCES: Final = 5
"""How often fencing a task is tried, if the task is replaced meanwhile."""


_BARRIER_MS: Final = 600_000
"""How long a barrier stays up if its deletion is interrupted: longer than clocks may differ."""

_FORGOTTEN_S: Final = 86_400
"""How long a barrier is stored after that, for a creation that was held up before its write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What a step has counted, or deleted, and where the next step goes on."""

    tasks: int = 0
    """Tasks that exist; or that cannot be found since this step, which may leave a part of them."""
    contexts: int = 0
    """Contexts with a state of their own."""
    webhooks: int = 0
    uploads: int = 0
    """Files that were uploaded, whether a message has named them or not; in the last step."""
    remains: int = 0
    """Counted alone: tasks and states that no reader finds any more: expired, or half deleted."""
    items: int = 0
    """What else is counted: queues of conversations, also empty ones, and operators' acts on tasks.

    Of a deletion: the items of tasks, and those acts.
    """
    after: str | None = None
    """The place behind which the next step goes on, empty for the first; None: this was the last.

    A step of deleting begins at the first again.
    """

    def __add__(self, later: Amounts) -> Amounts:
        """Return what both steps have counted or deleted, and where the later one ended."""
        names = [field.name for field in fields(self) if field.name != "after"]
        sums = {name: getattr(self, name) + getattr(later, name) for name in names}
        return replace(later, **sums)

    @property
    def is_nothing(self) -> bool:
        """Return True if nothing at all was found."""
        return replace(self, after=None) == Amounts()

    @property
    def is_done(self) -> bool:
        """Return True if no step is left. Until then the caller repeats the step."""
        return self.after is None


async def delete_task(
    storage: DurableStorage, task_id: str, *, incarnation: str | None = None
) -> bool:
    """Delete a task and all that belongs to it; return True if it existed.

    With `incarnation` a later task with this id stays. A deletion that was interrupted is finished.

    A task that is worked on is deleted as well: its attempt cannot commit any more, and ends
    when it looks at its task again.
    """
    head = await storage.head(task_id)
    if head is None:
        await delete_remains(storage, task_id)
        return False
    if incarnation not in (None, head.incarnation):
        return False
    erased, _ = await _erase(storage, task_id, incarnation=head.incarnation)
    # The turns that stood behind it would otherwise wait for a sweep.
    if head.serial_from:
        await start_next_turn(storage, head.context_id)
    return erased.tasks > 0


async def delete_remains(storage: DurableStorage, task_id: str) -> bool:
    """Delete what is left of a task that no reader finds; return True if that was anything.

    An interrupted deletion has left it, or HEAD alone was removed by hand.
    """
    item = await _left_of(storage, task_id)
    if item is None:
        return False
    if item["SK"] != layout.HEAD:
        key = layout.head_key(storage.scope.digest, task_id)
        # Without a HEAD there is nothing to fence: one is stored that no reader finds.
        values = {"incarnation": new_incarnation(), "expires_at": _DELETED}
        item = {**key._asdict(), **values}
        if not await storage.table.did(Put(item=item, when=[Check("PK", "absent")])):
            return False  # a creation was at work
    erased, _ = await _erase(storage, task_id, incarnation=_incarnation_of(item))
    return erased.items > 0


async def has_remains(storage: DurableStorage, task_id: str) -> bool:
    """Return True if `delete_remains` would delete anything."""
    return await _left_of(storage, task_id) is not None


async def _left_of(storage: DurableStorage, task_id: str) -> Item | None:
    """Return an item of a task that no reader finds, HEAD if it is there; None: nothing is left."""
    if not is_task_id(task_id):
        return None
    key = layout.head_key(storage.scope.digest, task_id)
    head = await storage.table.get(key)
    if head is None:
        return next(iter(await storage.table.first(1, Range(partition=key.PK))), None)
    return head if head.get("expires_at") == _DELETED else None


async def delete_context(storage: DurableStorage, context_id: str) -> int:
    """Delete a context's tasks and its stored state; return the number of tasks deleted.

    It takes as many steps as are needed. Versions of the state begin anew: a caller that has
    read the state before the deletion may replace a state that is stored after it.
    """
    deleted = await delete_data(storage, context_id)
    while not deleted.is_done:
        deleted += await delete_data(storage, context_id)
    return deleted.tasks


async def delete_data(
    storage: DurableStorage, context_id: str | None = None, *, limit: int = ITEMS_A_STEP
) -> Amounts:
    """Delete a part of this scope's data, or of one of its contexts; call it until it is done.

    Tasks are deleted with their logs and webhooks, also those that run: see
    `delete_task`. A context's state is deleted when no deleted task can write it any more.

    The last step for a scope deletes its uploads, too. What is put by a link that is out still goes
    as an unused one does.

    A step deletes about `limit` items. If it stops halfway, the next call continues it, in any
    process; repeating a finished step is harmless. What the index does not show yet is left, and
    what is created meanwhile is deleted too: a `DeletionJob` waits for the one, and holds off the
    other.

    Raises:
        InvalidArgumentError: no context id, or a limit below 1.
        UnavailableError: no answer within the retry budget; call it again.
    """
    entries = [entry for _, entry in await _places(storage, context_id, limit, "")]
    contexts = dict.fromkeys(filter(None, map(layout.context_in, entries)))
    task_ids, total = _tasks_in(entries), Amounts()
    for start in range(0, len(task_ids), AT_ONCE):
        some = task_ids[start : start + AT_ONCE]
        share = max(1, (limit - total.items) // len(some))
        erasing = (_erase(storage, task_id, limit=share) for task_id in some)
        for erased, own_context in await asyncio.gather(*erasing):
            total += erased
            if own_context is not None and context_id in (None, own_context):
                contexts[own_context] = None
        if total.items >= limit:
            break
    acts = [key_of(entry) for entry in entries if entry["PK"] == layout.JOURNAL]
    await storage.table.delete(acts)
    # After the tasks: none of them can write a state any more.
    states = 0
    for context in contexts:
        states += await storage.contexts.delete(context)
        await forget_queue(storage, context)
    # An index may still name what is gone: that is nothing to delete.
    total = replace(total, contexts=states, items=total.items + len(acts))
    if not total.is_nothing:
        return replace(total, after="")
    if context_id is None and storage.table.blobs is not None:
        uploads = await storage.table.blobs.delete(BlobOwner.uploads(storage.scope.digest))
        total = replace(total, uploads=uploads)
    return total


async def count_data(
    storage: DurableStorage,
    context_id: str | None = None,
    *,
    limit: int = TASKS_A_COUNT,
    after: str = "",
) -> Amounts:
    """Count what `delete_data` would delete: the next `limit` tasks and contexts.

    `after` is the one that the step before returned; empty for the first step. A task that
    changes meanwhile may be counted twice.

    Raises:
        InvalidArgumentError, UnavailableError: as `delete_data`.
    """
    found = await _places(storage, context_id, limit, after)
    webhooks, scope, now_ms = 0, storage.scope.digest, storage.clock.now_ms()
    entries = [entry for _, entry in found]
    task_ids = _tasks_in(entries)
    for start in range(0, len(task_ids), AT_ONCE):
        some = task_ids[start : start + AT_ONCE]
        pushes = [beginning(layout.task_partition(scope, one), layout.PUSH) for one in some]
        webhooks += sum(await asyncio.gather(*map(storage.table.count, pushes)))
    states = sum(entry["SK"] == layout.CONTEXT for entry in entries)
    live = Counter(entry["SK"] for entry in entries if is_live(entry, now_ms))
    tasks, contexts = live[layout.HEAD], live[layout.CONTEXT]
    is_last = len(found) < limit
    has_uploads = is_last and context_id is None
    return Amounts(
        tasks=tasks,
        contexts=contexts,
        webhooks=webhooks,
        remains=len(task_ids) + states - tasks - contexts,
        items=len(entries) - len(task_ids) - states,
        uploads=len([blob async for blob in uploaded(storage)]) if has_uploads else 0,
        after=None if is_last else found[-1][0],
    )


async def uploaded(storage: DurableStorage) -> AsyncIterator[Blob]:
    """Yield the files that the scope's clients have uploaded."""
    if storage.table.blobs is not None:
        async for blob in storage.table.blobs.uploads(storage.scope.digest):
            yield blob


async def stored_in(
    storage: DurableStorage, context_id: str | None = None
) -> AsyncIterator[dict[str, str]]:
    """Yield the `task_id` of each task, or the `context_id` of each state, that the index shows.

    Expired ones are among them. What changes meanwhile may come twice.
    """
    after = ""
    while True:
        found = await _places(storage, context_id, TASKS_A_COUNT, after)
        for _, entry in found:
            if entry["SK"] == layout.HEAD:
                yield {"task_id": layout.owner_of(entry["PK"])[1]}
            elif (context := layout.context_in(entry)) is not None:
                yield {"context_id": context}
        if len(found) < TASKS_A_COUNT:
            return
        after = found[-1][0]


async def _places(
    storage: DurableStorage, context_id: str | None, limit: int, after: str
) -> list[tuple[str, Item]]:
    """Return the first tasks, states, lines and acts of a context, or of the whole scope.

    Each is its place and its entry in the index. They come from behind the place `after`, in an
    order that stays the same. Those that have expired or are half deleted are among them.
    """
    if limit < 1:
        raise InvalidArgumentError(f"A step takes at least 1 item, not {limit}.")
    if context_id is None:
        return await _places_in_scope(storage, limit, after)
    if after == layout.CONTEXT:  # the last place of a context
        return []
    context = layout.context_key(storage.scope.digest, check_context_id(context_id))
    found = await _entries(storage, layout.BY_CONTEXT, context, limit, after)
    places = [(entry["status_key"], entry) for entry in found]
    if len(places) < limit:
        # The index has no states; and it lags behind, so that the first task may be missing.
        state = layout.context_item(storage.scope.digest, context_id)
        first = first_task_id(storage.scope, context_id)
        head = layout.head_key(storage.scope.digest, first)
        for item in stored(await storage.table.load([head, state])):
            if key_of(item) == state:
                named = layout.context_owner(storage.scope.digest, context_id)
                places.append((layout.CONTEXT, item | named))
            elif item.get("context_id") == context_id:
                places.append((layout.CONTEXT, item))
    return places


def _tasks_in(entries: list[Item]) -> list[str]:
    return [layout.owner_of(entry["PK"])[1] for entry in entries if entry["SK"] == layout.HEAD]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose data is meant: that of a `Scope.principal`, of a scope, or of one context of them."""

    name: str
    context_id: str | None = None

    @property
    def barrier(self) -> str:
        """Return the name of the barrier: one of those that `layout.owners_of` has of its tasks."""
        if self.context_id is None:
            return self.name
        return layout.context_key(self.name, check_context_id(self.context_id))

    async def scopes(self, storage: DurableStorage) -> list[Scope]:
        """Return the scopes of the owner: of a principal those with a task, a state or an upload.

        The index shows them by now, or the store of files does.
        """
        is_principal = len(self.name) == PRINCIPAL_CHARS
        return await _scopes_of(storage, self.name) if is_principal else [Scope(self.name)]


class DeletionJob:
    """A deletion after which nothing is left that was created before its end, index lag or not.

    A barrier is put up first: creations refuse what is behind it, and take back what they have
    stored unless they had read that there is no barrier, which is `DeletionBarriers.KEPT_MS` ago at
    most. What was stored by then is in the index after `lag_s`. The step that begins after both,
    and finds nothing, is the last one. Any number of deletions may go on at once; each has its own
    barrier, and one that is interrupted is continued by another.

    Args:
        storage: the storage, in any scope.
        owner: whose data is deleted.
        lag_s: the seconds after which the index shows a write; by default the table's.
    """

    def __init__(
        self, storage: DurableStorage, owner: Owner, *, lag_s: float | None = None
    ) -> None:
        self._storage = storage
        self._owner = owner
        lag_s = storage.table.lag_s if lag_s is None else lag_s
        self._settles_ms = DeletionBarriers.KEPT_MS + int(lag_s * 1000)
        self._barrier = layout.barrier_item(owner.barrier, new_token())
        self._until = 0
        self._since = 0
        self._scopes: dict[Scope, None] = {}
        self.is_empty = False
        """True if the last step has found nothing."""

    @property
    def pause_s(self) -> float:
        """Return the seconds until a step may be the last one."""
        return max(0, self._since + self._settles_ms - self._storage.clock.now_ms()) / 1000

    async def step(self, *, limit: int = ITEMS_A_STEP) -> Amounts:
        """Delete a part, as `delete_data`; done when nothing is left and nothing can come any more.

        The last step takes the barrier down, and scrubs the table's own files.

        Raises:
            UnavailableError: no answer within the retry budget, or another process reads what was
                deleted in the files of an embedded table; call it again.
        """
        clock, total, is_empty = self._storage.clock, Amounts(), True
        # First: whatever the look below does not see yet is created behind a barrier that stands.
        await self._renew()
        began = clock.now_ms()
        # A tenant that is empty now stays among them: counts, and what comes late.
        self._scopes |= dict.fromkeys(await self._owner.scopes(self._storage))
        for scope in self._scopes:
            step = await delete_data(
                self._storage.for_scope(scope), self._owner.context_id, limit=limit
            )
            total, is_empty = total + step, is_empty and step.is_done
            if clock.now_ms() >= self._until - _BARRIER_MS // 2:  # there may be many tenants
                await self._renew()
        self.is_empty, now_ms = is_empty, clock.now_ms()
        is_last = self.is_empty and is_last_look(
            began=began,
            ended=now_ms,
            since=self._since,
            until=self._until,
            settles_ms=self._settles_ms,
        )
        if is_last:
            # It still stands for what was created before: its creator looks at it after the write.
            await self._put_up(now_ms)
            await self._storage.table.scrub()
        return replace(total, after=None if is_last else "")

    async def _renew(self) -> None:
        until, clock = self._until, self._storage.clock
        await self._put_up(clock.now_ms() + _BARRIER_MS)
        # Read after the write: the barrier stands since then at the latest.
        now_ms = clock.now_ms()
        if now_ms >= until:  # it is new, or had lapsed
            self._since = now_ms

    async def _put_up(self, until: int) -> None:
        """Let the barrier count for what is created before `until`."""
        # It is stored for longer than it counts: a creation that was held up still finds it.
        values = {"until": until, "expires_at": until // 1000 + _FORGOTTEN_S}
        await self._storage.table.write(Update(key=self._barrier, values=values))
        self._until = until


async def delete_behind_barrier(storage: DurableStorage, head: Head) -> None:
    """Delete a task that was stored behind a barrier, with the queue of its context."""
    await _erase(storage, head.task_id, incarnation=head.incarnation)
    await forget_queue(storage, head.context_id)


async def _scopes_of(storage: DurableStorage, principal: str) -> list[Scope]:
    """Return the scopes in which a principal (`Scope.principal`) has anything, one a tenant.

    The index lags behind: tasks and states that were written a moment ago may be missing.
    """
    blobs = storage.table.blobs
    tenants = (
        {scope[PRINCIPAL_CHARS:] for scope in await blobs.scopes(principal)} if blobs else set()
    )
    for shard in range(layout.SHARDS):
        wanted = Range(partition=layout.scope_key(principal, shard), index=layout.BY_SCOPE)
        while found := await storage.table.first(1, wanted):
            tenant = found[0]["status_key"].partition("#")[0]
            tenants.add(tenant)
            wanted = replace(wanted, first=layout.whole_scope(principal + tenant)[1])
    return [Scope(principal + tenant) for tenant in sorted(tenants)]


async def _places_in_scope(
    storage: DurableStorage, limit: int, after: str
) -> list[tuple[str, Item]]:
    """Return what the index by scope has, shard by shard; `after` is `<shard>:<status_key>`."""
    first, _, behind = after.partition(":")
    start, end = layout.whole_scope(storage.scope.digest)
    places: list[tuple[str, Item]] = []
    for shard in range(int(first or 0), layout.SHARDS):
        key = layout.scope_key(storage.scope.digest, shard)
        room = limit - len(places)
        found = await _entries(storage, layout.BY_SCOPE, key, room, behind or start, end)
        places += [(f"{shard}:{entry['status_key']}", entry) for entry in found]
        behind = ""
        if len(places) >= limit:
            break
    return places


async def _entries(
    storage: DurableStorage,
    index: str,
    value: str,
    limit: int,
    behind: str,
    last: str | None = None,
) -> list[Item]:
    """Return the first `limit` entries of an index's partition, also of what has expired."""
    sort = layout.INDEXES[index].sort
    wanted = Range(partition=value, index=index, first=behind or None, last=last)
    return await storage.table.first(limit, wanted, lambda entry: entry[sort] != behind)


async def _erase(
    storage: DurableStorage,
    task_id: str,
    *,
    incarnation: str | None = None,
    limit: int | None = None,
) -> tuple[Amounts, str | None]:
    """Delete a task, or its first `limit` items; from the first item on no reader finds it.

    It returns what it has deleted, and the context of the task; None where no HEAD names one.
    With `incarnation` a later task with this id stays. `_places` finds what is left.
    """
    if not is_task_id(task_id):
        return Amounts(), None
    partition = layout.task_partition(storage.scope.digest, task_id)
    head, was_live = await _fenced(storage, partition, incarnation)
    if head is None:
        return Amounts(), None
    fence = head["incarnation"]
    keys = await _keys(storage, partition, limit)
    is_whole = limit is None or len(keys) < limit
    # After the keys: each of them is of this incarnation, or of none that lives.
    now = await _settled(storage, partition, fence)
    is_own = now is not None and now.get("incarnation") == fence
    if storage.table.blobs is not None:  # before the items: a deletion that is resumed finds them
        named = dict.fromkeys(layout.incarnation_in(key.SK) for key in keys)
        for name in named:
            if name not in (None, _incarnation_of(now)):
                owner = BlobOwner(storage.scope.digest, task_id, str(name))
                await storage.table.blobs.delete(owner)
                faults.point("blobs-deleted")
    # A creation may have taken the id since: what is of its incarnation stays.
    doomed = keys if is_own else [k for k in keys if not _is_of(k, _incarnation_of(now))]
    await storage.table.delete(doomed)
    faults.point("items-deleted")
    # HEAD last: by its entries in the indexes an interrupted deletion is found and resumed. Only
    # the one that was fenced: a creation may have taken its place.
    if is_whole and is_own:
        own = Delete(key=Key(partition, layout.HEAD), when=are(incarnation=fence))
        await storage.table.did(own)
    context_id = head.get("context_id")
    erased = Amounts(
        tasks=int(was_live),
        webhooks=sum(key.SK.startswith(layout.PUSH) for key in doomed),
        items=len(doomed) + 1,
    )
    return erased, context_id if isinstance(context_id, str) else None


async def _fenced(
    storage: DurableStorage, partition: str, incarnation: str | None
) -> tuple[Item | None, bool]:
    """Fence HEAD; return it as it is then, and whether its task existed until now.

    None when there is no HEAD, or not one of `incarnation`.
    """
    fence = new_incarnation()
    was_live = False
    for _ in range(_FENCES):
        item = await storage.table.get(Key(partition, layout.HEAD))
        if item is not None and item.get("incarnation") == fence:
            return item, was_live  # an earlier request, whose answer was lost
        if item is None or incarnation not in (None, _incarnation_of(item)):
            return None, False
        if item.get("expires_at") == _DELETED and "incarnation" in item:
            return item, False
        was_live = is_live(item, storage.clock.now_ms())
        try:
            await storage.table.write(_fence(item, fence))
        except ConditionFailedError:
            # A commit or a creation came in between: fenced with the next try, if it is to be.
            continue
        return item | {"incarnation": fence}, was_live
    msg = f"A task was replaced {_FENCES} times while it was deleted; delete it again."
    raise UnavailableError(msg)


async def _settled(storage: DurableStorage, partition: str, fence: str) -> Item | None:
    """Return HEAD once no creation is at work on it of which a Query may have seen a part.

    A read may still find the HEAD before that creation; a write has to wait for its end.
    """
    same = {"incarnation": fence}
    own = Update(key=Key(partition, layout.HEAD), values=same, when=are(**same))
    try:
        await storage.table.write(own)
    except ConditionFailedError as failed:
        return failed.items[0]
    return same


async def _keys(storage: DurableStorage, partition: str, limit: int | None) -> list[Key]:
    """Return the keys of a task's first items, without HEAD."""
    keys: list[Key] = []
    page_size = None if limit is None else limit + 2
    async for page in storage.table.query(Range(partition=partition, only=_KEYS, page=page_size)):
        keys += [key_of(k) for k in page if k["SK"] != layout.HEAD]
        if limit is not None and len(keys) >= limit:
            return keys[:limit]
    return keys


_KEYS: Final = ("PK", "SK")


def _fence(head: Item, fence: str) -> Update:
    """Return the write after which a task is gone, if HEAD is the one that was read."""
    is_same = [STORED, Check("incarnation", "absent")]
    # A damaged HEAD may have none, and is deleted as well.
    if "incarnation" in head:
        is_same = are(incarnation=head["incarnation"])
    values = {"incarnation": fence, "expires_at": _DELETED}
    return Update(key=key_of(head), values=values, when=is_same)


def _is_of(key: Key, incarnation: str | None) -> bool:
    """Return True unless a key says that it is of another incarnation."""
    found = layout.incarnation_in(key.SK)
    return found is None or found == incarnation


def _incarnation_of(item: Mapping[str, Any] | None) -> str | None:
    """Return the incarnation that an item names; None if it names none, or there is no item."""
    incarnation = None if item is None else item.get("incarnation")
    return incarnation if isinstance(incarnation, str) else None

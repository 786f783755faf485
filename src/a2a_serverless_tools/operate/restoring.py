"""Puts one task back as a table that was restored beside its own has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from a2a_serverless.errors import (
    ConditionFailedError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a_serverless.storage import layout
from a2a_serverless.storage.deletion import delete_behind_barrier
from a2a_serverless.storage.durable import DeletionBarriers, DurableStorage
from a2a_serverless.storage.table import NEW, Item, Key, Put, Range, key_of
from a2a_serverless.storage.webhooks import push_item
from a2a_serverless.tasks.blobs import BlobOwner, blob_at, blob_of
from a2a_serverless.tasks.entries import Recorded, content_of, parts_of
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import plain_state
from a2a_serverless.tasks.push import PushEvents, owed_events, pushed
from a2a_serverless.tasks.rules import is_behind
from a2a_serverless_tools.operate.wording import iso

_AT_ONCE: Final = 10
"""Items of one transaction: an item has at most 400 KB, and a transaction 4 MB."""
_THERE: Final = (
    "The table has a task with this id, or what a deletion has left of one, and nothing is put"
    " over it. `a2a-serverless task` shows the one, `a2a-serverless tasks delete` ends the other."
)
_ERASED: Final = (
    "It stays deleted: all that its caller had, or its context, is being deleted, or was in the"
    " last day."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """A task of a table restored beside that may be put back, as it was when it was looked at."""

    source: DurableStorage
    target: DurableStorage
    log: Log
    items: Mapping[Key, Item]
    """Those that its own table lacks."""
    note: str
    """What else a person has to know, as sentences with a space before each."""

    @classmethod
    async def of(cls, source: DurableStorage, target: DurableStorage, task_id: str) -> Restoration:
        """Look at a task in both tables, both in its scope; change nothing.

        Raises:
            TaskNotFoundError: the table beside has no such task, or it has expired since.
            UnreadableTaskError: it is damaged there, or of an earlier release.
            UnsupportedOperationError: its own table has the id, or all of its caller is deleted.
        """
        log = await source.read(task_id)
        if log is None:
            raise TaskNotFoundError
        partition = layout.task_partition(log.head.scope, task_id)
        own = (None, log.head.incarnation)
        found = await source.table.all(Range(partition=partition))
        items = {key_of(it): it for it in found if layout.incarnation_in(it["SK"]) in own}
        names = Range(partition=partition, only=Key._fields)
        held = set(map(key_of, await target.table.all(names)))
        # Without HEAD they are of a restoration that was cut off, and never change.
        if not held <= items.keys() or Key(partition, layout.HEAD) in held:
            raise UnsupportedOperationError(_THERE)
        await _check_barriers(target, log)
        note = " The sweeper goes on with its open turn." if log.head.turn.is_open else ""
        return cls(
            source=source,
            target=target,
            log=log,
            items={key: item for key, item in items.items() if key not in held},
            note=note + await _missing(target, log),
        )

    async def put(self, which: PushEvents) -> str:
        """Put it back, so that readers find all of it or nothing; return what was done.

        `which` are the events that are pushed: a webhook that is owed one is due.

        Raises:
            UnsupportedOperationError: its own table has the id since, or all of its caller is
                deleted.
        """
        target, head = self.target, self.log.head
        last = await self._last(which)
        rest = [item for key, item in self.items.items() if key not in last]
        # No reader finds them before HEAD. What has such a key is written once, and the same here.
        for start in range(0, len(rest), _AT_ONCE):
            await target.table.write(*(Put(item=it) for it in rest[start : start + _AT_ONCE]))
        try:
            await target.table.write(*(Put(item=item, when=[NEW]) for item in last.values()))
        except ConditionFailedError as error:
            raise UnsupportedOperationError(_THERE) from error
        try:  # again: what a deletion does not see is stored after its barrier
            await _check_barriers(target, self.log)
        except UnsupportedOperationError:
            await delete_behind_barrier(target, head)
            raise
        since = f"{plain_state(head.state)} since {iso(head.status_at)}"
        return f"It is back, {since}.{self.note}"

    async def _last(self, which: PushEvents) -> Mapping[Key, Item]:
        """Return HEAD and its webhooks, which change: they are put together, and once."""
        head, now_ms = self.log.head, self.target.clock.now_ms()
        last = {
            key: item
            for key, item in self.items.items()
            if key.SK == layout.HEAD or key.SK.startswith(layout.PUSH)
        }
        events = list(pushed(head.task_id, head.context_id, self.log.records, which))
        for push in await self.source.webhooks.all(head.task_id):
            waits = push.due_at is not None or push.is_given_up
            if not waits and any(owed_events(push, head, events)):
                # Its job was on the queue, which has no past.
                item = push_item(push.woken(now_ms))
                last[key_of(item)] = item
        return last


async def _check_barriers(target: DurableStorage, log: Log) -> None:
    """Refuse a task that the deletion of all that its owner has took with it."""
    head = log.head
    barriers = DeletionBarriers(target.table, target.clock)
    if is_behind(head.created_at, await barriers.until(head.scope, head.context_id)):
        raise UnsupportedOperationError(_ERASED)


async def _missing(target: DurableStorage, log: Log) -> str:
    """Return how many files of a task are gone from the store of its own table; empty: none."""
    owner = BlobOwner(log.head.scope, log.head.task_id, log.head.incarnation)
    entries = [entry for record in log.records for entry in record.entries]
    named = {blob_of(part) for entry in entries for part in parts_of(content_of(entry))}
    named |= {
        blob_at(entry.value.decode(errors="replace"), owner)
        for entry in entries
        if isinstance(entry, Recorded) and entry.is_offloaded
    }
    wanted, stored, blobs = {blob.key for blob in named if blob}, set[str](), target.table.blobs
    while wanted and blobs is not None:
        page = await blobs.keys(owner.prefix, max(stored, default=""))
        if not page:
            break
        stored.update(page)
    if not (gone := len(wanted - stored)):
        return ""
    return f" Files that are gone: {gone} of {len(wanted)}; readers get a sentence in their place."

"""The push configurations of one scope on the table: items beside HEAD, each with its cursor.

A configuration is put in one transaction with HEAD, which notes the version that it has at this
moment (`push_at`). That version is the new configuration's cursor: so each commit is either before
the cursor, or the reader that it wakes finds the configuration. The put demands no version, so that
commits neither hold up the put nor are held up by it, however fast they follow one another.

HEAD counts these puts (`push_writes`), and each put demands the count that it has read. So of many
puts at once each sees those before it, which keeps a task to `MAX_CONFIGS`. And `push_at` is the
cursor of at most one item, that of the last put, until a reader has copied it to the item. Every
read does so before it returns. Commits do not look at any of this and do not pay for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from a2a.types import TaskPushNotificationConfig

from a2a_serverless.clock import pause_s
from a2a_serverless.errors import (
    ConditionFailedError,
    TaskNotFoundError,
    UnavailableError,
    UnreadablePushError,
)
from a2a_serverless.storage import layout
from a2a_serverless.storage.push_items import (
    PUSH_DEFAULTS,
    awaits_cursor,
    push_names,
    push_of,
    push_outcome,
    push_position,
    push_put,
    push_writes,
)
from a2a_serverless.storage.table import (
    Added,
    Check,
    CopyOf,
    Item,
    Key,
    Range,
    Update,
    are,
    beginning,
    key_of,
)
from a2a_serverless.storage.table_storage import TableStorage
from a2a_serverless.tasks.events import LAST
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import is_task_id, new_token
from a2a_serverless.tasks.push import Push, check_room, is_config_id, tallied
from a2a_serverless.tasks.rules import check_writable

logger = logging.getLogger(__name__)

PUTS: Final = 40
"""How often a put that loses to others is tried; of puts at the same time one always succeeds."""

READS: Final = 10
"""How often a read goes on when HEAD and a new configuration do not fit together yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A task's HEAD and its configurations by id; `writes` counts the changes of this set."""

    head: Head
    writes: int
    pushes: tuple[Push, ...]
    unreadable: Mapping[str, UnreadablePushError]
    """The configurations that cannot be read: the reasons by their ids."""

    @property
    def ids(self) -> list[str]:
        return [*(push.config.id for push in self.pushes), *self.unreadable]

    def push(self, config_id: str) -> Push | None:
        """Return one configuration.

        Raises:
            UnreadablePushError: it is damaged.
        """
        if (error := self.unreadable.get(config_id)) is not None:
            raise error
        return next((push for push in self.pushes if push.config.id == config_id), None)


class PushItems(TableStorage):
    """The part of `DurableStorage` that keeps push configurations."""

    async def pushes(self, task_id: str) -> list[Push]:
        """Return the configurations of the task as it is now, by id; none if there is no task.

        A damaged configuration is left out, and a line of the log names it.
        """
        held = await self._held(task_id)
        if held is None:
            return []
        for config_id, error in held.unreadable.items():
            fields = {"action": "unreadable_push", "task_id": task_id, "config_id": config_id}
            logger.error("Left out: %s", error, extra=fields)
        return list(held.pushes)

    async def push(self, task_id: str, config_id: str) -> Push | None:
        held = await self._held(task_id)
        return held.push(config_id) if held else None

    async def _held(self, task_id: str) -> Held | None:
        """Return a task's configurations; None when it does not exist or has expired.

        If one waits for its cursor in every read while HEAD stays the same, its cursor is lost.
        """
        waiting: set[tuple[int, tuple[str, ...]]] = set()
        if not is_task_id(task_id):
            return None
        for attempt in range(1, READS + 1):
            item, found = await self._read_pushes(task_id)
            head = self._live(item)
            if item is None or head is None:
                return None
            own = [one for one in found if push_names(one)[0] == head.incarnation]
            new = [one for one in own if awaits_cursor(one, item)]
            if not new or (len(new) == 1 and await self._give_cursor(item, new[0])):
                return _held_of(head, push_writes(item), own)
            waiting.add((push_writes(item), tuple(str(one["push_write"]) for one in new)))
            if attempt == READS and len(waiting) == 1:
                return _held_of(head, push_writes(item), own)
            await self.clock.sleep(pause_s(attempt))
        msg = f"The push configurations of task {task_id} did not settle in {READS} reads."
        raise UnavailableError(msg)

    async def _put_push(self, config: TaskPushNotificationConfig) -> Push:
        """Do `put_push` for a checked and complete configuration that the storage may keep."""
        for _ in range(PUTS):
            held = await self._held(config.task_id)
            if held is None:
                raise TaskNotFoundError
            check_writable(held.head)
            check_room(held.ids, config.id)
            new = Push(
                scope=held.head.scope,
                incarnation=held.head.incarnation,
                config=config,
                version=held.head.version,
            )
            put = push_put(new, held.head, write=held.writes + 1)
            try:
                await self.table.write(_noted(held), put)
            except ConditionFailedError:
                continue
            after = await self._held(config.task_id)
            stored = after.push(config.id) if after else None
            return stored or new  # not stored: it was deleted since
        msg = f"Others put push configurations to task {config.task_id}, {PUTS} times."
        raise UnavailableError(msg)

    async def move_push(self, before: Push, after: Push) -> bool:
        """Store the cursor and the failures of `after` if the stored ones are still `before`'s.

        False when the configuration is gone or was moved by another caller. The configuration
        itself is not written. A move that was stored although its answer was lost counts as done.
        """
        move = new_token()
        seen, wanted = push_position(before), push_position(after) | push_outcome(after)
        update = Update(
            key=self._push_key(before),
            values=wanted | {"move": move},
            when=[
                *(_as_seen(*one) for one in seen.items()),
                [Check("expires_at", "absent"), Check("expires_at", ">", self._now_s())],
            ],
        )
        if await self.table.did(update):
            return True
        # Its own mark says that an earlier, unanswered request of this move was applied.
        stored = await self.table.get(update.key)
        return stored is not None and stored.get("move") == move

    async def delete_push(self, task_id: str, config_id: str) -> None:
        """Forget a configuration, also a damaged one. Idempotent.

        A request to the webhook that has begun may still end. A configuration can also be deleted
        from a task that only a newer release may write, because neither HEAD nor the log changes:
        so the client can always stop its webhook.
        """
        head = await self.head(task_id)
        if head is not None and is_config_id(config_id):
            sort = layout.push_sort(head.incarnation, config_id)
            await self.table.delete([Key(self._partition(task_id), sort)])

    async def _read_pushes(self, task_id: str) -> tuple[Item | None, list[Item]]:
        """Return HEAD and all configurations that are stored, by one Query."""
        wanted = Range(partition=self._partition(task_id), first=layout.HEAD, last=layout.PUSH_END)
        found = await self._all(wanted)
        if not found or found[0]["SK"] != layout.HEAD:
            return None, []
        return found[0], found[1:]

    async def _surveyed_pushes(self, head: Head) -> list[Push]:
        """Return the configurations that can be read, as they are stored; write nothing.

        One that waits for its cursor is shown as if none of its events was delivered.
        """
        own = layout.push_sort(head.incarnation, "")
        found = await self._all(beginning(self._partition(head.task_id), own))
        return list(_held_of(head, 0, [{"version": 0} | item for item in found]).pushes)

    async def _give_cursor(self, head: Item, new: Item) -> bool:
        """Copy the cursor that HEAD has noted to its configuration, on the table and in `new`.

        False when the note is for another configuration, or the copy is refused: HEAD and `new`
        were not read as of one moment.
        """
        if push_writes(head) != new["push_write"]:
            return False
        cursor = {"version": head["push_at"], "index": LAST}
        is_without = [*are(push_write=new["push_write"]), Check("version", "absent")]
        is_given = await self.table.did(Update(key=key_of(new), values=cursor, when=is_without))
        if is_given:
            new |= cursor
        return is_given

    def _push_key(self, push: Push) -> Key:
        return Key(
            self._partition(push.config.task_id), layout.push_sort(push.incarnation, push.config.id)
        )


def _held_of(head: Head, writes: int, own: Iterable[Item]) -> Held:
    """Return the configurations in a task's items `own`, apart from those that cannot be read."""
    pushes: list[Push] = []
    unreadable: dict[str, UnreadablePushError] = {}
    for item in own:
        try:
            pushes.append(push_of(item))
        except UnreadablePushError as error:
            _, config_id = push_names(item)
            unreadable[config_id] = error
    return Held(head=head, writes=writes, pushes=tuple(tallied(pushes)), unreadable=unreadable)


def _as_seen(name: str, value: Any) -> list[Check]:
    """Return the condition that an attribute has the value that was read, or its default."""
    same = Check(name, "=", value)
    if name not in PUSH_DEFAULTS or value != PUSH_DEFAULTS[name]:
        return [same]
    return [same, Check(name, "absent")]


def counted(update: Update, held: Held) -> Update:
    """Return a conditional update of HEAD that also counts a change of `held`."""
    is_first = held.writes == 0
    same = Check("push_writes", "absent") if is_first else Check("push_writes", "=", held.writes)
    values = {**update.values, "push_writes": Added(1)}
    return replace(update, values=values, when=[*update.when, same])


def _noted(held: Held) -> Update:
    """Return HEAD's part of a put: the version that HEAD has becomes the cursor."""
    head = held.head
    update = Update(
        key=Key(layout.task_partition(head.scope, head.task_id), layout.HEAD),
        values={"push_at": CopyOf("version")},
        when=are(incarnation=head.incarnation),
    )
    return counted(update, held)

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
from dataclasses import dataclass
from typing import Any, Final

from a2a.types import TaskPushNotificationConfig

from a2a_serverless import aws
from a2a_serverless.aws import ConditionFailedError
from a2a_serverless.errors import TaskNotFoundError, UnavailableError, UnreadablePushError
from a2a_serverless.storage import dynamodb_layout as layout
from a2a_serverless.storage.dynamodb_attributes import Item, attribute
from a2a_serverless.storage.dynamodb_layout import key
from a2a_serverless.storage.dynamodb_push_items import (
    PUSH_DEFAULTS,
    awaits_cursor,
    push_names,
    push_of,
    push_outcome,
    push_position,
    push_put,
    push_writes,
)
from a2a_serverless.storage.dynamodb_table import TableStorage
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
    """The part of `DynamoStorage` that keeps push configurations."""

    async def pushes(self, task_id: str) -> list[Push]:
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
            await self.clock.sleep(aws.pause_s(attempt))
        msg = f"The push configurations of task {task_id} did not settle in {READS} reads."
        raise UnavailableError(msg)

    async def _put_push(self, config: TaskPushNotificationConfig) -> Push:
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
                await self._table.transact([{"Update": _noted(held)}, {"Update": put}])
            except ConditionFailedError:
                continue
            after = await self._held(config.task_id)
            stored = after.push(config.id) if after else None
            return stored or new  # not stored: it was deleted since
        msg = f"Others put push configurations to task {config.task_id}, {PUTS} times."
        raise UnavailableError(msg)

    async def move_push(self, before: Push, after: Push) -> bool:
        move = attribute(new_token())
        seen, wanted = push_position(before), push_position(after) | push_outcome(after)
        names = [*wanted, "move"]
        item_key = self._push_key(before)
        if await self._table.update(
            Key=item_key,
            UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in names),
            ConditionExpression=" AND ".join(_is_as_seen(*one) for one in seen.items())
            + " AND (attribute_not_exists(expires_at) OR expires_at > :now)",
            ExpressionAttributeNames={f"#{name}": name for name in names},
            ExpressionAttributeValues={f":{name}": value for name, value in wanted.items()}
            | {f":seen_{name}": value for name, value in seen.items()}
            | {":move": move, ":now": attribute(self._now_s())},
        ):
            return True
        # Its own mark says that an earlier, unanswered request of this move was applied.
        stored = await self._table.get(item_key)
        return stored is not None and stored.get("move") == move

    async def delete_push(self, task_id: str, config_id: str) -> None:
        head = await self.head(task_id)
        if head is not None and is_config_id(config_id):
            sort = layout.push_sort(head.incarnation, config_id)
            await self._table.delete([key(self._partition(task_id), sort)])

    async def _read_pushes(self, task_id: str) -> tuple[Item | None, list[Item]]:
        """Return HEAD and all configurations that are stored, by one Query."""
        found: list[Item] = []
        async for page in self._table.query(
            ConsistentRead=True,
            KeyConditionExpression="PK = :pk AND SK BETWEEN :head AND :end",
            ExpressionAttributeValues={
                ":pk": attribute(self._partition(task_id)),
                ":head": attribute(layout.HEAD),
                ":end": attribute(layout.PUSH_END),
            },
        ):
            found += page
        if not found or found[0]["SK"]["S"] != layout.HEAD:
            return None, []
        return found[0], found[1:]

    async def _surveyed_pushes(self, head: Head) -> list[Push]:
        """Return the configurations that can be read, as they are stored; write nothing.

        One that waits for its cursor is shown as if none of its events was delivered.
        """
        found: list[Item] = []
        async for page in self._table.query(
            ConsistentRead=True,
            KeyConditionExpression="PK = :pk AND begins_with(SK, :push)",
            ExpressionAttributeValues={
                ":pk": attribute(self._partition(head.task_id)),
                ":push": attribute(layout.push_sort(head.incarnation, "")),
            },
        ):
            found += page
        no_cursor = {"version": attribute(0)}
        return list(_held_of(head, 0, [no_cursor | item for item in found]).pushes)

    async def _give_cursor(self, head: Item, new: Item) -> bool:
        """Copy the cursor that HEAD has noted to its configuration, on the table and in `new`.

        False when the note is for another configuration, or the copy is refused: HEAD and `new`
        were not read as of one moment.
        """
        if push_writes(head) != int(new["push_write"]["N"]):
            return False
        cursor = {"version": head["push_at"], "index": attribute(LAST)}
        is_given = await self._table.update(
            Key={name: new[name] for name in ("PK", "SK")},
            UpdateExpression="SET #version = :version, #index = :index",
            ConditionExpression="push_write = :write AND attribute_not_exists(#version)",
            ExpressionAttributeNames={"#version": "version", "#index": "index"},
            ExpressionAttributeValues={
                ":version": cursor["version"],
                ":index": cursor["index"],
                ":write": new["push_write"],
            },
        )
        if is_given:
            new |= cursor
        return is_given

    def _push_key(self, push: Push) -> Item:
        return key(
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


def _is_as_seen(name: str, value: Item) -> str:
    """Return the condition that an attribute has the value that was read, or its default."""
    same = f"#{name} = :seen_{name}"
    if value != PUSH_DEFAULTS.get(name):
        return same
    return f"({same} OR attribute_not_exists(#{name}))"


def counted(update: Mapping[str, Any], held: Held) -> dict[str, Any]:
    """Return a conditional update of HEAD that also counts a change of `held`."""
    return {
        **update,
        "UpdateExpression": f"{update['UpdateExpression']} ADD push_writes :push_one",
        "ConditionExpression": f"{update['ConditionExpression']} AND {_UNCHANGED[held.writes > 0]}",
        "ExpressionAttributeValues": update["ExpressionAttributeValues"]
        | {":push_one": attribute(1)}
        | ({":push_writes": attribute(held.writes)} if held.writes else {}),
    }


_UNCHANGED: Final = ("attribute_not_exists(push_writes)", "push_writes = :push_writes")


def _noted(held: Held) -> dict[str, Any]:
    """Return HEAD's part of a put: the version that HEAD has becomes the cursor."""
    head = held.head
    update = {
        "Key": key(layout.task_partition(head.scope, head.task_id), layout.HEAD),
        "UpdateExpression": "SET push_at = #version",
        "ConditionExpression": "incarnation = :incarnation",
        "ExpressionAttributeNames": {"#version": "version"},
        "ExpressionAttributeValues": {":incarnation": attribute(head.incarnation)},
    }
    return counted(update, held)

"""The push configurations of one scope on the table: items beside HEAD, each with its cursor.

A configuration is put in one transaction with HEAD, if that is still the one that was read. So its
cursor is the version at this moment, exactly: each commit is either before the cursor, or the
reader that it wakes finds the configuration. And of many puts at once each sees those before it,
which keeps a task to `MAX_CONFIGS`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, get_args

from a2a.types import TaskPushNotificationConfig
from google.protobuf.message import DecodeError

from a2a_serverless.clock import Clock, pause_s
from a2a_serverless.errors import (
    ConditionFailedError,
    TaskNotFoundError,
    UnavailableError,
    UnreadableTaskError,
)
from a2a_serverless.storage.changes import Change, change, changing, marked
from a2a_serverless.storage.codec import (
    is_live,
    live_head,
    lives,
    replaced,
    stored,
    value_in,
)
from a2a_serverless.storage.layout import (
    BY_SCOPE,
    HEAD,
    PUSH_END,
    attention_values,
    head_key,
    open_webhook,
    open_webhooks,
    owner_of,
    push_due_key,
    push_names,
    push_sort,
    shard_of,
    task_partition,
)
from a2a_serverless.storage.table import Item, Key, Put, Range, Table, are, beginning
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Dialect, Scope, is_task_id, new_token
from a2a_serverless.tasks.push import Push, check_room, checked, tallied
from a2a_serverless.tasks.rules import check_writable
from a2a_serverless.values import dataclass

logger = logging.getLogger(__name__)

_PUTS: Final = 40
"""How often a put that loses to others is tried."""
_MOST_PAUSE: Final = 4
"""From this attempt on the pauses between them do not grow: to a third of a second at most."""

_MARKS: Final = 2**53 - 1
"""How many marks there are of configurations that were set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Configurations:
    """A task's HEAD and its configurations by id."""

    head: Head
    pushes: tuple[Push, ...]
    unreadable: Mapping[str, UnreadableTaskError]
    """The configurations that cannot be read: the reasons by their ids."""

    @property
    def ids(self) -> list[str]:
        return [*(push.config.id for push in self.pushes), *self.unreadable]

    def push(self, config_id: str) -> Push | None:
        """Return one configuration.

        Raises:
            UnreadableTaskError: it is damaged.
        """
        if (error := self.unreadable.get(config_id)) is not None:
            raise error
        return self.readable(config_id)

    def readable(self, config_id: str) -> Push | None:
        """Return one configuration; None if there is none, or it is damaged."""
        return next((push for push in self.pushes if push.config.id == config_id), None)


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The push configurations of one scope's tasks.

    They are deleted with their task, and expire with it. A configuration of an earlier incarnation
    is not found. Reads are consistent. An inline configuration is stored with the commit that opens
    its turn (`open_task`, `Commit.push`), so that there is no moment at which the task runs without
    it. Its cursor stands before that commit. If it has no id, it gets the one that follows from its
    URL (`tasks.push.inline_id`).
    """

    table: Table
    scope: Scope
    clock: Clock

    async def all(self, task_id: str) -> list[Push]:
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

    async def get(self, task_id: str, config_id: str) -> Push | None:
        """Return one configuration; None if there is none.

        Raises:
            UnreadableTaskError: it is damaged.
        """
        held = await self._held(task_id)
        return held.push(config_id) if held else None

    async def _held(self, task_id: str) -> _Configurations | None:
        """Return a task's configurations; None when it does not exist or has expired."""
        if not is_task_id(task_id):
            return None
        wanted = Range(partition=self._partition(task_id), first=HEAD, last=PUSH_END)
        found = await self.table.all(wanted)
        item = found[0] if found and found[0]["SK"] == HEAD else None
        head = live_head(item, self.clock.now_ms())
        if head is None:
            return None
        own = [one for one in found[1:] if push_names(one["SK"])[0] == head.incarnation]
        return _held_of(head, own)

    async def put(self, given: TaskPushNotificationConfig, dialect: Dialect = "1.0") -> Push:
        """Store a configuration of the task `given.task_id`; its id is made here when it is empty.

        Its cursor stands at the task's version, so that exactly what is committed from now on is
        delivered. If it replaces a configuration with the same id, it takes over that one's cursor.
        The stream tells of it: if the task has ended, or waits for its client, the receiver is told
        so (`tasks.push.owed_events`).

        Raises:
            TaskNotFoundError: the task does not exist.
            NewerReleaseError: only a newer release may write the task.
            InvalidArgumentError: the task has `MAX_CONFIGS` others, or a text does not fit.
            UnavailableError: others write to the task all the time; try again.
        """
        config = checked(given)
        config.id = config.id or new_token()
        for attempt in range(1, _PUTS + 1):
            held = await self._held(config.task_id)
            if held is None:
                raise TaskNotFoundError
            check_writable(held.head)
            check_room(held.ids, config.id)
            head, old = marked(held.head), held.readable(config.id)
            new = Push(
                scope=head.scope,
                incarnation=head.incarnation,
                config=config,
                dialect=dialect,
                set_mark=1 + secrets.randbelow(_MARKS),
                version=head.version,
                expires_at=head.expires_at,
            )
            after = marked(new.instead_of(old))
            try:
                # With a new mark of HEAD: of two puts, or a put and a commit, at the same time one
                # is refused. So `MAX_CONFIGS` holds, and the cursor stands at the version that the
                # task has.
                await self.table.write(
                    replaced(held.head, head, self.clock.now_ms()), _replaced(old, after)
                )
            except ConditionFailedError:
                # A worker's commit that has lost comes at once: so it wins against any number of
                # puts.
                await self.clock.sleep(pause_s(min(attempt, _MOST_PAUSE)))
            else:
                return after
        msg = f"Others wrote to task {config.task_id}, {_PUTS} times."
        raise UnavailableError(msg)

    async def inline(self, new: Push) -> Change[Push | None]:
        """Return the change that stores an inline configuration with a commit.

        It goes with a write of HEAD, which a put of another configuration meanwhile refuses.

        Raises:
            TaskNotFoundError: the task does not exist.
            InvalidArgumentError: it has `MAX_CONFIGS` others.
        """
        held = await self._held(new.config.task_id)
        if held is None or held.head.incarnation != new.incarnation:
            raise TaskNotFoundError
        check_room(held.ids, new.config.id)

        def decide(old: Push | None) -> Push:
            return marked(new.instead_of(old, is_inline=True))

        return Change(held.readable(new.config.id), decide, _replaced, _readable)

    async def count_open(self) -> int:
        """Return how many webhooks the caller has in all tenants, some milliseconds ago.

        A webhook is open until its receiver was told of the task's end, or that was given up.
        """
        # The index has an expired one until DynamoDB has deleted its item, days later.
        is_live = lives(self.clock.now_ms())
        partition = open_webhooks(self.scope.digest)
        return await self.table.count(Range(partition=partition, index=BY_SCOPE, when=[is_live]))

    async def change(self, push: Push, decide: Callable[[Push], Push | None]) -> Push | None:
        """Replace a configuration by what `decide` makes of it; return it.

        As `DurableStorage.change` does with HEAD. None when `decide` returns None, or the
        configuration or its task is gone.

        Raises:
            UnreadableTaskError: it is damaged.
            UnavailableError: no answer within the retry budget, or too many races were lost.
        """
        if push.scope != self.scope.digest:
            return None
        now_ms = self.clock.now_ms()

        def write(before: Push, after: Push) -> Put:
            return Put(item=push_item(after), when=[*are(mark=before.mark), lives(now_ms)])

        def read(item: Item) -> Push | None:
            return push_of(item) if is_live(item, now_ms) else None

        made = changing(push, decide, write, read)
        await change(self.table, self.clock, made)
        return made.after

    async def move(self, before: Push, after: Push) -> Push | None:
        """Replace a configuration if it is still as it was read; else return None."""
        return await self.change(before, lambda now: after if now.mark == before.mark else None)

    async def delete(self, task_id: str, config_id: str) -> None:
        """Forget a configuration, also a damaged one. Idempotent.

        A request to the webhook that has begun may still end. A configuration can also be deleted
        from a task that only a newer release may write, because neither HEAD nor the log changes:
        so the client can always stop its webhook.
        """
        if not is_task_id(task_id) or not is_task_id(config_id):
            return
        item = await self.table.get(head_key(self.scope.digest, task_id))
        head = live_head(item, self.clock.now_ms())
        if head is not None:
            sort = push_sort(head.incarnation, config_id)
            await self.table.delete([Key(self._partition(task_id), sort)])

    async def of_task(self, head: Head) -> list[Push]:
        """Return the configurations of the task as it was read, by id, that can be read."""
        own = push_sort(head.incarnation, "")
        found = await self.table.all(beginning(self._partition(head.task_id), own))
        return list(_held_of(head, found).pushes)

    def _partition(self, task_id: str) -> str:
        return task_partition(self.scope.digest, task_id)


def _key(scope: str, push: Push) -> Key:
    return Key(
        task_partition(scope, push.config.task_id), push_sort(push.incarnation, push.config.id)
    )


def _held_of(head: Head, own: Iterable[Item]) -> _Configurations:
    """Return the configurations in a task's items `own`, apart from those that cannot be read."""
    pushes: list[Push] = []
    unreadable: dict[str, UnreadableTaskError] = {}
    for item in own:
        try:
            pushes.append(push_of(item))
        except UnreadableTaskError as error:
            _, config_id = push_names(item["SK"])
            unreadable[config_id] = error
    return _Configurations(head=head, pushes=tuple(tallied(pushes)), unreadable=unreadable)


# -- items -----------------------------------------------------------------------------------------


def push_item(push: Push) -> Item:
    """Return a configuration as an item: its fields, and the keys of the indexes."""
    config, task_id = push.config, push.config.task_id
    item: Item = {
        **_key(push.scope, push)._asdict(),
        **stored(push),
        "body": config.SerializeToString(),
    }
    if push.is_open:
        item |= open_webhook(push.scope, task_id, config.id)
    if push.due_at is not None:
        item["due_key"] = push_due_key(shard_of(task_id))
    if (attention := push.attention) is not None:
        item |= attention_values(task_id, attention)
    return item


_DERIVED: Final = frozenset(
    {"PK", "SK", "body", "scope_key", "status_key", "due_key", "attention_key", "attention_at"}
)
"""The attributes that are no fields, or follow from them."""


def _replaced(old: Push | None, new: Push) -> Put:
    """Return the write that puts a configuration in the place of the one that was read.

    It goes with a write of HEAD: so of one that was not there, or damaged, none can have come.
    """
    return Put(item=push_item(new), when=[] if old is None else are(mark=old.mark))


def push_of(item: Mapping[str, Any]) -> Push:
    """Return the push configuration that an item holds.

    Attributes that only a newer release knows are kept in `rest`, as is its dialect.

    Raises:
        UnreadableTaskError: the item is no configuration, or damaged.
    """
    scope, task_id = owner_of(item["PK"])
    incarnation, config_id = push_names(item["SK"])
    values = {name: one for name, one in item.items() if name not in _DERIVED}
    newer = {}
    if values.get("dialect", "1.0") not in get_args(Dialect):
        newer["dialect"] = values.pop("dialect")
    try:
        config = TaskPushNotificationConfig.FromString(item["body"])
        if (config.task_id, config.id) != (task_id, config_id):
            raise ValueError("its body is that of another one")
        push = value_in(
            Push,
            values,
            scope=scope,
            incarnation=incarnation,
            config=config,
            is_open="scope_key" in item,
        )
    except (DecodeError, KeyError, TypeError, ValueError) as error:
        msg = f"Push configuration {config_id} of task {task_id} cannot be read ({error}): "
        raise UnreadableTaskError(f"{msg}set it again under its id, or delete it.") from error
    return replace(push, rest={**push.rest, **newer}) if newer else push


def _readable(item: Item | None) -> Push | None:
    """Return the configuration that an item holds; None if there is none, or it is damaged."""
    try:
        return push_of(item) if item else None
    except UnreadableTaskError:
        return None

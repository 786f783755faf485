"""The push configurations of one scope on the table: items beside HEAD, each with its cursor.

A configuration is put in one transaction with HEAD, if that is still the one that was read. So its
cursor is the version at this moment, exactly: each commit is either before the cursor, or the
reader that it wakes finds the configuration. And of many puts at once each sees those before it,
which keeps a task to `MAX_CONFIGS`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from a2a.types import TaskPushNotificationConfig
from google.protobuf.message import DecodeError

from a2a_serverless.clock import Clock
from a2a_serverless.errors import (
    ConditionFailedError,
    TaskNotFoundError,
    UnavailableError,
    UnreadableTaskError,
)
from a2a_serverless.storage.codec import live_head, lives, replaced, seconds
from a2a_serverless.storage.layout import (
    ATTENTION,
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
from a2a_serverless.storage.table import (
    Check,
    Item,
    Kept,
    Key,
    Range,
    Table,
    Update,
    beginning,
)
from a2a_serverless.tasks.fold import LAST
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Dialect, Scope, is_task_id, new_token
from a2a_serverless.tasks.push import (
    CONFIG_ID_OF_0_1,
    GivenUp,
    Push,
    check_room,
    checked,
    tallied,
)
from a2a_serverless.tasks.rules import check_writable

logger = logging.getLogger(__name__)

_PUTS: Final = 40
"""How often a put that loses to others is tried; of puts at the same time one always succeeds."""

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
        for _ in range(_PUTS):
            held = await self._held(config.task_id)
            if held is None:
                raise TaskNotFoundError
            check_writable(held.head)
            check_room(held.ids, config.id)
            head = replace(held.head, mark=new_token())
            new = Push(
                scope=head.scope,
                incarnation=head.incarnation,
                config=config,
                dialect=dialect,
                set_mark=1 + secrets.randbelow(_MARKS),
                version=head.version,
            )
            write = replaced(held.head, head, self.clock.now_ms())
            try:
                # With a new mark of HEAD: of two puts, or a put and a commit, at the same time one
                # is refused. So `MAX_CONFIGS` holds, and the cursor stands at the version that the
                # task has.
                await self.table.write(write, _put(new, head))
            except ConditionFailedError:
                continue
            return await self.get(config.task_id, config.id) or new
        msg = f"Others wrote to task {config.task_id}, {_PUTS} times."
        raise UnavailableError(msg)

    async def check_room(self, push: Push) -> None:
        """Check that a commit may bring an inline configuration; a put meanwhile refuses it.

        Raises:
            TaskNotFoundError: the task does not exist.
            InvalidArgumentError: it has `MAX_CONFIGS` others.
        """
        held = await self._held(push.config.task_id)
        if held is None or held.head.incarnation != push.incarnation:
            raise TaskNotFoundError
        check_room(held.ids, push.config.id)

    async def count_open(self) -> int:
        """Return how many webhooks the caller has in all tenants, some milliseconds ago.

        A webhook is open until its receiver was told of the task's end, or that was given up.
        """
        # The index has an expired one until DynamoDB has deleted its item, days later.
        is_live = lives(self.clock.now_ms())
        partition = open_webhooks(self.scope.digest)
        return await self.table.count(Range(partition=partition, index=BY_SCOPE, when=[is_live]))

    async def move(
        self, before: Push, after: Push, *, closes: bool = False, wakes: bool = False
    ) -> bool:
        """Store the cursor and the failures of `after` if the stored ones are still `before`'s.

        False when the configuration is gone or was moved by another caller. The configuration
        itself is not written. `closes`: no event follows, and the webhook is not open any more.
        `wakes`: it is open again, and the next run of the sweeper sends its job. A move that was
        stored although its answer was lost counts as done.
        """
        move = new_token()
        seen = _position(before) | {"set_mark": before.set_mark}
        wanted = _position(after) | _outcome(after)
        is_due, task_id = wakes or after.is_left, after.config.task_id
        if is_due:
            due_at = self.clock.now_ms() if wakes else after.next_at
            wanted |= {"due_key": push_due_key(shard_of(task_id)), "due_at": due_at}
        if wakes:
            wanted |= open_webhook(self.scope.digest, task_id, after.config.id)
        update = Update(
            key=_key(self.scope.digest, before),
            values=wanted | {"move": move},
            remove=[
                *(() if is_due else ("due_key", "due_at")),
                *((*_GIVEN_UP, *ATTENTION) if before.given_up and not after.given_up else ()),
                *(("scope_key", "status_key") if closes else ()),
                *(() if after.set_mark else ("set_mark",)),
            ],
            when=[
                # `version` has no default: where the item was deleted, the update makes no new one.
                *(_as_seen(*one) for one in seen.items()),
                [
                    Check("expires_at", "absent"),
                    lives(self.clock.now_ms()),
                ],
            ],
        )
        if await self.table.did(update):
            return True
        # Its own mark says that an earlier, unanswered request of this move was applied.
        stored = await self.table.get(update.key)
        return stored is not None and stored.get("move") == move

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


def _as_seen(name: str, value: Any) -> list[Check]:
    """Return the condition that an attribute has the value that was read, or its default."""
    same = Check(name, "=", value)
    if name not in _DEFAULTS or value != _DEFAULTS[name]:
        return [same]
    return [same, Check(name, "absent")]


# -- items -----------------------------------------------------------------------------------------


def _put(push: Push, head: Head) -> Update:
    """Return the update that stores a configuration; a stored cursor stays.

    Its failures and refusals are forgotten. `set_mark` without a `move` lets the stream tell of it.
    """
    return Update(
        key=_key(head.scope, push),
        values=open_webhook(head.scope, head.task_id, push.config.id)
        | {
            "body": push.config.SerializeToString(),
            "dialect": push.dialect,
            "expires_at": seconds(head.expires_at),
            "version": Kept(push.version),
            "index": Kept(push.index),
            "failures": 0,
            "failing_since": None,
            "refusals": 0,
        }
        | ({"set_mark": push.set_mark} if push.set_mark else {}),
        remove=("answer", "answered_at", "next_at", "move"),
    )


def push_inline(push: Push, head: Head) -> Update:
    """Return the update that stores a configuration; a stored cursor and stored refusals stay.

    A client may send its inline configuration with each message: that must not reset the count for
    a URL that refuses.
    """
    put = _put(push, head)
    return replace(put, values={**put.values, "refusals": Kept(0)})


def _position(push: Push) -> Item:
    """Return the attributes of an item that a delivery moves, as they are in `push`."""
    return {
        "version": push.version,
        "index": push.index,
        "failures": push.failures,
        "failing_since": push.failing_since,
        "refusals": push.refusals,
    }


def _outcome(push: Push) -> Item:
    """Return the attributes about what became of the events so far; no condition has them."""
    values: Item = {}
    if push.answered_at is not None:
        values |= {"answer": push.answer, "answered_at": push.answered_at, "next_at": push.next_at}
    if push.told is not None:
        values["told"] = push.told
        if push.told_count is not None:
            values["told_count"] = push.told_count
    if (lost := push.given_up) is not None:
        about = (lost.count, lost.version, lost.at, lost.reason, *lost.behind)
        values |= dict(zip(_GIVEN_UP, about, strict=True))
        values |= attention_values(push.config.task_id, lost.attention)
    return values


_GIVEN_UP: Final = {
    "given_up": int,
    "given_up_version": int,
    "given_up_at": int,
    "given_up_reason": str,
    "given_up_behind": int,
    "given_up_behind_index": int,
}
"""The attributes about the events that were given up."""

_DEFAULTS: Final[Item] = {
    "index": LAST,
    "failures": 0,
    "failing_since": None,
    "refusals": 0,
    "set_mark": 0,
}
"""The attributes of a move's condition that an item may lack, and their values if it does."""


def push_of(item: Mapping[str, Any]) -> Push:
    """Return the push configuration that an item holds.

    Raises:
        UnreadableTaskError: the item lacks its configuration or its cursor, or has something else
            in their place.
    """
    values = {**_DEFAULTS, **item}
    scope, task_id = owner_of(values["PK"])
    incarnation, config_id = push_names(item["SK"])
    name = f"Push configuration {config_id} of task {task_id} cannot be read"
    config = _config_in(values.get("body"))
    if config is None or (config.task_id, config.id) != (task_id, config_id):
        msg = f"{name}, as its body is missing or damaged: set it again under its id, or delete it."
        raise UnreadableTaskError(msg)
    numbers = [values.get(part) for part in ("version", *_DEFAULTS) if part != "failing_since"]
    if not all(isinstance(number, int) for number in (*numbers, values["failing_since"] or 0)):
        msg = f"{name}, as its cursor is missing or damaged: delete it, and set it again."
        raise UnreadableTaskError(msg)
    return Push(
        scope=scope,
        incarnation=incarnation,
        config=config,
        dialect=_dialect_of(values.get("dialect"), config_id),
        **{part: values[part] for part in ("version", *_DEFAULTS)},
        **_informing(values, {"answer": str, "answered_at": int, "next_at": int, "told": int}),
        told_count=_told_count(values),
        given_up=_given_up(values),
    )


def _dialect_of(stored: object, config_id: str) -> Dialect:
    """Return a configuration's dialect; without one release 0.3.0 has stored it."""
    known = (one for one in get_args(Dialect) if one == stored)
    return next(known, "0.1" if stored is None and config_id == CONFIG_ID_OF_0_1 else "1.0")


def _informing(values: Mapping[str, Any], forms: Mapping[str, type]) -> dict[str, Any]:
    """Return attributes that only inform; a value of another form counts as missing."""
    return {n: values[n] for n, form in forms.items() if isinstance(values.get(n), form)}


def _given_up(values: Mapping[str, Any]) -> GivenUp | None:
    """Return what was given up; None also if a part of it is missing."""
    found = _informing(values, _GIVEN_UP)
    if len(found) < len(_GIVEN_UP):
        return None
    count, version, at, reason, *behind = (found[name] for name in _GIVEN_UP)
    return GivenUp(count=count, version=version, at=at, reason=reason, behind=tuple(behind))


def _told_count(values: Mapping[str, Any]) -> int | None:
    """Return how many events were told; None if some were, and their number is lost."""
    count = values.get("told_count", None if "told" in values else 0)
    return count if isinstance(count, int) else None


def _config_in(body: object) -> TaskPushNotificationConfig | None:
    """Return the configuration in the body of an item; None where there is none."""
    try:
        return TaskPushNotificationConfig.FromString(body) if isinstance(body, bytes) else None
    except DecodeError:
        return None

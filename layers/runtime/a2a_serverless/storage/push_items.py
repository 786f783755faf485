"""The codec between push configurations and PUSH items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from a2a.types import TaskPushNotificationConfig
from google.protobuf.message import DecodeError

from a2a_serverless.errors import UnreadablePushError, UnreadableTaskError
from a2a_serverless.storage.codec import seconds
from a2a_serverless.storage.layout import PUSH, owner_of, push_sort, task_partition
from a2a_serverless.storage.table import Item, Kept, Key, Update
from a2a_serverless.tasks.events import LAST
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.push import GivenUp, Push


def push_put(push: Push, head: Head, *, write: int) -> Update:
    """Return the update that stores a configuration without a cursor; `push_at` is its cursor.

    A configuration that is stored already keeps its own cursor. Its failures and refusals are
    forgotten.
    """
    return Update(
        key=Key(
            task_partition(head.scope, head.task_id),
            push_sort(push.incarnation, push.config.id),
        ),
        values={
            "body": push.config.SerializeToString(),
            "expires_at": seconds(head.expires_at),
            "failures": 0,
            "failing_since": None,
            "refusals": 0,
            "push_write": write,
        },
        remove=("answer", "answered_at", "next_at"),
    )


def push_inline(push: Push, head: Head) -> Update:
    """Return the update that stores a configuration; a stored cursor and stored refusals stay.

    A client may send its inline configuration with each message: that must not reset the count for
    a URL that refuses.
    """
    put = push_put(push, head, write=0)
    kept = {"version": push.version, "index": push.index, "refusals": 0}
    return replace(put, values={**put.values, **{name: Kept(v) for name, v in kept.items()}})


def push_position(push: Push) -> Item:
    """Return the attributes of an item that a delivery moves, as they are in `push`."""
    return {
        "version": push.version,
        "index": push.index,
        "failures": push.failures,
        "failing_since": push.failing_since,
        "refusals": push.refusals,
    }


def push_outcome(push: Push) -> Item:
    """Return the attributes about what became of the events so far; no condition has them.

    An earlier release leaves them as they are. Their times and versions say how old they are.
    """
    values: Item = {}
    if push.answered_at is not None:
        values |= {"answer": push.answer, "answered_at": push.answered_at, "next_at": push.next_at}
    if push.told is not None:
        values["told"] = push.told
    if (lost := push.given_up) is not None:
        values |= {"given_up": lost.count, "given_up_version": lost.version}
        values |= {"given_up_at": lost.at, "given_up_reason": lost.reason}
    return values


PUSH_DEFAULTS: Final[Item] = {
    "index": LAST,
    "failures": 0,
    "failing_since": None,
    "refusals": 0,
}
"""The attributes of `push_position` that an item may lack, and their values if it does."""


def push_names(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the incarnation of a push configuration's task, and the configuration's id."""
    sort: str = item["SK"]
    incarnation, _, config_id = sort.removeprefix(PUSH).partition("#")
    return incarnation, config_id


def push_of(item: Mapping[str, Any]) -> Push:
    """Return the push configuration that an item holds.

    Raises:
        UnreadablePushError: the item lacks its configuration or its cursor, or has something else
            in their place.
    """
    values = {**PUSH_DEFAULTS, **item}
    scope, task_id = owner_of(values["PK"])
    incarnation, config_id = push_names(item)
    name = f"Push configuration {config_id} of task {task_id} cannot be read"
    config = _config_in(values.get("body"))
    if config is None or (config.task_id, config.id) != (task_id, config_id):
        msg = f"{name}, as its body is missing or damaged: set it again under its id, or delete it."
        raise UnreadablePushError(msg)
    numbers = [values.get(part) for part in ("version", "index", "failures", "refusals")]
    if not all(isinstance(number, int) for number in (*numbers, values["failing_since"] or 0)):
        msg = f"{name}, as its cursor is missing or damaged: delete it, and set it again."
        raise UnreadablePushError(msg)
    return Push(
        scope=scope,
        incarnation=incarnation,
        config=config,
        **{part: values[part] for part in ("version", *PUSH_DEFAULTS)},
        **_noted(values, {"answer": str, "answered_at": int, "next_at": int, "told": int}),
        given_up=_given_up(values),
    )


def _noted(values: Mapping[str, Any], forms: Mapping[str, type]) -> dict[str, Any]:
    """Return attributes that only inform; a value of another form counts as missing."""
    return {n: values[n] for n, form in forms.items() if isinstance(values.get(n), form)}


def _given_up(values: Mapping[str, Any]) -> GivenUp | None:
    """Return what was given up; None also if a part of it is missing."""
    parts = {"given_up": int, "given_up_version": int, "given_up_at": int, "given_up_reason": str}
    found = _noted(values, parts)
    if len(found) < len(parts):
        return None
    count, version, at, reason = (found[name] for name in parts)
    return GivenUp(count=count, version=version, at=at, reason=reason)


def _config_in(body: object) -> TaskPushNotificationConfig | None:
    """Return the configuration in the body of an item; None where there is none."""
    try:
        return TaskPushNotificationConfig.FromString(body) if isinstance(body, bytes) else None
    except DecodeError:
        return None


def push_writes(head: Mapping[str, Any]) -> int:
    """Return how often a configuration was put to HEAD's task; `Head` has no field for it.

    Raises:
        UnreadableTaskError: the count is of another form.
    """
    writes = head.get("push_writes", 0)
    if not isinstance(writes, int):
        _, task_id = owner_of(head["PK"])
        msg = f"HEAD of task {task_id} has a push_writes of a form that no release writes."
        raise UnreadableTaskError(msg)
    return writes


def awaits_cursor(item: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Return True if a configuration has no cursor yet, and this or a later HEAD will give it one.

    If HEAD has counted later puts, the cursor is lost: a put begins only after the configuration
    of the put before it has got its cursor.
    """
    write = item.get("push_write")
    if "version" in item or not isinstance(write, int) or write == 0:
        return False
    writes = push_writes(head)
    return write > writes or (write == writes and "push_at" in head)

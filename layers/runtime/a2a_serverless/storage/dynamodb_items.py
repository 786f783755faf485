"""The items of the table: keys, and the codec between items and HEADs or commits.

Pure: nothing here calls AWS. ARCHITECTURE.md has the table of items. Expiry is kept in whole
seconds, the unit of DynamoDB's time to live; `open_task` rounds a task's expiry up to one, so that
an item and its HEAD agree to the millisecond.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from types import UnionType
from typing import Any, Final, cast

from a2a.types import TaskPushNotificationConfig, TaskState
from google.protobuf.message import DecodeError

from a2a_serverless.errors import UnreadablePushError, UnreadableTaskError
from a2a_serverless.storage.listing import status_key
from a2a_serverless.tasks.entries import CRITICAL, Entry, Unknown, decode_entries
from a2a_serverless.tasks.events import LAST
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import AttemptEnd, CancelMark, Head, state_name
from a2a_serverless.tasks.identity import digest
from a2a_serverless.tasks.push import Push
from a2a_serverless.tasks.rules import Step

Item = dict[str, Any]
"""An item, or some of its attributes, as DynamoDB's API has it: `{"PK": {"S": "…"}}`."""

SHARDS: Final = 4
"""Partitions of a scope's listing and of the due index, each good for 1,000 writes a second."""

PART_BYTES: Final = 340_000
"""The longest body of one EVENT item: with its keys it stays under 350 KB."""

BY_SCOPE: Final = "by-scope"
BY_CONTEXT: Final = "by-context"
BY_DUE: Final = "by-due"
BY_ID: Final = "by-id"

HEAD: Final = "HEAD"
CANCEL: Final = "CANCEL"
EVENTS: Final = "EVENT#"
CONTEXT: Final = "CONTEXT"
PUSH: Final = "PUSH#"
PUSH_END: Final = "PUSH$"
"""Behind every push configuration; `HEAD` is before the first."""


# -- keys ------------------------------------------------------------------------------------


def key(partition: str, sort: str) -> Item:
    """Return a primary key."""
    return {"PK": {"S": partition}, "SK": {"S": sort}}


def task_partition(scope: str, task_id: str) -> str:
    """Return the PK of a task's items. `scope` is a digest: another scope has another key."""
    return f"TASK#{scope}#{task_id}"


def owner_of(partition: str) -> tuple[str, str]:
    """Return scope digest and task id of a task's PK."""
    _, scope, task_id = partition.split("#", 2)
    return scope, task_id


def context_partition(scope: str, context_id: str) -> str:
    """Return the PK of a context's item."""
    return f"CONTEXT#{context_key(scope, context_id)}"


def context_owner(scope: str, context_id: str) -> dict[str, str]:
    """Return the attributes of a context's item by which the index by scope finds it.

    Its place is before every task's: no listing, of this release or an earlier one, reads it.
    """
    return {
        "scope_key": f"{scope}#{shard_of(context_id)}",
        "status_key": f"{_BEFORE_TASKS}{CONTEXT}#{context_id}",
    }


_BEFORE_TASKS: Final = "!"
"""Sorts before the digits with which a task's `status_key` begins."""


def context_key(scope: str, context_id: str) -> str:
    """Return the key of the index by context: a digest, as clients choose the length of ids."""
    return digest("context", scope, context_id)


def event_sort(incarnation: str, version: int, part: int | None = None) -> str:
    """Return the SK of a part of a commit; without `part` it sorts before all parts."""
    start = f"{EVENTS}{incarnation}#{version:012d}"
    return start if part is None else f"{start}#{part:03d}"


def event_position(sort: str) -> tuple[str, int, int] | None:
    """Return incarnation, version and part of an EVENT's SK; None if it is of another kind."""
    found = _EVENT.fullmatch(sort)
    return None if found is None else (found[1], int(found[2]), int(found[3]))


_EVENT: Final = re.compile(rf"{EVENTS}([^#]+)#(\d+)#(\d+)")


def push_sort(incarnation: str, config_id: str) -> str:
    """Return the SK of a push configuration."""
    return f"{PUSH}{incarnation}#{config_id}"


def scope_keys(scope: str) -> list[str]:
    """Return keys of the index by scope, one for each shard."""
    return [f"{scope}#{shard}" for shard in range(SHARDS)]


def due_keys(kind: str) -> list[str]:
    """Return the due index's keys, one for each shard; `kind` is `TURN` or `CANCEL` (a flag)."""
    return [f"{kind}#{shard}" for shard in range(SHARDS)]


def id_key(task_id: str) -> str:
    """Return the index key under which a task is found by its id, in whichever scope it is."""
    return f"ID#{task_id}"


def hour_keys(at_ms: int) -> list[str]:
    """Return the index keys, one a shard, of the tasks created in the hour of a time."""
    return [_hour_key(at_ms, shard) for shard in range(SHARDS)]


def _hour_key(at_ms: int, shard: int) -> str:
    hour = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H")
    return f"HOUR#{hour}#{shard}"


def incarnation_of(item: Mapping[str, Any] | None) -> str | None:
    """Return the incarnation that an item names; None without one, or without an item."""
    return None if item is None else plain(item).get("incarnation")


def shard_of(task_id: str) -> int:
    """Return the shard of a task in every sharded index."""
    return zlib.crc32(task_id.encode()) % SHARDS


# -- attributes ------------------------------------------------------------------------------


def attribute(value: str | int | bytes | None) -> dict[str, Any]:
    """Return a value as DynamoDB's API has it."""
    match value:
        case None:
            return {"NULL": True}
        case str():
            return {"S": value}
        case int():
            return {"N": str(value)}
        case bytes():
            return {"B": value}


def plain(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item with Python's values."""
    return {name: _plain(*value.items()) for name, value in item.items()}


def _plain(typed: tuple[str, Any]) -> str | int | bytes | None:
    match typed:
        case ("N", number):
            return int(float(number)) if set(number) & _FLOAT else int(number)
        case ("NULL", _):
            return None
        case ("B", binary):
            return bytes(binary)
        case (_, text):
            return str(text)


_FLOAT: Final = frozenset(".eE")
"""Characters of a number that is not whole; this release stores none."""


def seconds(ms: int) -> int:
    """Return a time in milliseconds as whole seconds, rounded up, as `expires_at` has it."""
    return -(-ms // 1000)


# -- HEAD ------------------------------------------------------------------------------------


def head_item(head: Head) -> Item:
    """Return HEAD as an item. Defaults are left out: every commit pays by the KB."""
    shard = shard_of(head.task_id)
    values: dict[str, str | int | bytes | None] = {
        "scope_key": f"{head.scope}#{shard}",
        "status_key": status_key(head.status_at, head.task_id),
        "context_key": context_key(head.scope, head.context_id),
        "created_key": status_key(head.created_at, head.task_id),
        "id_key": _hour_key(head.created_at, shard),
        "expires_at": seconds(head.expires_at),
        "incarnation": head.incarnation,
        "version": head.version,
        "state": state_name(head.state),
        "status": head.status,
        "context_id": head.context_id,
        "turn": head.turn,
        "turn_base": head.turn_base,
        "sends": head.sends,
    }
    if head.metadata != b"":
        values["metadata"] = head.metadata
    if head.due_at is not None:
        values |= {"due_key": f"TURN#{shard}", "due_at": head.due_at}
    for name in _OPTIONAL:
        if value := getattr(head, name):
            values[name] = value
    if head.replied:
        values["replied"] = 1
    values |= _noted(head)
    typed = {name: attribute(value) for name, value in values.items()}
    return key(task_partition(head.scope, head.task_id), HEAD) | typed


def _noted(head: Head) -> dict[str, str | int | bytes | None]:
    """Return attributes of HEAD that an older release's commit leaves as they were.

    So each says what it belongs to: a version, a token, an incarnation.
    """
    values: dict[str, str | int | bytes | None] = {}
    if head.generation is not None:
        values |= {"generation": head.generation, "generation_at": head.version}
    if head.cancel is not None:
        values |= cancel_values(head, head.cancel)
    if head.released is not None:
        values |= released_values(head.released)
    return values


def cancel_values(head: Head, mark: CancelMark) -> dict[str, str | int | bytes | None]:
    """Return the attributes of HEAD that say that a cancel was requested."""
    return {"cancel_for": head.incarnation, "cancel_at": mark.at, "cancel_by": mark.by}


def released_values(end: AttemptEnd) -> dict[str, str | int | bytes | None]:
    """Return the attributes of HEAD that say that an attempt has given its turn back."""
    return {
        "released": end.token,
        "released_reason": end.reason,
        "released_id": end.correlation_id,
    }


_OPTIONAL: Final = (
    "next_turn",
    "finished_turn",
    "token",
    "attempts",
    "key_digest",
    "message_digest",
    "content_digest",
    "needs",
    "size",
)
"""Attributes of HEAD that an item has only where they say something."""


def head_of(item: Mapping[str, Any]) -> Head:
    """Return the HEAD that an item holds.

    A state that this release does not know is shown as unspecified, and only read.

    Raises:
        UnreadableTaskError: the item lacks an attribute that every release writes, or has one in
            another form.
    """
    values = plain(item)
    scope, task_id = owner_of(values["PK"])
    if missing := [name for name in REQUIRED if name not in values]:
        msg = f"HEAD of task {task_id} has no {' and no '.join(missing)}: it was stored in part."
        raise UnreadableTaskError(msg)
    for name, form in _FORMS.items():
        if name in values and not isinstance(values[name], form):
            msg = f"HEAD of task {task_id} has a {name} of a form that no release writes."
            raise UnreadableTaskError(msg)
    try:
        return _head(scope, task_id, values)
    except ValueError as error:
        msg = f"HEAD of task {task_id} has a value that no release writes: {error}."
        raise UnreadableTaskError(msg) from error


def _head(scope: str, task_id: str, values: Mapping[str, Any]) -> Head:
    is_known = values["state"] in TaskState.keys()  # noqa: SIM118 - an enum of protobuf, no mapping
    return Head(
        scope=scope,
        task_id=task_id,
        context_id=values["context_id"],
        incarnation=values["incarnation"],
        version=values["version"],
        state=cast("TaskState", TaskState.Value(values["state"] if is_known else _UNKNOWN_STATE)),
        status_at=_time_of(values["status_key"]),
        status=values.get("status"),
        metadata=values.get("metadata", b""),
        created_at=_time_of(values["created_key"]),
        expires_at=values["expires_at"] * 1000,
        turn=values["turn"],
        turn_base=values["turn_base"],
        sends=values.get("sends", 0),
        due_at=values.get("due_at"),
        replied=bool(values.get("replied")),
        generation=_generation_of(values),
        cancel=_cancel_of(values),
        released=_end_of(values, "released"),
        **{name: values[name] for name in _OPTIONAL if name in values}
        | ({} if is_known else {"needs": NEVER}),
    )


def _generation_of(values: Mapping[str, Any]) -> int | None:
    """Return the generation; None where a release without it has committed since."""
    if values.get("generation_at") != values["version"]:
        return None
    return cast("int", values.get("generation"))


def _cancel_of(values: Mapping[str, Any]) -> CancelMark | None:
    if values.get("cancel_for") != values["incarnation"]:
        return None
    return CancelMark(at=values.get("cancel_at", 0), by=values.get("cancel_by", ""))


def _end_of(values: Mapping[str, Any], name: str) -> AttemptEnd | None:
    """Return the attempt's end that stands in the attributes `NAME`, `NAME_reason`, `NAME_id`."""
    if name not in values:
        return None
    return AttemptEnd(
        token=values[name],
        reason=values.get(f"{name}_reason", ""),
        correlation_id=values.get(f"{name}_id", ""),
    )


REQUIRED: Final[Mapping[str, type]] = {
    "context_id": str,
    "incarnation": str,
    "version": int,
    "state": str,
    "status_key": str,
    "created_key": str,
    "expires_at": int,
    "turn": int,
    "turn_base": int,
}
"""The forms of the attributes that every HEAD has."""

_FORMS: Final[Mapping[str, type | UnionType]] = {
    **REQUIRED,
    "status": bytes | None,
    "metadata": bytes | None,
    "next_turn": int,
    "finished_turn": int,
    "token": str,
    "attempts": int,
    "due_at": int,
    "sends": int,
    "key_digest": str,
    "message_digest": str,
    "content_digest": str,
    "needs": int,
    "size": int,
    "generation": int,
    "cancel_at": int,
    "cancel_by": str,
    "released": str,
    "released_reason": str,
    "released_id": str,
}
"""The forms of all attributes that are read."""

_UNKNOWN_STATE: Final = "TASK_STATE_UNSPECIFIED"
NEVER: Final = 1_000_000
"""A format that no release of this code will know: the item can be read and not written."""


def _time_of(sort_key: str) -> int:
    return int(sort_key.split("#", 1)[0])


# -- commits ---------------------------------------------------------------------------------


def event_items(step: Step, body: bytes) -> list[Item]:
    """Return the parts of a commit, in order; at least one. `body` is its entries, encoded.

    Each part of a commit that changes the status says which state it led to. A filter on the
    table's stream sees one item at a time, in any order, and none of the body: so it can pick the
    commits that are worth a wake, and whichever part comes last, one record comes after the
    whole commit. What belongs to the commit as a whole stands in the first part alone.
    """
    head = step.head
    starts = range(0, max(1, len(body)), PART_BYTES)
    common: dict[str, str | int | bytes] = {
        "commit_id": step.commit_id,
        "expires_at": seconds(head.expires_at),
        "parts": len(starts),
    }
    if step.token is not None:
        common["token"] = step.token
    if step.changes_status:
        common["state"] = state_name(head.state)
    if step.trace is not None:
        common["trace"] = step.trace
    partition = task_partition(head.scope, head.task_id)
    parts = [
        key(partition, event_sort(head.incarnation, head.version, part))
        | {name: attribute(value) for name, value in common.items()}
        | {"body": {"B": body[start : start + PART_BYTES]}}
        for part, start in enumerate(starts)
    ]
    parts[0] |= {name: attribute(value) for name, value in _of_the_commit(step).items()}
    return parts


def _of_the_commit(step: Step) -> dict[str, str | int]:
    """Return the attributes that stand in a commit's first part alone."""
    head = step.head
    values: dict[str, str | int] = {"at": step.at}
    if step.base is not None:
        values["base"] = step.base
    if step.worker:
        values["worker"] = step.worker
    if (ended := step.ended) is not None:
        values |= {"ended": ended.token, "ended_reason": ended.reason}
        if ended.correlation_id:
            values["ended_id"] = ended.correlation_id
    if head.version == 1:
        created = status_key(head.created_at, head.task_id)
        values |= {"id_key": id_key(head.task_id), "created_key": created}
    return values


# -- push configurations ---------------------------------------------------------------------


def push_put(push: Push, head: Head, *, write: int) -> Item:
    """Return the update that stores a configuration without a cursor; `push_at` is its cursor.

    One that is there keeps its own, and its receiver has a new start.
    """
    return {
        "Key": key(
            task_partition(head.scope, head.task_id),
            push_sort(push.incarnation, push.config.id),
        ),
        "UpdateExpression": "SET #body = :body, expires_at = :expires_at, #failures = :none,"
        " failing_since = :never, push_write = :write",
        "ExpressionAttributeNames": {"#body": "body", "#failures": "failures"},
        "ExpressionAttributeValues": {
            ":body": attribute(push.config.SerializeToString()),
            ":expires_at": attribute(seconds(head.expires_at)),
            ":none": attribute(0),
            ":never": attribute(None),
            ":write": attribute(write),
        },
    }


def push_inline(push: Push, head: Head) -> Item:
    """Return the update that stores a configuration; a cursor that is stored already stays."""
    put = push_put(push, head, write=0)
    put["UpdateExpression"] = (
        "SET #version = if_not_exists(#version, :version), #index = if_not_exists(#index, :index), "
        + put["UpdateExpression"].removeprefix("SET ")
    )
    put["ExpressionAttributeNames"] |= {"#version": "version", "#index": "index"}
    put["ExpressionAttributeValues"] |= {
        ":version": attribute(push.version),
        ":index": attribute(push.index),
    }
    return put


def push_position(push: Push) -> Item:
    """Return the attributes of an item that a delivery moves, as they are in `push`."""
    return {
        "version": attribute(push.version),
        "index": attribute(push.index),
        "failures": attribute(push.failures),
        "failing_since": attribute(push.failing_since),
    }


PUSH_DEFAULTS: Final[Item] = {
    "index": attribute(LAST),
    "failures": attribute(0),
    "failing_since": attribute(None),
}
"""The attributes of `push_position` that an item may lack, and what they are then."""


def push_names(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the incarnation of a push configuration's task, and the configuration's id."""
    sort: str = item["SK"]["S"]
    incarnation, _, config_id = sort.removeprefix(PUSH).partition("#")
    return incarnation, config_id


def push_of(item: Mapping[str, Any]) -> Push:
    """Return the push configuration that an item holds.

    Raises:
        UnreadablePushError: the item lacks its configuration or its cursor, or has something else
            in their place.
    """
    values = plain({**PUSH_DEFAULTS, **item})
    scope, task_id = owner_of(values["PK"])
    incarnation, config_id = push_names(item)
    name = f"Push configuration {config_id} of task {task_id} cannot be read"
    config = _config_in(values.get("body"))
    if config is None or (config.task_id, config.id) != (task_id, config_id):
        msg = f"{name}, as its body is missing or damaged: set it again under its id, or delete it."
        raise UnreadablePushError(msg)
    numbers = [values.get(part) for part in ("version", "index", "failures")]
    if not all(isinstance(number, int) for number in (*numbers, values["failing_since"] or 0)):
        msg = f"{name}, as its cursor is missing or damaged: delete it, and set it again."
        raise UnreadablePushError(msg)
    return Push(
        scope=scope,
        incarnation=incarnation,
        config=config,
        **{part: values[part] for part in ("version", *PUSH_DEFAULTS)},
    )


def _config_in(body: object) -> TaskPushNotificationConfig | None:
    """Return the configuration in the body of an item; None where there is none."""
    try:
        return TaskPushNotificationConfig.FromString(body) if isinstance(body, bytes) else None
    except DecodeError:
        return None


def push_writes(head: Mapping[str, Any]) -> int:
    """Return how often a configuration was put to HEAD's task; kept beside what `Head` has."""
    return int(head["push_writes"]["N"]) if "push_writes" in head else 0


def awaits_cursor(item: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    """Return True if a configuration has no cursor yet, and gets HEAD's, or that of a later HEAD.

    One that HEAD has counted past has lost its cursor: no put is begun before the last one has it.
    """
    write = plain(item).get("push_write")
    if "version" in item or not isinstance(write, int) or write == 0:
        return False
    writes = push_writes(head)
    return write > writes or (write == writes and "push_at" in head)


# -- reading commits -------------------------------------------------------------------------


class Commits:
    """Puts commits together from EVENT items that come in the order of their keys.

    Takes complete commits of one incarnation in unbroken version order after `version`, and
    nothing else: a Query beside a transaction may return a part of a commit, or a commit without
    the one before it. What does not fit is ignored; the reader asks again after `version`.
    """

    def __init__(self, incarnation: str, version: int) -> None:
        self.incarnation = incarnation
        self.version = version
        self.records: list[Record] = []
        self._parts: list[dict[str, Any]] = []

    def add(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Take the next items. A commit may go on in the next call, or begin anew."""
        for values in self._own(items):
            if values["part"] == 0:
                self._parts.clear()
            is_next = values["version"] == self.version + 1
            if not is_next or values["part"] != len(self._parts):
                continue
            self._parts.append(values)
            if len(self._parts) == values["parts"]:
                self._complete()

    def _own(self, items: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        for item in items:
            place = event_position(item["SK"]["S"])
            if place is not None and place[0] == self.incarnation:
                _, version, part = place
                yield {"parts": 1} | plain(item) | {"version": version, "part": part}

    def _complete(self) -> None:
        first = self._parts[0]
        self.records.append(
            Record(
                version=self.version + 1,
                entries=_entries_in(self._parts),
                token=first.get("token"),
                commit_id=first.get("commit_id", ""),
                at=first.get("at"),
                base=first.get("base"),
                worker=first.get("worker", ""),
                ended=_end_of(first, "ended"),
                trace=first.get("trace"),
            )
        )
        self.version += 1
        self._parts.clear()


def _entries_in(parts: Iterable[Mapping[str, Any]]) -> tuple[Entry, ...]:
    """Return the entries of a commit; one that cannot be read where a part has no body."""
    body = b""
    for part in parts:
        if not isinstance(part.get("body"), bytes):
            return (Unknown(_MISSING, CRITICAL, b""),)
        body += part["body"]
    return decode_entries(body)


_MISSING: Final = b"?"
"""The kind of what stands for entries that were not stored."""

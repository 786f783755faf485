"""The codec between tasks and items: HEAD, and the EVENT items of commits.

Expiry is kept in whole seconds, the unit of DynamoDB's time to live; `open_task` rounds a task's
expiry up to one, so that an item and its HEAD agree to the millisecond.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, Final, NamedTuple, TypeVar

from a2a.types import TaskState

from a2a_serverless.errors import UnreadableTaskError
from a2a_serverless.storage.layout import (
    WOKEN,
    attention_values,
    context_key,
    due_key,
    event_position,
    event_sort,
    head_key,
    hour_key,
    id_key,
    in_scope,
    line_place,
    owner_of,
    scope_key,
    sent_sort,
    shard_of,
    share_key,
    status_key,
    task_partition,
    waiting_key,
)
from a2a_serverless.storage.table import NEW, Check, Item, Key, Put, Update, are
from a2a_serverless.tasks.entries import decode_entries
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import (
    NEWER,
    AttemptEnd,
    CancelMark,
    Failure,
    Head,
    SnapshotName,
    Spared,
    state_name,
)
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.pace import PART_BYTES
from a2a_serverless.tasks.rules import Step
from a2a_serverless.tasks.usage import decoded, encoded

T = TypeVar("T")


def seconds(ms: int) -> int:
    """Return a time in milliseconds as whole seconds, rounded up, as `expires_at` has it."""
    return -(-ms // 1000)


# -- values that are stored as text ----------------------------------------------------------------


def text_of(value: object) -> str:
    """Return a dataclass of plain fields as JSON, without the fields that have their defaults."""
    stored = {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]
    defaults = {f.name: f.default for f in fields(value)}  # type: ignore[arg-type]
    shown = {name: one for name, one in stored.items() if one != defaults[name]}
    return json.dumps(shown, separators=(",", ":"))


def value_of(form: type[T], text: str) -> T:
    """Return what `text_of` has written; fields that a newer release adds are left out.

    Raises:
        ValueError, TypeError: it is not that.
    """
    known = {one.name for one in fields(form)}  # type: ignore[arg-type]
    return form(**{name: one for name, one in json.loads(text).items() if name in known})


# -- HEAD ------------------------------------------------------------------------------------------


class _Form(NamedTuple):
    """How a field of HEAD is stored in the attribute of its name, and read from it."""

    stored: type | UnionType
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]

    def value(self, name: str, stored: Any) -> Any:
        """Return a field's value; raise ValueError if its attribute is damaged."""
        try:
            if isinstance(stored, self.stored):
                return self.read(stored)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
        raise ValueError(f"{name} is of type {type(stored).__name__}")


def _same(value: Any) -> Any:
    return value


def _json(form: type) -> _Form:
    return _Form(str, text_of, lambda text: value_of(form, text))


_TYPES: Final[Mapping[str, type | UnionType]] = {
    "int": int,
    "str": str,
    "int | None": int | None,
    "str | None": str | None,
    "bytes | None": bytes | None,
    "Reason": str,
}
"""By the annotations of fields: the types of attributes that have the same value."""
_FLAG: Final = _Form(int, int, bool)  # a table has no truth values
_FORMS: Final[Mapping[str, _Form]] = {
    "state": _Form(str, state_name, _same),
    "expires_at": _Form(int, seconds, lambda value: value * 1000),
    "alone": _FLAG,
    "woken": _FLAG,
    "replied": _FLAG,
    "usage": _Form(str, encoded, decoded),
    "spared": _json(Spared),
    "snapshot": _json(SnapshotName),
    "cancel": _json(CancelMark),
    "released": _json(AttemptEnd),
    "failure": _json(Failure),
}
_STORED: Final = [one for one in fields(Head) if one.name not in ("scope", "task_id", "rest")]
_FIELDS: Final[Mapping[str, _Form]] = {
    one.name: _FORMS.get(one.name) or _Form(_TYPES[str(one.type)], _same, _same) for one in _STORED
}
_DEFAULTS: Final = {one.name: one.default for one in _STORED} | {"mark": None}
"""What is not stored; a mark always is."""
_DERIVED: Final = frozenset(
    {
        *("PK", "SK", "created_key", "due_key"),
        *("scope_key", "status_key", "context_key", "id_key"),
        *("line_key", "line_at", "attention_key", "attention_at"),
    }
)
"""The attributes that follow from the fields: keys of the item, and of the indexes."""


def head_item(head: Head) -> Item:
    """Return HEAD as an item: an attribute for each field, and the keys of the indexes.

    Defaults are left out: every commit pays by the KB.
    """
    item = _keys_of(head)
    for name, form in _FIELDS.items():
        value = getattr(head, name)
        if value != _DEFAULTS[name]:
            item[name] = form.write(value)
    if "state" in head.rest:  # only a newer release knows it: what it has stored stays
        item.pop("needs", None)
    return {**item, **head.rest}


def _keys_of(head: Head) -> Item:
    shard = shard_of(head.task_id)
    keys: Item = {
        **head_key(head.scope, head.task_id)._asdict(),
        "scope_key": scope_key(head.scope, shard),
        "status_key": in_scope(head.scope, status_key(head.status_at, head.task_id)),
        "created_key": status_key(head.created_at, head.task_id),
        "id_key": hour_key(head.created_at, shard),
    }
    if not head.begins_context:
        keys["context_key"] = context_key(head.scope, head.context_id)
    if head.due_at is not None:
        keys["due_key"] = due_key(shard)
    if head.left == "share" or head.woken:
        principal = Scope(head.scope).principal
        has_share = share_key(principal) if head.is_claimed else WOKEN
        keys["line_key"] = has_share if head.woken else waiting_key(principal)
        keys["line_at"] = line_place(principal, head.left_at, head.task_id)
    if (attention := head.attention) is not None:
        keys |= attention_values(head.task_id, attention)
    return keys


def head_of(item: Mapping[str, Any]) -> Head:
    """Return the HEAD that an item holds.

    What only a newer release knows is kept: attributes in `rest`, and a state as unspecified, in a
    HEAD that can be read and not written.

    Raises:
        UnreadableTaskError: the item is no HEAD of this format, or damaged.
    """
    scope, task_id = owner_of(item["PK"])
    values: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    try:
        for name, stored in item.items():
            if (form := _FIELDS.get(name)) is not None:
                values[name] = form.value(name, stored)
            elif name not in _DERIVED:
                rest[name] = stored
        values["mark"]
        if values["state"] in TaskState.keys():  # noqa: SIM118 - an enum of protobuf, no mapping
            values["state"] = TaskState.Value(values["state"])
        else:
            rest |= {name: item[name] for name in ("state", "needs") if name in item}
            values |= {"state": TaskState.TASK_STATE_UNSPECIFIED, "needs": NEWER}
        return Head(scope=scope, task_id=task_id, rest=rest, **values)
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableTaskError(_unreadable(item, task_id, error)) from error


def _unreadable(item: Mapping[str, Any], task_id: str, error: Exception) -> str:
    if "mark" not in item:
        return (
            f"HEAD of task {task_id} has the form of an earlier release: export the tasks with that"
            " release (`a2a-serverless export`), and start this one with a new table."
        )
    return f"HEAD of task {task_id} is damaged ({error}): restore its item, or delete the task."


def replaced(before: Head, after: Head, now_ms: int) -> Put:
    """Return the write that puts `after` in the place of `before`: the only one that changes HEAD.

    It is refused if another write came in between, or the task has expired. `after` has a mark of
    its own, which tells this write from all others.
    """
    same = are(incarnation=before.incarnation, mark=before.mark)
    return Put(item=head_item(after), when=[*same, lives(now_ms)])


def unchanged(head: Head) -> Update:
    """Return the write that lets a transaction fail if HEAD's task is gone; it changes nothing."""
    same = {"incarnation": head.incarnation}
    return Update(key=head_key(head.scope, head.task_id), values=same, when=are(**same))


def is_live(item: Mapping[str, Any], now_ms: int) -> bool:
    """Return True unless an item says that it has expired; the rest may be damaged."""
    expires_at = item.get("expires_at")
    return not isinstance(expires_at, int) or expires_at > now_ms // 1000


def lives(now_ms: int) -> Check:
    """Return the condition that an item has not expired."""
    return Check("expires_at", ">", now_ms // 1000)


def gone(now_ms: int) -> list[Check]:
    """Return the checks, of which one is enough, that an item has expired or is not there."""
    return [NEW, Check("expires_at", "<=", now_ms // 1000)]


def live_head(item: Mapping[str, Any] | None, now_ms: int) -> Head | None:
    """Return the HEAD that an item holds; None if there is no item, or the task has expired.

    One that has expired may lack all else: a deletion puts such a fence where there is no HEAD.
    """
    return head_of(item) if item and is_live(item, now_ms) else None


# -- EVENT: writing --------------------------------------------------------------------------------


def event_items(step: Step, body: bytes) -> list[Item]:
    """Return the parts of a commit, in order; at least one. `body` is its entries, encoded.

    Each part of a commit that changes the status says which state it led to. A filter on the
    table's stream sees one item at a time, in any order, and nothing of the body. Because every
    part has the state, the filter can pick the commits that need a delivery, and passes all of
    their parts: so one record comes after the whole commit. What belongs to the commit as a whole
    stands in the first part alone.
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
        Key(partition, event_sort(head.incarnation, head.version, part))._asdict()
        | common
        | {"body": body[start : start + PART_BYTES]}
        for part, start in enumerate(starts)
    ]
    parts[0] |= _of_the_commit(step)
    return parts


def sent_item(head: Head, key_digest: str) -> Item:
    """Return the item that says that a follow-up with this key has opened HEAD's latest turn."""
    partition = task_partition(head.scope, head.task_id)
    values = {"turn": head.version, "expires_at": seconds(head.expires_at)}
    return Key(partition, sent_sort(head.incarnation, key_digest))._asdict() | values


def _of_the_commit(step: Step) -> dict[str, str | int]:
    """Return the attributes that stand in a commit's first part alone."""
    head = step.head
    values: dict[str, str | int] = {"at": step.at}
    if step.worker:
        values["worker"] = step.worker
    if (ended := step.ended) is not None:
        values["ended"] = text_of(ended)
    if head.is_terminal and step.changes_status:
        values["took"] = max(0, step.at - head.created_at)
        if head.started_at:
            values["waited"] = max(0, head.started_at - head.created_at)
    if head.version == 1:
        created = status_key(head.created_at, head.task_id)
        values |= {"id_key": id_key(head.task_id), "created_key": created}
    return values


# -- EVENT: reading --------------------------------------------------------------------------------


FOLDED: Final = ("PK", "SK", "parts", "token", "body")
"""The attributes of an EVENT item from which a task is put together."""


class Commits:
    """Puts commits together from EVENT items that come in the order of their keys.

    It takes complete commits of one incarnation in unbroken version order after `version`, and
    nothing else: a Query beside a transaction may return a part of a commit, or a commit without
    the one before it. What does not fit is ignored; the reader asks again after `version`.
    """

    def __init__(self, incarnation: str, version: int, since: Head | None = None) -> None:
        self.incarnation = incarnation
        self.version = version
        self.since = since
        """HEAD that names the snapshot of `version`; None: there is none."""
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
            place = event_position(item["SK"])
            if place is not None and place[0] == self.incarnation:
                _, version, part = place
                yield {"parts": 1} | dict(item) | {"version": version, "part": part}

    def _complete(self) -> None:
        first = self._parts[0]
        try:
            record = Record(
                version=self.version + 1,
                entries=decode_entries(b"".join([part["body"] for part in self._parts])),
                token=first.get("token"),
                commit_id=first.get("commit_id", ""),
                at=first.get("at"),
                worker=first.get("worker", ""),
                ended=value_of(AttemptEnd, first["ended"]) if "ended" in first else None,
                trace=first.get("trace"),
            )
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{first['PK']} {first['SK']} is damaged ({error}): restore the item."
            raise UnreadableTaskError(msg) from error
        self.records.append(record)
        self.version += 1
        self._parts.clear()

"""The codec between tasks and items: HEAD, and the EVENT items of commits.

Expiry is kept in whole seconds, the unit of DynamoDB's time to live; `open_task` rounds a task's
expiry up to one, so that an item and its HEAD agree to the millisecond.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, replace
from functools import lru_cache, partial
from types import UnionType
from typing import Any, Final, NamedTuple, TypeVar

from a2a.types import TaskState

from a2a_serverless.errors import UnreadableTaskError
from a2a_serverless.storage.layout import (
    WOKEN,
    asleep_key,
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
from a2a_serverless.tasks.entries import StatusChanged, decode_entries
from a2a_serverless.tasks.fold import Record, Snapshot
from a2a_serverless.tasks.head import (
    ASLEEP,
    NEWER,
    AttemptEnd,
    CancelMark,
    Failure,
    Head,
    SnapshotName,
    Turn,
    Uncounted,
)
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.pace import PART_BYTES
from a2a_serverless.tasks.push import GivenUp, Push
from a2a_serverless.tasks.rules import Step
from a2a_serverless.tasks.usage import decoded, encoded

T = TypeVar("T")


def seconds(ms: int) -> int:
    """Return a time in milliseconds as whole seconds, rounded up, as `expires_at` has it."""
    return -(-ms // 1000)


# -- dataclasses -----------------------------------------------------------------------------------


class _Field(NamedTuple):
    """How a field is stored under its name: what types it has there, and what makes them."""

    stored: type | UnionType
    default: Any
    """The value that is not stored: every commit pays by the KB."""
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None
    """None: the field's value is stored as it is."""


def stored(value: object) -> dict[str, Any]:
    """Return a dataclass as it is stored, with what it has kept of a newer release."""
    values: dict[str, Any] = {}
    for name, field in _FORMS[type(value)].items():
        one = getattr(value, name)
        if one != field.default:
            values[name] = one if field.write is None else field.write(one)
    rest: Mapping[str, Any] = getattr(value, "rest", {})
    return {**values, **rest}


def value_in(form: type[T], values: Mapping[str, Any], **known: Any) -> T:
    """Return what `stored` has returned; `known` are fields that are not stored there.

    Fields that only a newer release knows are kept in `rest`, where the dataclass has it.

    Raises:
        ValueError, TypeError: it is not that; the error names the field.
    """
    rest: dict[str, Any] = {}
    known_fields = _FORMS[form]
    for name, one in values.items():
        field = known_fields.get(name)
        if field is None:
            rest[name] = one
            continue
        is_stored, _, _, read = field
        if not isinstance(one, is_stored):
            raise TypeError(f"{name} is of type {type(one).__name__}")
        try:
            known[name] = one if read is None else read(one)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from error
    return form(**known, **({"rest": rest} if form in _KEEPING else {}))


def text_of(value: object) -> str:
    """Return a dataclass as JSON."""
    return json.dumps(stored(value), separators=(",", ":"))


def value_of(form: type[T], text: str) -> T:
    """Return what `text_of` has written; raise as `value_in`."""
    return value_in(form, json.loads(text))


_TYPES: Final[Mapping[str, type | UnionType]] = {
    "int": int,
    "str": str,
    "bool": bool,
    "int | None": int | None,
    "str | None": str | None,
    "bytes | None": bytes | None,
    "Reason": str,
    "Dialect": str,
}
"""By the annotations of fields: the types of those that are stored as they are."""


def _turn_text(turn: Turn) -> str:
    """Return a turn as JSON; how its attempt has given it back does not repeat the token."""
    values = stored(turn)
    if turn.released is not None and turn.released.token == turn.token:
        del values["released"]["token"]
    return json.dumps(values, separators=(",", ":"))


@lru_cache
def _turn_in(text: str) -> Turn:
    """Return what `_turn_text` has written; raise as `value_in`.

    Most tasks of a list have one and the same: a first turn that is over.
    """
    values = json.loads(text)
    if (released := values.get("released")) is not None:
        values["released"] = {"token": values.get("token"), **released}
    return value_in(Turn, values)


def _fields_of(form: type, *apart: str, **others: _Field) -> dict[str, _Field]:
    """Return how a dataclass is stored; the fields `apart` are in no value of their own."""
    own = [one for one in fields(form) if one.name not in ("rest", "scope", *apart)]
    return {
        one.name: others.get(one.name) or _Field(_TYPES[str(one.type)], one.default) for one in own
    }


def _text(form: type, default: Any) -> _Field:
    return _Field(str, default, text_of, partial(value_of, form))


_EXPIRES_AT: Final = _Field(int, MISSING, seconds, (1000).__mul__)

_FORMS: Final[Mapping[type, Mapping[str, _Field]]] = {
    **{form: _fields_of(form) for form in (AttemptEnd, CancelMark, Failure, SnapshotName)},
    Uncounted: _fields_of(Uncounted),
    Turn: _fields_of(
        Turn,
        uncounted=_Field(dict, Uncounted(), stored, partial(value_in, Uncounted)),
        released=_Field(dict, None, stored, partial(value_in, AttemptEnd)),
    ),
    GivenUp: _fields_of(GivenUp, behind=_Field(list, MISSING, list, tuple)),
    Push: _fields_of(
        Push,
        *("incarnation", "config", "url_refusals", "is_open"),
        given_up=_text(GivenUp, None),
        expires_at=_EXPIRES_AT,
        mark=_Field(str, MISSING),
    ),
    Head: _fields_of(
        Head,
        "task_id",
        state=_Field(str, MISSING, TaskState.Name, TaskState.Value),
        expires_at=_EXPIRES_AT,
        replied=_Field(int, default=False, write=int, read=bool),  # a table has no truth values
        usage=_Field(str, (), encoded, decoded),
        turn=_Field(str, MISSING, _turn_text, _turn_in),
        snapshot=_text(SnapshotName, SnapshotName()),
        cancel=_text(CancelMark, None),
        failure=_text(Failure, Failure()),
        mark=_Field(str, MISSING),
    ),
}
_KEEPING: Final = frozenset({Head, Turn, Push})
"""The dataclasses with a `rest`."""


# -- HEAD ------------------------------------------------------------------------------------------


_DERIVED: Final = frozenset(
    {
        *("PK", "SK", "created_key", "due_key"),
        *("scope_key", "status_key", "context_key", "id_key"),
        *("line_key", "line_at", "attention_key", "attention_at"),
    }
)
"""The attributes that follow from the fields: keys of the item, and of the indexes."""


def head_item(head: Head) -> Item:
    """Return HEAD as an item: an attribute for each field, and the keys of the indexes."""
    shard, turn = shard_of(head.task_id), head.turn
    item: Item = {
        **head_key(head.scope, head.task_id)._asdict(),
        "scope_key": scope_key(head.scope, shard),
        "status_key": in_scope(head.scope, status_key(head.status_at, head.task_id)),
        "created_key": status_key(head.created_at, head.task_id),
        "id_key": hour_key(head.created_at, shard),
        **stored(head),
    }
    if "state" in head.rest and "needs" not in head.rest:  # only a newer release knows it
        del item["needs"]
    if not head.begins_context:
        item["context_key"] = context_key(head.scope, head.context_id)
    if head.due_at is not None:
        item["due_key"] = due_key(shard)
    if turn.parked in ("share", ASLEEP) or turn.has_share:
        principal = Scope(head.scope).principal
        share = share_key(principal) if turn.is_claimed else WOKEN
        line = asleep_key(principal) if turn.parked == ASLEEP else waiting_key(principal)
        item["line_key"] = share if turn.has_share else line
        item["line_at"] = line_place(principal, turn.waits_since, head.task_id)
    if (attention := head.attention) is not None:
        item |= attention_values(head.task_id, attention)
    return item


def head_of(item: Mapping[str, Any]) -> Head:
    """Return the HEAD that an item holds.

    What only a newer release knows is kept: attributes in `rest`, and a state as unspecified, in a
    HEAD that can be read and not written.

    Raises:
        UnreadableTaskError: the item is no HEAD of this format, or damaged.
    """
    scope, task_id = owner_of(item["PK"])
    values = {name: one for name, one in item.items() if name not in _DERIVED}
    newer: dict[str, Any] = {}
    state = item.get("state")
    if isinstance(state, str) and state not in _STATES:
        newer = {name: values[name] for name in ("state", "needs") if name in values}
        values |= {"state": _UNSPECIFIED, "needs": NEWER}
    try:
        if "mark" not in item or isinstance(item.get("turn"), int):
            raise UnreadableTaskError(
                f"HEAD of task {task_id} has the form of an earlier release: export the tasks with"
                " that release (`a2a-serverless export`), and start this one with a new table."
            )
        head = value_in(Head, values, scope=scope, task_id=task_id)
    except (TypeError, ValueError) as error:
        msg = f"HEAD of task {task_id} is damaged ({error}): restore its item, or delete the task."
        raise UnreadableTaskError(msg) from error
    return replace(head, rest={**head.rest, **newer}) if newer else head


_STATES: Final = frozenset(TaskState.keys())
_UNSPECIFIED: Final = TaskState.Name(TaskState.TASK_STATE_UNSPECIFIED)


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
    # DynamoDB deletes an expired item late, perhaps days later: until then this alone hides it.
    return Check("expires_at", ">", now_ms // 1000)


def gone(now_ms: int) -> list[Check]:
    """Return the checks, of which one is enough, that an item has expired or is not there."""
    # DynamoDB deletes an expired item late, perhaps days later: its key is free before.
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
    their parts: so one record comes after the whole commit.
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
    if StatusChanged in step.kinds:
        common["state"] = TaskState.Name(head.state)
    if step.trace is not None:
        common["trace"] = step.trace
    partition = task_partition(head.scope, head.task_id)
    parts = [
        Key(partition, event_sort(head.incarnation, head.version, part))._asdict()
        | common
        | {"body": body[start : start + PART_BYTES]}
        for part, start in enumerate(starts)
    ]
    # What belongs to the commit as a whole stands in its first part alone.
    first = parts[0]
    first["at"] = step.at
    if step.worker:
        first["worker"] = step.worker
    if step.ended is not None:
        first["ended"] = text_of(step.ended)
    if head.is_terminal and "state" in common:
        first["took"] = max(0, step.at - head.created_at)
        if head.started_at:
            first["waited"] = max(0, head.started_at - head.created_at)
        if head.code:
            first["code"] = head.code
    if head.version == 1:
        created = status_key(head.created_at, head.task_id)
        first |= {"id_key": id_key(head.task_id), "created_key": created}
    return parts


def sent_item(head: Head, key_digest: str) -> Item:
    """Return the item that says that a follow-up with this key has opened HEAD's latest turn."""
    partition = task_partition(head.scope, head.task_id)
    values = {"turn": head.version, "expires_at": seconds(head.expires_at)}
    return Key(partition, sent_sort(head.incarnation, key_digest))._asdict() | values


# -- EVENT: reading --------------------------------------------------------------------------------


FOLDED: Final = ("PK", "SK", "parts", "token", "body")
"""The attributes of an EVENT item from which a task is put together."""


class Commits:
    """Puts commits together from EVENT items that come in the order of their keys.

    It takes complete commits of one incarnation in unbroken version order after `version`, and
    nothing else: a Query beside a transaction may return a part of a commit, or a commit without
    the one before it. What does not fit is ignored; the reader asks again after `version`.
    """

    def __init__(
        self, incarnation: str, version: int, since: Head | Snapshot | None = None
    ) -> None:
        self.incarnation = incarnation
        self.version = version
        self.since = since
        """The snapshot of `version`, or HEAD that names it; None: there is none."""
        self.records: list[Record] = []
        self._parts: list[Mapping[str, Any]] = []

    def add(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Take the next items. A commit may go on in the next call, or begin anew."""
        for item in items:
            incarnation, version, part = event_position(item["SK"]) or ("", 0, 0)
            if incarnation != self.incarnation:
                # Of an earlier task under this id, whose items are not all removed yet.
                continue
            if part == 0:
                self._parts.clear()
            if version != self.version + 1 or part != len(self._parts):
                continue
            self._parts.append(item)
            if len(self._parts) == item.get("parts", 1):
                self._complete()

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

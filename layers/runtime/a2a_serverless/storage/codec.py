"""The codec between tasks and items: HEAD, and the EVENT items of commits.

Expiry is kept in whole seconds, the unit of DynamoDB's time to live; `open_task` rounds a task's
expiry up to one, so that an item and its HEAD agree to the millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import UnionType
from typing import Any, Final, cast

from a2a.types import TaskState

from a2a_serverless.errors import UnreadableTaskError
from a2a_serverless.storage.layout import (
    ATTENTION,
    WAITING,
    WOKEN,
    attention_in,
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
from a2a_serverless.storage.table import NEW, Check, Item, Key, Update, When, are
from a2a_serverless.tasks.entries import CRITICAL, Entry, Unknown, decode_entries
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import (
    TERMINAL,
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
from a2a_serverless.tasks.usage import Used, decoded, encoded

Forms = Mapping[str, type | UnionType]
"""The types that attributes have, see the page `format`."""


def misfits_of(values: Mapping[str, Any], forms: Forms) -> set[str]:
    """Return the names of the attributes whose form no release writes."""
    return {n for n, form in forms.items() if n in values and not isinstance(values[n], form)}


def seconds(ms: int) -> int:
    """Return a time in milliseconds as whole seconds, rounded up, as `expires_at` has it."""
    return -(-ms // 1000)


# -- HEAD ------------------------------------------------------------------------------------------


def head_item(head: Head) -> Item:
    """Return HEAD as an item. Defaults are left out: every commit pays by the KB."""
    shard = shard_of(head.task_id)
    values: dict[str, str | int | bytes | None] = {
        "scope_key": scope_key(head.scope, shard),
        "status_key": in_scope(head.scope, status_key(head.status_at, head.task_id)),
        "created_key": status_key(head.created_at, head.task_id),
        "id_key": hour_key(head.created_at, shard),
        "expires_at": seconds(head.expires_at),
        "incarnation": head.incarnation,
        "version": head.version,
        "state": state_name(head.state),
        "status": head.status,
        "context_id": head.context_id,
        "turn": head.turn,
        "turn_base": head.turn_base,
        "sends": head.sends,
        "generation": head.generation,
    }
    if not head.begins_context:
        values["context_key"] = context_key(head.scope, head.context_id)
    if head.metadata != b"":
        values["metadata"] = head.metadata
    if head.due_at is not None:
        values |= {"due_key": due_key(shard), "due_at": head.due_at}
    for name in _OPTIONAL:
        if value := getattr(head, name):
            values[name] = value
    if head.replied:
        values["replied"] = 1
    values |= _noted(head)
    return head_key(head.scope, head.task_id)._asdict() | values


def _noted(head: Head) -> dict[str, str | int | bytes | None]:
    """Return the attributes of HEAD that say what they belong to: an attempt, a turn, a task."""
    values: dict[str, str | int | bytes | None] = {}
    if head.cancel is not None:
        values |= {"cancel_at": head.cancel.at, "cancel_by": head.cancel.by}
    if head.released is not None:
        values |= _released_values(head.released)
    if head.alone:
        values["alone_for"] = head.turn
    if head.spared != Spared():
        values |= spared_values(head, head.spared)
    if head.usage:
        values["usage"] = encoded(head.usage)
    if head.snapshot.version:
        values |= _snapshot_values(head.snapshot)
    if head.left or head.woken or head.wakes:
        values |= _line_values(head)
    return values | _attention_values(head)


def _attention_values(head: Head) -> dict[str, str]:
    noted = head.attention
    return {} if noted is None else attention_values(head.task_id, noted)


def _snapshot_values(snapshot: SnapshotName) -> dict[str, str | int]:
    """Return the attributes that `_snapshot_of` reads."""
    return {
        "snapshot_at": snapshot.version,
        "snapshot": snapshot.digest,
        "snapshot_bytes": snapshot.length,
        "snapshot_size": snapshot.size,
    }


def _line_values(head: Head) -> dict[str, str | int | bytes | None]:
    """Return the attributes of a HEAD whose turn is left, or was woken."""
    values: dict[str, str | int | bytes | None] = {"left_turn": head.turn}
    if head.left or head.left_at:
        values["left_at"] = head.left_at
    if head.left:
        values["left"] = head.left
    if head.wakes:
        values["wakes"] = head.wakes
    person = Scope(head.scope).person
    if head.left == "share" or head.woken:
        has_share = share_key(person) if head.is_claimed else WOKEN
        values["line_key"] = has_share if head.woken else waiting_key(person)
        values["line_at"] = line_place(person, head.left_at, head.task_id)
    return values


_LINE: Final = ("left", "left_at", "line_key", "line_at")


def _released_values(end: AttemptEnd) -> dict[str, str | int | bytes | None]:
    """Return the attributes of HEAD that say that an attempt has given its turn back."""
    always: dict[str, str | int] = {
        "released_id": end.correlation_id,
        "released_until": end.until,
    }
    return {**_end_values(end, "released"), **always}


def _end_values(end: AttemptEnd, name: str) -> dict[str, str | int]:
    """Return the attributes that `_end_of` reads; those that say nothing are left out."""
    values: dict[str, str | int] = {name: end.token, f"{name}_reason": end.reason}
    if end.correlation_id:
        values[f"{name}_id"] = end.correlation_id
    if end.at is not None:
        values[f"{name}_at"] = end.at
    if end.until:
        values[f"{name}_until"] = end.until
    if end.place or end.message:
        values[f"{name}_error"] = f"{end.correlation_id}\n{end.place}\n{end.message}"
    return values


def spared_values(head: Head, spared: Spared) -> dict[str, str | int | bytes | None]:
    """Return the attributes of HEAD that count the starts which use up no attempt of its turn."""
    return {
        "spared_for": head.turn,
        "spared_faults": spared.faults,
        "spared_waited": spared.waited,
        "spared_interruptions": spared.interruptions,
    }


_OPTIONAL: Final = (
    "checkpoint",
    "parked",
    "next_turn",
    "finished_turn",
    "token",
    "attempts",
    "key_digest",
    "message_digest",
    "content_digest",
    "needs",
    "size",
    "serial_from",
    "started_at",
)
"""Attributes of HEAD that an item has only if they differ from the default."""


def head_of(item: Mapping[str, Any]) -> Head:
    """Return the HEAD that an item holds.

    A task in a state that this release does not know is shown as unspecified, and cannot be
    written. If an attribute has a form that no release writes, it depends on the attribute. One
    that only informs counts as missing. A copy of status or metadata counts as being in the log
    alone. With any other the task can be read, but not written.

    Raises:
        UnreadableTaskError: an attribute that every release writes is missing or of another form,
            or one that the sweeper's condition names is of another form.
    """
    values = dict(item)
    scope, task_id = owner_of(values["PK"])
    if missing := [name for name in REQUIRED if name not in values]:
        msg = f"HEAD of task {task_id} has no {' and no '.join(missing)}: it was stored in part."
        raise UnreadableTaskError(msg)
    misfits = misfits_of(values, HEAD_FORMS) | ({"generation"} - values.keys())
    for name in misfits & _DEMANDED:
        msg = f"HEAD of task {task_id} has a {name} of a form that no release writes."
        raise UnreadableTaskError(msg)
    values = {name: value for name, value in values.items() if name not in misfits}
    values |= dict.fromkeys(misfits & _COPIES.keys())
    if misfits & _DECIDING.keys():
        values["needs"] = _NEVER
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
        generation=values.get("generation", 0),
        cancel=CancelMark(at=values["cancel_at"], by=values.get("cancel_by", ""))
        if "cancel_at" in values
        else None,
        released=_end_of(values, "released"),
        spared=_spared_of(values),
        snapshot=_snapshot_of(values),
        alone=values.get("alone_for") == values["turn"],
        usage=_usage_of(values),
        failure=_failure_of(values),
        **_line_of(values),
        **{name: values[name] for name in _OPTIONAL if name in values}
        | ({} if is_known else {"needs": _NEVER}),
    )


def _snapshot_of(values: Mapping[str, Any]) -> SnapshotName:
    return SnapshotName(
        version=values.get("snapshot_at", 0),
        digest=values.get("snapshot", ""),
        length=values.get("snapshot_bytes", 0),
        size=values.get("snapshot_size", 0),
    )


def _failure_of(values: Mapping[str, Any]) -> Failure:
    noted = attention_in(values.get("attention_at", ""))
    if noted is None or noted.kind not in ("failed", "rejected"):
        return Failure()
    return Failure(reason=noted.reason, correlation_id=noted.correlation_id)


def _line_of(values: Mapping[str, Any]) -> dict[str, Any]:
    if values.get("left_turn") != values["turn"]:
        return {}
    is_woken = not values.get("line_key", WAITING).startswith(WAITING)
    left, left_at = values.get("left", ""), values.get("left_at", 0)
    wakes = values.get("wakes", 0)
    return {"left": left, "left_at": left_at, "woken": is_woken, "wakes": wakes}


def _usage_of(values: Mapping[str, Any]) -> Used:
    try:
        return decoded(values["usage"]) if "usage" in values else ()
    except (ValueError, TypeError, RecursionError):  # it only informs
        return ()


def _spared_of(values: Mapping[str, Any]) -> Spared:
    if values.get("spared_for") != values["turn"]:
        return Spared()
    return Spared(
        faults=values.get("spared_faults", 0),
        waited=values.get("spared_waited", 0),
        interruptions=values.get("spared_interruptions", 0),
    )


def _end_of(values: Mapping[str, Any], name: str) -> AttemptEnd | None:
    """Return the attempt's end in the attributes `<name>`, `<name>_reason` and so on."""
    if name not in values:
        return None
    reference = values.get(f"{name}_id", "")
    of, place, message = f"{values.get(f'{name}_error', '')}\n\n".split("\n", 2)
    is_its = of == reference  # else it was left by an earlier attempt
    return AttemptEnd(
        token=values[name],
        reason=values.get(f"{name}_reason", ""),
        correlation_id=reference,
        at=values.get(f"{name}_at"),
        until=values.get(f"{name}_until", 0),
        place=place if is_its else "",
        message=message.strip("\n") if is_its else "",
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

_DECIDING: Final[Forms] = {
    "due_at": int,
    "checkpoint": int,
    "sends": int,
    "replied": int,
    "next_turn": int,
    "finished_turn": int,
    "token": str,
    "attempts": int,
    "key_digest": str,
    "message_digest": str,
    "content_digest": str,
    "needs": int,
    "generation": int,
    "cancel_at": int,
}
"""Attributes on which a write depends: if one is damaged, the task can be read and not written."""

_COPIES: Final[Forms] = {"status": bytes | None, "metadata": bytes | None}

_INFORMING: Final[Forms] = {
    "parked": int,
    "size": int,
    "snapshot_at": int,
    "snapshot": str,
    "snapshot_bytes": int,
    "snapshot_size": int,
    "usage": str,
    "cancel_by": str,
    "released": str,
    "released_reason": str,
    "released_id": str,
    "released_at": int,
    "released_until": int,
    "released_error": str,
    "spared_for": int,
    "spared_faults": int,
    "spared_waited": int,
    "spared_interruptions": int,
    "alone_for": int,
    "serial_from": int,
    "started_at": int,
    "left": str,
    "left_turn": int,
    "left_at": int,
    "wakes": int,
    "line_key": str,
    "attention_at": str,
}
"""Attributes that only inform: if one is damaged, the task is run and written without it."""

HEAD_FORMS: Final[Forms] = {**REQUIRED, **_DECIDING, **_COPIES, **_INFORMING}
"""The forms of all attributes that are read."""

_DEMANDED: Final = frozenset({*REQUIRED, "due_at", "sends"})

_UNKNOWN_STATE: Final = "TASK_STATE_UNSPECIFIED"
_NEVER: Final = 1_000_000
"""A format that no release of this code will know: the item can be read and not written."""


def _time_of(sort_key: str) -> int:
    return int(sort_key.split("#")[-2])


# -- HEAD: updates, with the condition under which each is stored ------------------------------

# The explorer in tests/model drives these values: what a process wrote late, or without having read
# what others did, is refused here.

_NO_CANCEL: Final = Check("cancel_at", "absent")
"""No cancel was requested: once one was, its deadline is the due time, and only an end moves it."""


def committed(before: Head, after: Head) -> Update:
    """Return the update of a commit: only what changes is sent.

    The state is part of the condition, so that no transition leaves a terminal state, even if HEAD
    was written without counting its version up. A request to cancel is part of it too, because it
    does not move the version (as in `is_still`).
    """
    old, new = head_item(before), head_item(after)
    changed = {name: value for name, value in new.items() if name not in old or old[name] != value}
    same = ("incarnation", "version", "state")
    when: list[Check | Sequence[Check]] = [*are(**{name: old[name] for name in same})]
    if before.cancel is None:
        when.append(_NO_CANCEL)
    goes_on = after.turn_is_open and after.turn == before.turn
    if goes_on and (after.wakes > before.wakes or after.token != before.token):
        # A copy that was sent since HEAD was read has the number that a hand-over would send, and
        # is why the turn needs attention.
        when.append(_has_sends(before))
    removed = {name: None for name in old if name not in new}
    if after.token != before.token or not after.turn_is_open:
        # The turn may have been left since HEAD was read, which is no commit.
        removed |= {name: None for name in (*_LINE, *ATTENTION) if name not in new}
        changed |= {name: new[name] for name in ATTENTION if name in new}
    return Update(
        key=head_key(before.scope, before.task_id),
        values=changed,
        remove=[*removed],
        when=when,
    )


def canceled(marked: Head) -> Update:
    """Return the update that requests a cancel: refused once there is a request, or an end."""
    item = head_item(marked)
    is_open = [Check("state", "<>", state_name(state)) for state in TERMINAL]
    return Update(
        key=head_key(marked.scope, marked.task_id),
        values={name: item[name] for name in _CANCELED if name in item},
        when=[*are(incarnation=marked.incarnation), *is_open, _NO_CANCEL],
    )


def named(before: Head, after: Head) -> Update:
    """Return the update that names HEAD's snapshot: refused if HEAD has not the same one as before.

    So the writer knows which one it has replaced.
    """
    replaced = before.snapshot.version
    return Update(
        key=head_key(after.scope, after.task_id),
        values=_snapshot_values(after.snapshot),
        when=[
            *are(incarnation=after.incarnation),
            Check("snapshot_at", "=", replaced) if replaced else Check("snapshot_at", "absent"),
        ],
    )


def postponed(head: Head, *, due_at: int, sends: int) -> Update:
    """Return the update of the due time by a process outside of any attempt."""
    is_same = are(incarnation=head.incarnation, version=head.version, due_at=head.due_at)
    return Update(
        key=head_key(head.scope, head.task_id),
        values={"due_at": due_at, "sends": sends} | _attention_values(replace(head, sends=sends)),
        when=[*is_same, _has_sends(head), _NO_CANCEL],
    )


def _has_sends(head: Head) -> list[Check]:
    """Return the condition that no copy was sent since: each gets a number of its own."""
    checks = [Check("sends", "=", head.sends)]
    if head.sends == 0:  # a HEAD that was stored in part may lack it, and is read with 0
        checks.append(Check("sends", "absent"))
    return checks


def left(before: Head, after: Head) -> Update:
    """Return the update that leaves an unclaimed turn: refused if HEAD has changed since."""
    is_same = are(incarnation=before.incarnation, version=before.version)
    was_left = Check("left", "=", before.left) if before.left else Check("left", "absent")
    when: When = [*is_same, was_left, _has_sends(before), _NO_CANCEL]
    return _in_line(after, {"due_at": after.due_at}, when)


def woken(before: Head, after: Head) -> Update:
    """Return the update that wakes a left turn: refused if another has, or HEAD has changed."""
    values = {"due_at": after.due_at, "sends": after.sends}
    is_same = are(incarnation=before.incarnation, version=before.version, left=before.left)
    return _in_line(after, values, [*is_same, _has_sends(before), _NO_CANCEL])


def _in_line(head: Head, values: Mapping[str, Any], when: When) -> Update:
    values = {**values, **_line_values(head), **_attention_values(head)}
    removed = [name for name in (*_LINE, *ATTENTION) if name not in values]
    return Update(key=head_key(head.scope, head.task_id), values=values, remove=removed, when=when)


def noted(head: Head, token: str, values: Mapping[str, Any]) -> Update:
    """Return an update by the attempt with `token`: refused when it does not own the open turn.

    Otherwise a renewal that comes late would put a finished turn back into the due index, or
    postpone the turn of another attempt.
    """
    when = are(incarnation=head.incarnation, token=token)
    return Update(key=head_key(head.scope, head.task_id), values=values, when=when)


def given_back(
    head: Head, end: AttemptEnd, values: Mapping[str, Any], *, starts_over: bool = False
) -> Update:
    """Return the update that notes that the attempt `end.token` has given its turn back.

    The turn has no share any more: nothing works on it. `starts_over`: its records do not count.
    Refused as `renewed`, or if the turn was left: such a turn waits on.
    """
    waits = _attention_values(replace(head, released=end, left="")) if end.until else {}
    update = _held(head, end.token, {**values, **_released_values(end), **waits})
    removed = (*_LINE, "checkpoint") if starts_over else _LINE
    return replace(update, remove=removed, when=[*update.when, Check("left", "absent")])


def renewed(head: Head, token: str) -> Update:
    """Return the update of a lease: refused as `noted`, or if the attempt has given the turn back.

    A turn that sleeps would be due at another time.
    """
    return _held(head, token, {})


def _held(head: Head, token: str, values: Mapping[str, Any]) -> Update:
    """Return `noted` for an attempt that has not given its turn back."""
    update = noted(head, token, values)
    is_held: When = [[Check("released", "absent"), Check("released", "<>", token)]]
    return replace(update, when=[*update.when, *is_held])


def unless_canceled(update: Update) -> Update:
    """Return an update that is refused once a cancel was requested."""
    return replace(update, when=[*update.when, _NO_CANCEL])


_CANCELED: Final = ("cancel_at", "cancel_by", "due_key", "due_at")


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
    values: dict[str, str | int] = {"at": step.at, "base": step.base}
    if step.worker:
        values["worker"] = step.worker
    if (ended := step.ended) is not None:
        values |= _end_values(ended, "ended")
    if head.is_terminal and step.changes_status:
        values["took"] = max(0, step.at - head.created_at)
        if head.started_at:
            values["waited"] = max(0, head.started_at - head.created_at)
    if head.version == 1:
        created = status_key(head.created_at, head.task_id)
        values |= {"id_key": id_key(head.task_id), "created_key": created}
    return values


EVENT_FORMS: Final[Forms] = {
    "parts": int,
    "commit_id": str,
    "token": str,
    "trace": str,
    "at": int,
    "base": int,
    "worker": str,
    "ended": str,
    "ended_reason": str,
    "ended_id": str,
    "ended_at": int,
    "ended_until": int,
    "ended_error": str,
}
"""The forms of attributes. An attribute of another form counts as missing, except `parts`."""


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
                values = dict(item)
                for name in misfits_of(values, EVENT_FORMS) - {"parts"}:
                    del values[name]
                yield {"parts": 1} | values | {"version": version, "part": part}

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
    """Return the entries of a commit; if a part has no body, a single one that cannot be read."""
    body = b""
    for part in parts:
        if not isinstance(part.get("body"), bytes):
            return (Unknown(_MISSING, CRITICAL, b""),)
        body += part["body"]
    return decode_entries(body)


_MISSING: Final = b"?"
"""The kind of the entry that stands for entries that were not stored."""

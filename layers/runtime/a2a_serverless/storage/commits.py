"""The codec between commits and EVENT items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from a2a_serverless.storage.attributes import Forms, misfits_of, seconds
from a2a_serverless.storage.codec import end_of, end_values
from a2a_serverless.storage.layout import (
    event_position,
    event_sort,
    id_key,
    task_partition,
)
from a2a_serverless.storage.listing import status_key
from a2a_serverless.storage.table import Item, Key
from a2a_serverless.tasks.entries import CRITICAL, Entry, Unknown, decode_entries
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import state_name
from a2a_serverless.tasks.rules import Step

PART_BYTES: Final = 340_000
"""The longest body of one EVENT item: with its keys it stays under 350 KB."""


# -- writing ---------------------------------------------------------------------------------


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


def _of_the_commit(step: Step) -> dict[str, str | int]:
    """Return the attributes that stand in a commit's first part alone."""
    head = step.head
    values: dict[str, str | int] = {"at": step.at, "base": step.base}
    if step.worker:
        values["worker"] = step.worker
    if (ended := step.ended) is not None:
        values |= end_values(ended, "ended")
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
}
"""The forms of attributes. An attribute of another form counts as missing, except `parts`."""


# -- reading ---------------------------------------------------------------------------------


FOLDED: Final = ("PK", "SK", "parts", "token", "body")
"""The attributes of an EVENT item from which a task is put together."""


class Commits:
    """Puts commits together from EVENT items that come in the order of their keys.

    It takes complete commits of one incarnation in unbroken version order after `version`, and
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
                ended=end_of(first, "ended"),
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

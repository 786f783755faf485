"""The events of a task as subscribers get them, with the borders between attempts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from a2a.types import TaskStatusUpdateEvent
from google.protobuf.message import Message as AnyMessage

from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Restarted,
    StatusChanged,
    Unknown,
    content_of,
    copied,
)
from a2a_serverless.tasks.fold import Cursor, Event, Fold, Record, events_of
from a2a_serverless_tools.console.paging import Key, LogFilter, Place, Window, window
from a2a_serverless_tools.console.parts import without_signatures
from a2a_serverless_tools.operate.inspector import Show, as_response
from a2a_serverless_tools.operate.timeline import Timeline, discards_of, unknown_entry

_Kind: TypeAlias = Literal["message", "status", "artifact", "attempt", "damage"]

KINDS: Final[Mapping[str, str]] = {
    "message": "status with a message",
    "status": "status without one",
    "artifact": "artifact",
}
"""The kinds of events, and how a filter calls them."""
MOST_OF_AN_EVENT: Final = 10_000
"""Characters of one event that a page shows: a chunk may have megabytes."""
_FIRST: Final = 10**9
"""Subtracted from a row's number, so that it stands before the events of its commit."""
_SECOND: Final = 2
"""The turn from which on borders name the turn."""
_AROUND: Final = 400
"""Characters of an event beside its content."""


@dataclass(slots=True, kw_only=True)
class _Row:
    """An event, the border before an attempt, or a place that cannot be read."""

    kind: _Kind
    key: Key
    at: int | None
    changed: int
    """The newest version that has changed what is shown."""
    source: Record | Event | None = None
    """An event; or the entry that makes it, as a record of its own."""
    title: str = ""
    worker: str = ""
    discards: tuple[_Row, ...] = ()
    """The events that an attempt takes back."""
    is_discarded: bool = False
    cursor: str = ""
    text: str = ""
    """What a page shows of an event: JSON."""
    is_cut: bool = False
    is_same: bool = False
    """The browser has it as it is: its place alone is sent."""

    @property
    def id(self) -> str:
        """Return what names it on a page."""
        return f"v{self.key[0]}-{self.key[1]}"

    @property
    def size(self) -> int:
        """Return about how many characters it takes on a page."""
        content = self.source
        if isinstance(content, Record):
            content = content_of(content.entries[0])  # type: ignore[assignment]
        own = content.ByteSize() if isinstance(content, AnyMessage) else 0
        return min(_AROUND + own, MOST_OF_AN_EVENT)

    def event(self, fold: Fold) -> Event | None:
        """Return the event as the caller's own; `fold` is any one of the task."""
        if isinstance(self.source, Record):
            return next(events_of(self.source, fold))
        return None if self.source is None else copied(self.source)


async def events(
    seen: Timeline, place: Place, which: LogFilter, show: Show, *, since: int = 0
) -> Window[_Row]:
    """Return a page of the events of a task, the newest first, as far as its log can be read.

    Borders between attempts are shown if all events are. `since` is the version of which the
    browser has this page; 0: none.
    """
    rows = await asyncio.to_thread(_rows_of, seen)
    fold = seen.fold()

    def text_of(row: _Row) -> str:
        return _json(row.event(fold))

    shown = await asyncio.to_thread(window, rows, place, which, text_of)
    for row in shown.entries:
        row.is_same = row.changed <= since
        event = None if row.is_same else row.event(fold)
        if event is not None:
            await show(event)
            without_signatures(event)
            text = _json(event)
            row.cursor = str(Cursor(*row.key, seen.tag))
            row.text, row.is_cut = text[:MOST_OF_AN_EVENT], len(text) > MOST_OF_AN_EVENT
    return replace(shown, entries=shown.entries[::-1])


def _json(event: Event | None) -> str:
    return "" if event is None else json.dumps(as_response(event), indent=2, ensure_ascii=False)


def _rows_of(seen: Timeline) -> list[_Row]:
    """Return the rows of a log in their order, which is that of the keys."""
    attempts = {one.first: (turn, one) for turn in seen.turns for one in turn.attempts}
    discards = discards_of(seen.records)
    fold = seen.fold() if discards else None
    rows: dict[int, list[_Row]] = {}
    for record in seen.records:
        own = rows.setdefault(record.version, [])
        if fold is not None:
            fold.add(record, skips=True)
        if record.version in attempts:
            turn, attempt = attempts[record.version]
            name = f"Attempt {attempt.number or '?'}"
            title = name if turn.number < _SECOND else f"Turn {turn.number}, {name.lower()}"
            gone = [row for version in discards.get(record.version, ()) for row in rows[version]]
            own.append(_border(record, title, attempt.worker, gone))
        own += _events_in(record, fold)
    return sorted((row for own in rows.values() for row in own), key=lambda row: row.key)


def _border(record: Record, title: str, worker: str, gone: Sequence[_Row]) -> _Row:
    """Return the border before an attempt; note in the events that it takes back that it does."""
    discards = tuple(row for row in gone if row.kind in KINDS)
    for row in discards:
        row.is_discarded, row.changed = True, record.version
    return _Row(
        kind="attempt",
        key=(record.version, -1),
        at=record.at,
        changed=record.version,
        title=title,
        worker=worker,
        discards=discards,
    )


def _events_in(record: Record, fold: Fold | None) -> list[_Row]:
    """Return the events of a commit, and what of it this release cannot read.

    `fold` includes the commit; None: no commit of the task is a restart.
    """
    rows: list[_Row] = []
    sources: list[Record | Event] = []
    for entry in record.entries:
        if isinstance(entry, Restarted) and fold is not None:
            alone = Record(version=record.version, entries=(entry,))
            sources += events_of(alone, fold)
        elif isinstance(entry, StatusChanged | ArtifactWritten):
            sources.append(Record(version=record.version, entries=(entry,)))
        elif isinstance(entry, Unknown):
            title = unknown_entry(record.version, entry.kind)
            rows.append(
                _Row(
                    kind="damage",
                    key=(record.version, len(rows) - _FIRST),
                    at=record.at,
                    changed=record.version,
                    title=title,
                )
            )
    for index, source in enumerate(sources):
        rows.append(
            _Row(
                kind=_kind_of(source),
                key=(record.version, index),
                at=record.at,
                changed=record.version,
                source=source,
            )
        )
    return rows


def _kind_of(source: Record | Event) -> _Kind:
    entry = source.entries[0] if isinstance(source, Record) else source
    if isinstance(entry, StatusChanged | TaskStatusUpdateEvent):
        return "message" if entry.status.HasField("message") else "status"
    return "artifact"

"""A task's log as a conversation: messages, artifacts as they are now, and statuses between."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

from a2a.types import Artifact, Message, Role

from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    MessageAppended,
    Replied,
    Restarted,
    StatusChanged,
    TurnOpened,
    Unknown,
    copied,
)
from a2a_serverless.tasks.fold import Record, joined
from a2a_serverless.tasks.head import ASLEEP, HANDOVER, INTERRUPTED, TERMINAL, plain_state
from a2a_serverless.tasks.progress import Progress, progress_in
from a2a_serverless_tools.console.paging import MOST_OF_ALL, Key, LogFilter, Place, Window, window
from a2a_serverless_tools.console.parts import (
    PER_PART,
    Content,
    ShownPart,
    short,
    shown_parts,
    size_of,
    text_of,
)
from a2a_serverless_tools.operate.inspector import Show
from a2a_serverless_tools.operate.timeline import Timeline, discards_of, unknown_entry
from a2a_serverless_tools.operate.view import discarded

_Kind: TypeAlias = Literal["user", "agent", "artifact", "progress", "state", "between", "damage"]

SPEAKERS: Final = {
    "user": "the caller's messages",
    "agent": "the agent's messages",
    "artifact": "artifacts",
}
"""The kinds that a filter chooses, and how it calls them."""
_STEP: Final = 2
"""How far apart the keys of two entries of a commit are: a status may make two of a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Something that was said, or happened, at a place of the log."""

    kind: _Kind
    key: Key
    at: int | None
    changed: int
    """The newest version that has changed what is shown."""
    content: Content | None = None
    """Of an artifact: as the whole log has made it."""
    title: str = ""
    progress: Progress | None = None
    is_same: bool = False
    """The browser has it as it is: its place alone is sent."""
    parts: tuple[ShownPart, ...] = ()
    is_short: bool = False
    """Not all of its content is shown: the page has enough without it."""

    @property
    def id(self) -> str:
        """Return what names it on a page, and its files in URLs."""
        return f"e{self.key[0]}-{self.key[1]}"

    @property
    def size(self) -> int:
        """Return about how many characters it takes on a page."""
        return PER_PART + (0 if self.content is None else size_of(self.content.parts))


async def conversation(
    seen: Timeline, place: Place, which: LogFilter, show: Show, *, since: int = 0
) -> Window[_Entry]:
    """Return a page of the conversation of a task, as far as its log can be read.

    What a restart has taken back is not in it: a line says which attempt was discarded, and the
    events have what it said. Artifacts stand where they were begun, and have what they have now. Of
    a turn's progress the last one is shown, as a bar. `since` is the version of which the browser
    has this page; 0: none.
    """
    entries = await asyncio.to_thread(_entries_of, seen)
    shown = await asyncio.to_thread(window, entries, place, which, _text_of)
    left, said = MOST_OF_ALL, list[_Entry]()
    for entry in reversed(shown.entries):  # of the newest all, until the page has enough
        one = replace(entry, is_same=entry.changed <= since)
        if entry.content is not None and not one.is_same:
            content = copied(entry.content)
            await show(content)
            one, left = await asyncio.to_thread(_with_parts, one, content, left - PER_PART)
        said.append(one)
    return replace(shown, entries=said[::-1])


def content_of(seen: Timeline, entry_id: str) -> Content | None:
    """Return what an entry of the conversation says, to be shown; None if there is no such one."""
    found = (one.content for one in _entries_of(seen) if one.id == entry_id)
    content = next(found, None)
    return None if content is None else copied(content)


def _with_parts(entry: _Entry, content: Content, left: int) -> tuple[_Entry, int]:
    """Return an entry with its parts until the page has enough, and how much it may still have."""
    more, parts = shown_parts(content.parts), list[ShownPart]()
    while left >= 0 and (part := next(more, None)) is not None:
        parts.append(part)
        left -= part.length
    return replace(entry, parts=tuple(parts), is_short=next(more, None) is not None), left


def _text_of(entry: _Entry) -> str:
    return "\n".join((entry.title, text_of(entry.content)))


def _entries_of(seen: Timeline) -> list[_Entry]:
    """Return the entries of a log in their order."""
    walk = _Walk(seen)
    for record in seen.records:
        walk.add(record)
    return walk.entries()


class _Walk:
    """Goes through a log, and has an entry for each thing that counts in the end."""

    def __init__(self, seen: Timeline) -> None:
        discards = discards_of(seen.records)
        self._discarded = {v: at for at, versions in discards.items() for v in versions}
        """By the version of what was taken back: the version of the restart."""
        self._before = {
            following.first: before
            for turn in seen.turns
            for before, following in pairwise(turn.attempts)
        }
        """The attempt before another one, by the version of the other one's claim."""
        fold = seen.fold()
        for record in seen.records:
            fold.add(record, skips=True)
        self._artifacts: dict[str, Artifact] = fold.artifacts
        self._lost: set[int] = set()
        """The restarts that have taken back what an attempt had said."""
        self._begun: dict[str, Key] = {}
        self._entries: dict[Key, _Entry] = {}
        self._bar: Key | None = None
        """The entry with the progress of the turn."""

    def entries(self) -> list[_Entry]:
        """Return what stands, in the order of the log."""
        return [self._entries[key] for key in sorted(self._entries)]

    def add(self, record: Record) -> None:
        """Add what a record says, as far as no restart takes it back."""
        is_gone = record.token is not None and record.version in self._discarded
        for number, entry in enumerate(record.entries):
            key = (record.version, number * _STEP)
            match entry:
                case Restarted():
                    self._restart(key, record)
                case Unknown(kind):
                    title = unknown_entry(record.version, kind)
                    self._put("damage", key, record, title=title)
                case ArtifactWritten():
                    self._artifact(entry, key, record, is_gone=is_gone)
                case StatusChanged(status) if is_gone and not status.HasField("message"):
                    pass
                case _ if is_gone:
                    self._lost.add(self._discarded[record.version])
                case TurnOpened(request):
                    self._bar = None
                    self._message(request.message, key, record)
                case MessageAppended(message) | Replied(message):
                    self._message(message, key, record)
                case StatusChanged():
                    self._status(entry, key, record)
                case _:
                    pass

    def _put(self, kind: _Kind, key: Key, record: Record, **values: Any) -> None:
        entry = _Entry(kind=kind, key=key, at=record.at, changed=record.version, **values)
        self._entries[key] = entry

    def _message(self, message: Message, key: Key, record: Record) -> None:
        kind: _Kind = "user" if message.role == Role.ROLE_USER else "agent"
        self._put(kind, key, record, content=message)

    def _status(self, change: StatusChanged, key: Key, record: Record) -> None:
        """Add a status's message, the bar instead of the turn's earlier one, and the task's end."""
        status, progress = change.status, progress_in(change.metadata)
        if progress is not None:
            if self._bar is not None:
                self._entries.pop(self._bar, None)
            self._bar = key
            self._put("progress", key, record, content=status.message, progress=progress)
        elif status.HasField("message"):
            self._message(status.message, key, record)
        if status.state in TERMINAL | INTERRUPTED:
            end = (key[0], key[1] + 1)
            self._put("state", end, record, title=plain_state(status.state))

    def _artifact(self, write: ArtifactWritten, key: Key, record: Record, *, is_gone: bool) -> None:
        """Add an artifact where what stands of it was begun; each write of it changes it."""
        name = write.artifact.artifact_id
        if is_gone:
            self._lost.add(self._discarded[record.version])
            if (begun := self._begun.get(name)) is not None:
                changed = max(self._entries[begun].changed, self._discarded[record.version])
                self._entries[begun] = replace(self._entries[begun], changed=changed)
            return
        if name not in self._begun:
            self._begun[name] = key
            title = short(write.artifact.name or name)
            content = joined(self._artifacts[name])
            self._put("artifact", key, record, title=title, content=content)
        place = self._begun[name]
        changed = max(self._entries[place].changed, record.version)
        self._entries[place] = replace(self._entries[place], changed=changed)

    def _restart(self, key: Key, record: Record) -> None:
        """Say which attempt is over, and whether what it said is discarded."""
        before, is_said = self._before.get(record.version), record.version in self._lost
        if is_said or not (before and before.reason in (ASLEEP, HANDOVER)):
            title = discarded(before, is_said=is_said)
            self._put("between", key, record, title=title)

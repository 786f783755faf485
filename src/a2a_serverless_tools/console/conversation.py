"""A task's log as a conversation: messages, artifacts as they are now, and statuses between."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from typing import Any, Final, Literal, TypeAlias

from a2a.types import Artifact, Message, Role

from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    MessageAppended,
    Replied,
    Restarted,
    StatusChanged,
    TurnEnded,
    TurnOpened,
    Unknown,
    copied,
)
from a2a_serverless.tasks.fold import Fold, Record, joined
from a2a_serverless.tasks.head import ASLEEP, HANDOVER, INTERRUPTED, TERMINAL, plain_state
from a2a_serverless.tasks.progress import Progress, progress_in
from a2a_serverless.tasks.turns import Attempt
from a2a_serverless_tools.console.difference import Difference, difference
from a2a_serverless_tools.console.paging import MOST_OF_ALL, Key, LogFilter, Place, Window, window
from a2a_serverless_tools.console.parts import (
    PER_PART,
    Content,
    ShownPart,
    bytes_of,
    in_blocks,
    plain_text,
    short,
    shown_parts,
    size_of,
)
from a2a_serverless_tools.operate.inspector import Seen, Show
from a2a_serverless_tools.operate.timeline import unknown_entry

_Kind: TypeAlias = Literal[
    "user",
    "agent",
    "artifact",
    "progress",
    "state",
    "over",  # an attempt, of which nothing was discarded
    "damage",
    "discarded",  # what an attempt said, and a restart took back
]
_ContentKey: TypeAlias = Key | tuple[int | None, str]
"""Of a message its key; of an artifact `_Entry.as_of` and its id."""

SPEAKERS: Final[Mapping[str, str]] = {
    "user": "the caller's messages",
    "agent": "the agent's messages",
    "artifact": "artifacts",
    "discarded": "discarded attempts",
}
"""The kinds that a filter chooses, and how it calls them."""
MOST_DISCARDED: Final = 50
"""Entries of one discarded attempt that a page shows, the newest."""
_PER_PIECE: Final = 40
"""Characters that a piece of a difference counts beside its own."""
_AT_ONE: Final = 1_000
"""How far apart the keys of two entries of a commit are: each may make several of a page."""
_MANY: Final = 10**9
"""Subtracted from the number of a damage, so that it stands before all else of its commit."""
_TOP: Final = "e"
"""The beginning of the ids of those elements that are in no other one."""


@dataclass(slots=True)
class _Start:
    """An attempt that has begun anew, and what it has said so far.

    If it ends without a word, the next one takes its place.
    """

    number: int
    """Of the attempt; 0: unknown."""
    changed: int
    """The newest version with which it has said something, or was over."""
    first: int = 0
    """The version with which it has said something first; 0: it has not."""
    messages: list[_Entry] = field(default_factory=list)
    written: dict[str, int] = field(default_factory=dict)
    """The newest version of each of its artifacts, by id."""
    until: int | None = None
    """The last version before it was over; None: it is not."""
    over: int = 0
    """The version that shows that it is over; 0: it is not."""

    def speaks(self, version: int) -> None:
        """Note that it has said something."""
        self.first, self.changed = self.first or version, version

    def changed_instead(self, of: _Entry) -> int:
        """Return the newest version that has changed what it says instead of an entry; 0: none."""
        said = self.messages[-1].key[0] if self.messages else 0
        if of.kind == "artifact":
            said = self.written.get(of.artifact_id, 0)
        return max(said, self.first, self.over)

    def says_instead(self, entries: Sequence[_Entry]) -> Iterator[tuple[_Entry, _Entry | None]]:
        """Yield each message and artifact that was discarded, with what was said instead.

        A message that was said again is the same one; the others are taken in their order. If it
        has said nothing at all, nothing is yielded.
        """
        if not self.first:
            return
        left = {one.key: one for one in self.messages}
        alike: dict[bytes, list[_Entry]] = {}
        for said in reversed(self.messages):
            alike.setdefault(bytes_of(said.content), []).append(said)
        again: dict[Key, _Entry] = {}
        for one in entries:
            if one.kind == "agent" and (same := alike.get(bytes_of(one.content))):
                again[one.key] = left.pop(same.pop().key)
        others = iter(left.values())
        for one in entries:
            if one.kind == "agent":
                yield one, again.get(one.key) or next(others, None)
            elif one.kind == "artifact":
                was_written = one.artifact_id in self.written
                yield one, replace(one, as_of=self.until) if was_written else None


@dataclass(slots=True, kw_only=True)
class _Entry:
    """Something that was said, or happened, at a place of the log."""

    kind: _Kind
    key: Key
    at: int | None
    changed: int
    """The newest version that has changed what is shown, but for what `then` says."""
    by_attempt: bool
    size: int = PER_PART
    """About how many characters it takes on a page."""
    content: Message | None = None
    artifact_id: str = ""
    as_of: int | None = None
    """Of an artifact: the version up to which its content is shown; None: the newest."""
    title: str = ""
    progress: Progress | None = None
    attempt: Attempt | None = None
    """The attempt that is over, of an entry that says so."""
    said: list[_Entry] = field(default_factory=list)
    """What a discarded attempt said, in order."""
    then: _Start | None = None
    """Of what was discarded: the attempt that came next."""

    @property
    def content_key(self) -> _ContentKey:
        """Return the key of its content among what was loaded."""
        return (self.as_of, self.artifact_id) if self.kind == "artifact" else self.key

    @property
    def newest(self) -> int:
        """Return the newest version that has changed what is shown."""
        return self.changed if self.then is None else max(self.changed, self.then.changed)

    @property
    def has_content(self) -> bool:
        """Return True if it is a message or an artifact."""
        return self.content is not None or self.kind == "artifact"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Next:
    """What the next attempt said in the place of something that was discarded."""

    number: int
    """Of the attempt; 0: unknown."""
    is_same: bool
    """The browser has it as it is: its place alone is sent."""
    is_over: bool
    was_said: bool = False
    """False: it said nothing in its place, up to now or up to its end."""
    difference: Difference | None = None
    """None: it said the same again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """An entry as a page shows it."""

    id: str
    kind: _Kind
    at: int | None
    version: int
    is_same: bool
    """As of `_Next`."""
    parts: tuple[ShownPart, ...] = ()
    is_short: bool = False
    """Not all of its content is shown: the page has enough without it."""
    title: str = ""
    index: int | None = None
    """An artifact's place among all, for the URLs of its parts; None: they have none."""
    progress: Progress | None = None
    attempt: Attempt | None = None
    is_discarded: bool = False
    said: tuple[_Said, ...] = ()
    left_out: int = 0
    """How many entries of a discarded attempt are not among `said`."""
    then: _Next | None = None
    """What was said instead of something that was discarded; of a whole attempt: None if the next
    one has said something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A page of a conversation, and its place in all of it."""

    said: tuple[_Said, ...]
    window: Window[_Entry]


async def conversation(
    seen: Seen, place: Place, which: LogFilter, show: Show, *, since: int = 0
) -> Conversation:
    """Return a page of the conversation of a task, as far as its log can be read.

    Artifacts stand where they were begun, and have what they have now. What a restart has taken
    back stands at the restart, with what the next attempt said instead. Of a turn's progress the
    last one is shown, as a bar. `since` is the version of which the browser has this page; 0: none.
    """
    entries = await asyncio.to_thread(_entries_of, seen)
    searched = _Page(seen, 0)
    if which.text:
        await asyncio.to_thread(searched.load_artifacts, entries)
    shown = await asyncio.to_thread(window, entries, place, which, searched.text_of)
    page = _Page(seen, since)
    await page.load(shown.entries, show)
    said = await asyncio.to_thread(page.said, shown.entries)
    return Conversation(said=said, window=shown)


def artifacts_of(seen: Seen) -> list[Artifact]:
    """Return the artifacts of a task as they are now, in the order of their places in URLs."""
    fold = seen.fold()
    for record in seen.survey.records:
        fold.add_later(record)
    return list(map(joined, fold.artifacts.values()))


def _entries_of(seen: Seen) -> list[_Entry]:
    """Return the entries of a log in their order."""
    walk = _Walk(seen)
    for record in seen.survey.records:
        walk.add(record)
    return list(walk.entries.values())


class _Walk:
    """Goes through a log, and has the entries that stand after each record."""

    def __init__(self, seen: Seen) -> None:
        self.entries: dict[Key, _Entry] = {}
        """In the order of the log, which is that of the keys."""
        self._attempts = {
            v: one for turn in seen.turns for one in turn.attempts for v in one.versions
        }
        self._before = {
            following.first: before
            for turn in seen.turns
            for before, following in pairwise(turn.attempts)
        }
        """The attempt before another one, by the version of the other one's claim."""
        self._artifacts: dict[str, _Entry] = {}
        self._written: list[tuple[int, _Entry, int]] = []
        """The chunks of attempts that no restart has taken back: the version, the artifact, and its
        size before."""
        self._bar: Key | None = None
        """The entry with the progress of the turn."""
        self._start: _Start | None = None
        self._newest = 0
        """The version that was added last."""

    def add(self, record: Record) -> None:
        """Add what a record says, or take back what it takes back."""
        self._newest, is_over = record.version, False
        for number, entry in enumerate(record.entries):
            key = (record.version, number * _AT_ONE)
            match entry:
                case TurnOpened(request):
                    self._bar = None
                    self._message(request.message, key, record)
                case MessageAppended(message) | Replied(message):
                    self._message(message, key, record)
                case StatusChanged():
                    self._status(entry, key, record)
                    is_over = is_over or entry.status.state in TERMINAL
                case ArtifactWritten():
                    self._artifact(entry, key, record)
                case Restarted(base):
                    self._restart(base, key, record)
                case TurnEnded():
                    is_over = True
                case Unknown(kind):
                    title = unknown_entry(record.version, kind)
                    self._put("damage", key, record, title=title)
                case _:
                    pass
        if is_over:
            self._end_start(record.version, record.version)

    def _put(self, kind: _Kind, key: Key, record: Record, **values: Any) -> _Entry:
        is_by_attempt = record.token is not None
        entry = _Entry(
            kind=kind,
            key=key,
            at=record.at,
            changed=record.version,
            **{"by_attempt": is_by_attempt} | values,
        )
        if entry.content is not None:
            entry.size += size_of(entry.content.parts)
        self.entries[key] = entry
        return entry

    def _message(self, message: Message, key: Key, record: Record) -> None:
        kind: _Kind = "user" if message.role == Role.ROLE_USER else "agent"
        entry = self._put(kind, key, record, content=message)
        if self._start is not None and entry.by_attempt:
            self._start.messages.append(entry)
            self._start.speaks(record.version)

    def _status(self, change: StatusChanged, key: Key, record: Record) -> None:
        """Add a status's message, the bar instead of the turn's earlier one, and the task's end."""
        status, progress = change.status, progress_in(change.metadata)
        if progress is not None:
            if self._bar is not None:
                self.entries.pop(self._bar, None)
            self._bar = key
            self._put("progress", key, record, content=status.message, progress=progress)
        elif status.HasField("message"):
            self._message(status.message, key, record)
        if status.state in TERMINAL | INTERRUPTED:
            end = (key[0], key[1] + 1)
            self._put("state", end, record, title=plain_state(status.state))

    def _artifact(self, write: ArtifactWritten, key: Key, record: Record) -> None:
        artifact_id = write.artifact.artifact_id
        entry = self._artifacts.get(artifact_id)
        if entry is None:
            title = short(write.artifact.name or artifact_id)
            entry = self._put("artifact", key, record, artifact_id=artifact_id, title=title)
            self._artifacts[artifact_id] = entry
        if record.token is not None:
            self._written.append((record.version, entry, entry.size))
            if self._start is not None:
                self._start.written[artifact_id] = record.version
                self._start.speaks(record.version)
        own = size_of(write.artifact.parts)
        entry.size = (entry.size if write.append else PER_PART) + own
        entry.changed = record.version

    def _restart(self, base: int, key: Key, record: Record) -> None:
        """Put together what attempts have said since `base`: an entry for each of them."""
        attempt = self._attempts.get(record.version)
        start = _Start(attempt.number if attempt else 0, record.version)
        if self._start is not None and not self._start.first:
            self._start.number, self._start.changed = start.number, start.changed
            start = self._start
        else:
            self._end_start(record.version - 1, record.version)
        discarded: dict[int, _Entry] = {}
        for entry, version in self._taken_back(base, record.version):
            of = self._attempts.get(version)
            first = 0 if of is None else of.first
            if first not in discarded:
                place = (key[0], key[1] + min(len(discarded) + 1, _AT_ONE - 1))
                discarded[first] = self._put(
                    "discarded", place, record, by_attempt=False, attempt=of, then=start
                )
            discarded[first].said.append(entry)
            discarded[first].size += entry.size
            entry.changed, entry.then = record.version, start
        before = self._before.get(record.version)
        if not discarded and not (before and before.reason in (ASLEEP, HANDOVER)):
            self._put("over", key, record, by_attempt=False, attempt=before)
        self._start = start

    def _taken_back(self, base: int, version: int) -> list[tuple[_Entry, int]]:
        """Take out what attempts have said since `base`; return it with the version that said it.

        An artifact comes as it was then; it stays, too, if it was begun before.
        """
        taken: dict[Key, tuple[_Entry, int]] = {}
        while self._written and self._written[-1][0] > base:
            at, entry, size = self._written.pop()
            taken.setdefault(entry.key, (replace(entry, as_of=version - 1), at))
            entry.size, entry.changed = size, version
        since = list(takewhile(lambda key: key[0] > base, reversed(self.entries)))
        for entry in [self.entries[key] for key in since]:
            if entry.by_attempt:
                del self.entries[entry.key]
                self._artifacts.pop(entry.artifact_id, None)
                taken.setdefault(entry.key, (entry, entry.key[0]))
        return [taken[key] for key in sorted(taken)]

    def _end_start(self, until: int, version: int) -> None:
        if self._start is not None:
            self._start.until, self._start.over, self._start.changed = until, version, version
        self._start = None


class _Page:
    """Loads and renders entries, but for what the browser has."""

    def __init__(self, seen: Seen, since: int) -> None:
        self._seen = seen
        self._since = since
        self._loaded: dict[_ContentKey, Content] = {}
        self._indexes: dict[str, int] = {}
        self._left = MOST_OF_ALL

    async def load(self, entries: Sequence[_Entry], show: Show) -> None:
        """Load the contents of what is rendered, and of what that is compared with."""
        wanted = [one for entry in entries for one in self._wanted(entry) if one.has_content]
        await asyncio.to_thread(self.load_artifacts, wanted)
        self._loaded |= {one.content_key: copied(one.content) for one in wanted if one.content}
        for content in self._loaded.values():
            await show(content)

    def _wanted(self, entry: _Entry) -> Iterator[_Entry]:
        if self._has(entry.newest):
            return
        yield entry
        if entry.kind == "artifact" and self._has(entry.key[0]):
            yield replace(entry, as_of=self._since)
        if entry.then is None:
            return
        shown = _newest_of(entry)
        yield from (one for one in shown if not self._has(one.changed))
        for one, instead in entry.then.says_instead(shown):
            if instead is not None and not self._has(entry.then.changed_instead(one)):
                yield from (one, instead)

    def _has(self, version: int) -> bool:
        """Return True if the browser has what a version has changed last."""
        return version <= self._since

    def text_of(self, entry: _Entry) -> str:
        """Return all that an entry says, of artifacts what was loaded."""
        contents = (self._loaded.get(one.content_key, one.content) for one in (entry, *entry.said))
        return "\n".join((entry.title, *map(plain_text, contents)))

    def load_artifacts(self, entries: Iterable[_Entry]) -> None:
        """Load the artifacts of entries as of their versions, by one walk through the log."""
        every = (one for entry in entries for one in (entry, *entry.said))
        keys = {one.content_key for one in every if one.kind == "artifact"}
        if not keys:
            return
        fold = self._seen.fold()
        versions = sorted({as_of for as_of, _ in keys if as_of is not None})
        for record in self._seen.survey.records:
            while versions and versions[0] < record.version:
                self._keep(fold, versions.pop(0), keys)
            fold.add_later(record)
        for version in (*versions, None):
            self._keep(fold, version, keys)
        self._indexes = {name: place for place, name in enumerate(fold.artifacts)}

    def _keep(self, fold: Fold, version: int | None, keys: Collection[_ContentKey]) -> None:
        for name, artifact in fold.artifacts.items():
            if (version, name) in keys:
                self._loaded[version, name] = joined(artifact)

    def said(self, entries: Sequence[_Entry]) -> tuple[_Said, ...]:
        """Return entries as they are shown: of the newest all, until the page has enough."""
        return tuple([self._said(entry) for entry in reversed(entries)][::-1])

    def _said(self, entry: _Entry, within: str = _TOP) -> _Said:
        version, number = entry.key
        said = _Said(
            id=f"{within}{version}-{number}",
            kind=entry.kind,
            at=entry.at,
            version=version,
            is_same=self._has(entry.newest if within == _TOP else entry.changed),
            is_discarded=within != _TOP,
        )
        said = replace(said, title=entry.title, progress=entry.progress, attempt=entry.attempt)
        if said.is_same:
            return said
        if entry.then is not None and entry.kind == "discarded":
            return self._discarded(entry, said, entry.then)
        content = self._loaded.get(entry.content_key)
        if content is None:
            return said
        parts, is_short = self._parts(content)
        index = self._indexes.get(entry.artifact_id) if entry.as_of is None else None
        if index is not None:
            is_known = self._has(entry.key[0])
            before = self._loaded.get((self._since, entry.artifact_id)) if is_known else None
            parts = tuple(in_blocks(parts, before))
        return replace(said, parts=parts, is_short=is_short, index=index)

    def _discarded(self, entry: _Entry, said: _Said, then: _Start) -> _Said:
        shown = _newest_of(entry)
        instead = {one.key: self._next(one, other, then) for one, other in then.says_instead(shown)}
        rendered = [
            replace(self._said(one, f"{said.id}-"), then=instead.get(one.key))
            for one in reversed(shown)
        ]
        left_out = len(entry.said) - len(shown)
        nothing = None if then.first else self._next(entry, None, then)
        return replace(said, said=tuple(rendered[::-1]), left_out=left_out, then=nothing)

    def _next(self, one: _Entry, other: _Entry | None, then: _Start) -> _Next:
        said = _Next(
            number=then.number,
            is_same=self._has(max(one.changed, then.changed_instead(one))),
            is_over=then.until is not None,
            was_said=other is not None,
        )
        if said.is_same or other is None:
            return said
        before, after = self._loaded.get(one.content_key), self._loaded.get(other.content_key)
        if bytes_of(before) == bytes_of(after):
            return said
        found = difference(plain_text(before), plain_text(after))
        self._left -= sum(len(piece.text) + _PER_PIECE for piece in found.pieces)
        return replace(said, difference=found)

    def _parts(self, content: Content) -> tuple[tuple[ShownPart, ...], bool]:
        """Return the parts of a content until the page has enough; True if there are more."""
        more, parts = shown_parts(content.parts), list[ShownPart]()
        self._left -= PER_PART
        while self._left >= 0 and (part := next(more, None)) is not None:
            parts.append(part)
            self._left -= part.length
        return tuple(parts), next(more, None) is not None


def _newest_of(discarded: _Entry) -> list[_Entry]:
    return discarded.said[-MOST_DISCARDED:]

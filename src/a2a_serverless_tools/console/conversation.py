"""A task's log as a conversation: messages, artifacts as they are now, and statuses between."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from typing import Any, Final, Literal, TypeAlias

from a2a.types import Artifact, Message, Part, Role
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as AnyMessage
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_block import StateBlock, table
from markdown_it.token import Token
from markupsafe import Markup, escape

from a2a_serverless.tasks.blobs import blob_of
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
from a2a_serverless_tools.console.difference import Difference, common, difference
from a2a_serverless_tools.console.inspector import Seen
from a2a_serverless_tools.console.paging import MOST_OF_ALL, Key, Place, Window, window
from a2a_serverless_tools.inspect.timeline import unknown_entry

_PartKind: TypeAlias = Literal["text", "markdown", "json", "image", "file", "link", "elsewhere"]
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
_Content: TypeAlias = Message | Artifact
_ContentKey: TypeAlias = Key | tuple[int | None, str]
"""Of a message its key; of an artifact `_Entry.as_of` and its id."""
_Show: TypeAlias = Callable[[AnyMessage], Awaitable[None]]
"""Replaces what a message refers to by contents or links, in place."""

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Images that are shown; all others, SVG among them, are files."""
MOST_TEXT: Final = 100_000
"""Characters of one text that a page shows."""
BLOCK: Final = 4_000
"""Characters of a piece of an artifact's text, which is sent once."""
MOST_DISCARDED: Final = 50
"""Entries of one discarded attempt that a page shows, the newest."""
_MOST_NAME: Final = 500
"""Characters of a name or a URL."""
_PER_PART: Final = 200
"""Characters that a part counts beside its own."""
_PER_PIECE: Final = 40
"""Characters that a piece of a difference counts beside its own."""
_AT_ONE: Final = 1_000
"""How far apart the keys of two entries of a commit are: each may make several of a page."""
_MANY: Final = 10**9
_TOP: Final = "e"
"""The beginning of the ids of those elements that are in no other one."""
_OF_MARKDOWN: Final = 3
"""How often a character of Markdown counts: it has to be parsed, at worst a second for 100,000."""
_SCHEMES: Final = ("http://", "https://", "mailto:")
_MOST_TOKENS: Final = 50_000
"""Behind so many pieces no further table is one: a row of one character fills all columns."""
_ALIGNED: Final = {f"text-align:{side}": side for side in ("left", "center", "right")}
"""Classes in the place of the styles that the parser gives to cells, and no page of ours allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShownPart:
    """A part of a message or artifact, ready to be escaped by the template."""

    kind: _PartKind
    text: str = ""
    html: Markup | None = None
    """Of texts, escaped, and of Markdown: their characters are shown as they are."""
    blocks: tuple[Markup | None, ...] = ()
    """Of a text that may grow: its pieces, escaped; None: the browser has the piece."""
    name: str = ""
    size: int = 0
    index: int = 0
    """The part's place, for its URL."""
    is_cut: bool = False

    @property
    def length(self) -> int:
        """Return the characters that it takes on the page; those of Markdown weigh more."""
        own = len(self.text if self.html is None else self.html)
        return _PER_PART + own * (_OF_MARKDOWN if self.kind == "markdown" else 1)


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
            alike.setdefault(_bytes_of(said.content), []).append(said)
        again: dict[Key, _Entry] = {}
        for one in entries:
            if one.kind == "agent" and (same := alike.get(_bytes_of(one.content))):
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
    size: int = _PER_PART
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
        """Return by what its content is found among those that were loaded."""
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
    parts: tuple[_ShownPart, ...] = ()
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


async def conversation(seen: Seen, place: Place, show: _Show, *, since: int = 0) -> Conversation:
    """Return a page of the conversation of a task, as far as its log can be read.

    Artifacts stand where they were begun, and have what they have now. What a restart has taken
    back stands at the restart, with what the next attempt said instead. Of a turn's progress the
    last one is shown, as a bar. `since` is the version of which the browser has this page; 0: none.
    """
    entries = await asyncio.to_thread(_entries_of, seen)
    shown = window(entries, place)
    page = _Page(seen, since)
    await page.load(shown.entries, show)
    said = await asyncio.to_thread(page.said, shown.entries)
    return Conversation(said=said, window=shown)


def artifacts_of(seen: Seen) -> list[Artifact]:
    """Return the artifacts of a task as they are now, in the order of their places in URLs."""
    fold = seen.fold()
    for record in seen.records:
        fold.add_later(record)
    return list(map(joined, fold.artifacts.values()))


def _entries_of(seen: Seen) -> list[_Entry]:
    """Return the entries of a log in their order."""
    walk, damage = _Walk(seen), list(seen.damage)
    for record in seen.records:
        while damage and damage[0][0] <= record.version:
            walk.tell_damage(*damage.pop(0))
        walk.add(record)
    for one in damage:
        walk.tell_damage(*one)
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

    def tell_damage(self, version: int, clause: str) -> None:
        """Say in its place what cannot be read."""
        key = (version, len(self.entries) - _MANY)
        self.entries[key] = _Entry(
            kind="damage", key=key, at=None, changed=version, by_attempt=False, title=clause
        )

    def add(self, record: Record) -> None:
        """Add what a record says, or take back what it takes back."""
        is_over = False
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
            entry.size += _size(entry.content.parts)
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
            title = _short(write.artifact.name or artifact_id)
            entry = self._put("artifact", key, record, artifact_id=artifact_id, title=title)
            self._artifacts[artifact_id] = entry
        if record.token is not None:
            self._written.append((record.version, entry, entry.size))
            if self._start is not None:
                self._start.written[artifact_id] = record.version
                self._start.speaks(record.version)
        own = _size(write.artifact.parts)
        entry.size = (entry.size if write.append else _PER_PART) + own
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
            number = 0 if of is None else min(of.number, _AT_ONE - 1)
            if number not in discarded:
                place = (key[0], key[1] + number)
                discarded[number] = self._put(
                    "discarded", place, record, by_attempt=False, attempt=of, then=start
                )
            discarded[number].said.append(entry)
            discarded[number].size += entry.size
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
        self._loaded: dict[_ContentKey, _Content] = {}
        self._indexes: dict[str, int] = {}
        self._left = MOST_OF_ALL

    async def load(self, entries: Sequence[_Entry], show: _Show) -> None:
        """Load the contents of what is rendered, and of what that is compared with."""
        wanted = [one for entry in entries for one in self._wanted(entry) if one.has_content]
        artifacts = {one.content_key for one in wanted if one.kind == "artifact"}
        if artifacts:
            await asyncio.to_thread(self._fold, artifacts)
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

    def _fold(self, keys: Collection[_ContentKey]) -> None:
        """Load artifacts as of several versions, by one walk through the log."""
        fold = self._seen.fold()
        versions = sorted({as_of for as_of, _ in keys if as_of is not None})
        for record in self._seen.records:
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
            parts = tuple(_in_blocks(parts, before))
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
        if _bytes_of(before) == _bytes_of(after):
            return said
        found = difference(_plain(before), _plain(after))
        self._left -= sum(len(piece.text) + _PER_PIECE for piece in found.pieces)
        return replace(said, difference=found)

    def _parts(self, content: _Content) -> tuple[tuple[_ShownPart, ...], bool]:
        """Return the parts of a content until the page has enough; True if there are more."""
        more, parts = _shown_parts(content.parts), list[_ShownPart]()
        self._left -= _PER_PART
        while self._left >= 0 and (part := next(more, None)) is not None:
            parts.append(part)
            self._left -= part.length
        return tuple(parts), next(more, None) is not None


def _in_blocks(parts: Sequence[_ShownPart], before: _Content | None) -> Iterator[_ShownPart]:
    """Yield the parts of an artifact, texts in blocks.

    What a text begins with in common with the artifact as the browser has it is not sent again.
    """
    known: Sequence[Part] = [] if before is None else before.parts
    texts = iter(() if any(map(_is_markdown, known)) else _shown_parts(known))
    for part in parts:
        old = next(texts, None)
        if part.kind == "text":
            same = common(part.text, old.text) if old is not None and old.kind == "text" else 0
            starts = range(0, len(part.text), BLOCK)
            blocks = (
                None if at + BLOCK <= same else escape(part.text[at : at + BLOCK]) for at in starts
            )
            part = replace(part, blocks=tuple(blocks))  # noqa: PLW2901 - the same part, cut
        yield part


def _newest_of(discarded: _Entry) -> list[_Entry]:
    return discarded.said[-MOST_DISCARDED:]


def _bytes_of(content: _Content | None) -> bytes:
    """Return what is the same for two contents with the same parts."""
    parts = [] if content is None else content.parts
    return b"".join(part.SerializeToString(deterministic=True) for part in parts)


def _plain(content: _Content | None) -> str:
    """Return the parts of a content as one text, to be compared."""
    texts: list[str] = []
    for part in [] if content is None else content.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                texts.append(_json_of(part))
            case "raw":
                digest = hashlib.sha256(part.raw).hexdigest()[:12]
                name = _short(part.filename or part.media_type or "file")
                texts.append(f"[{name}, {len(part.raw)} bytes, sha256 {digest}]\n")
            case _:
                texts.append(f"[{_short(part.url)}]\n")
    return "".join(texts)


def _size(parts: Sequence[Part]) -> int:
    """Return about how many characters parts take on a page, without rendering them."""
    return sum(map(_size_of_part, parts))


def _size_of_part(part: Part) -> int:
    blob = blob_of(part)
    if blob is not None:
        return _PER_PART + (0 if blob.kind == "raw" else min(blob.size, MOST_TEXT))
    match part.WhichOneof("content"):
        case "text":
            return min(len(part.text), MOST_TEXT) * (_OF_MARKDOWN if _is_markdown(part) else 1)
        case "data":
            return _PER_PART + min(part.ByteSize(), MOST_TEXT)
        case _:
            return _PER_PART


def _shown_parts(parts: Sequence[Part]) -> Iterator[_ShownPart]:
    """Yield parts; join texts of one kind that follow each other, such as chunks."""
    texts: list[str] = []
    is_markdown = False
    for index, part in enumerate(parts):
        if part.WhichOneof("content") == "text":
            markdown = _is_markdown(part)
            if texts and markdown != is_markdown:
                yield _text("".join(texts), is_markdown=is_markdown)
                texts = []
            is_markdown = markdown
            texts.append(part.text)
            continue
        if texts:
            yield _text("".join(texts), is_markdown=is_markdown)
            texts = []
        yield _other(part, index)
    if texts:
        yield _text("".join(texts), is_markdown=is_markdown)


def _text(text: str, *, is_markdown: bool) -> _ShownPart:
    shown, is_cut = text[:MOST_TEXT], len(text) > MOST_TEXT
    if is_markdown:
        return _ShownPart(kind="markdown", html=_html_of(shown), is_cut=is_cut)
    return _ShownPart(kind="text", text=shown, html=escape(shown), is_cut=is_cut)


def _other(part: Part, index: int) -> _ShownPart:
    match part.WhichOneof("content"):
        case "data":
            text = _json_of(part)
            return _ShownPart(kind="json", text=text[:MOST_TEXT], is_cut=len(text) > MOST_TEXT)
        case "raw":
            kind: _PartKind = "image" if media_type(part) in IMAGES else "file"
            name = _short(part.filename or part.media_type or "file")
            return _ShownPart(kind=kind, name=name, size=len(part.raw), index=index)
        case "url":
            return _ShownPart(kind="link", text=_short(part.url), name=_short(part.filename))
        case _:
            return _ShownPart(kind="elsewhere")


def _json_of(part: Part) -> str:
    return json.dumps(MessageToDict(part.data), indent=2, ensure_ascii=False)


def _is_markdown(part: Part) -> bool:
    return media_type(part) == "text/markdown"


def _short(name: str) -> str:
    return name if len(name) <= _MOST_NAME else f"{name[:_MOST_NAME]}…"


def media_type(part: Part) -> str:
    """Return the media type of a part in lower case, without parameters."""
    return str(part.media_type).partition(";")[0].strip().lower()


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001 - a rule
    """Parse a table, as long as there are not too many pieces; else it stays text."""
    return len(state.tokens) < _MOST_TOKENS and table(state, start, end, silent)


def _image(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    """Show an image as its text, so that nothing is loaded from other servers."""
    token = tokens[index]
    text = token.content or str(token.attrs.get("src", ""))
    return f'<span class="remote">image: {escapeHtml(text)}</span>'


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable("table")
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    parser.add_render_rule("image", _image)
    parser.validateLink = lambda url: url.strip().lower().startswith(_SCHEMES)  # type: ignore[method-assign]
    return parser


_PARSER: Final = _parser()


def _html_of(text: str) -> Markup:
    """Return agents' Markdown as harmless HTML: without HTML of their own, images, or unsafe links.

    Links open in a new page, which learns nothing about this one.
    """
    tokens = _PARSER.parse(text)
    for token in tokens:
        style = token.attrs.pop("style", None)
        if (side := _ALIGNED.get(str(style))) is not None:
            token.attrSet("class", side)
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("rel", "noopener noreferrer nofollow")
                child.attrSet("target", "_blank")
    return Markup(_PARSER.renderer.render(tokens, _PARSER.options, {}))  # noqa: S704 - html is off

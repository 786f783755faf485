"""A task's log as a conversation: messages, artifacts as they are now, and statuses between."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from a2a.types import Artifact, Message, Part, Role
from google.protobuf.json_format import MessageToDict
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_block import StateBlock, table
from markdown_it.token import Token
from markupsafe import Markup, escape

from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    MessageAppended,
    Replied,
    Restarted,
    StatusChanged,
    TurnOpened,
    Unknown,
)
from a2a_serverless.tasks.fold import Log, Record
from a2a_serverless.tasks.head import INTERRUPTED, TERMINAL, plain_state
from a2a_serverless.tasks.progress import Progress, progress_in

_PartKind: TypeAlias = Literal["text", "markdown", "json", "image", "file", "link", "elsewhere"]

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Images that are shown; all others, SVG among them, are files."""
MOST_TEXT: Final = 100_000
"""Characters of one text that a page shows."""
MOST_OF_ALL: Final = 600_000
"""Characters of all texts that a page shows, the newest first: an agent decides how many it has."""
_MOST_NAME: Final = 500
"""Characters of a name or a URL."""
LEFT_OUT: Final = "what came before is not shown: there is much of it"
_PER_PART: Final = 200
"""Characters that a part counts beside its own."""
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
    name: str = ""
    size: int = 0
    index: int = 0
    """The part's place, for its URL."""
    is_cut: bool = False

    @property
    def length(self) -> int:
        """Return the characters that it takes on the page; those of Markdown weigh more."""
        own = len(self.text) + len(self.html or "")
        return _PER_PART + own * (_OF_MARKDOWN if self.kind == "markdown" else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    kind: Literal["user", "agent", "artifact", "state", "note", "progress"]
    at: int | None
    version: int
    content: Sequence[Part] = ()
    parts: tuple[_ShownPart, ...] = ()
    """What the page shows of `content`."""
    is_short: bool = False
    """Not all of `content` is shown: the page has enough without it."""
    title: str = ""
    index: int = 0
    """An artifact's place among all, for the URLs of its parts."""
    progress: Progress | None = None


def conversation(log: Log) -> list[_Said]:
    """Return the conversation of a log that was read from its beginning.

    Artifacts stand where they were begun, and have what they have now: chunks of attempts that a
    restart has discarded are not shown. Of a turn's progress the last one is shown, as a bar.
    What is beyond `MOST_OF_ALL` is left out, the oldest first.
    """
    artifacts = dict(log.fold().artifacts)
    begun = _begun(log, artifacts)
    said: list[_Said] = []
    for record in log.records:
        for entry in record.entries:
            match entry:
                case TurnOpened(request):
                    said.append(_message(request.message, record))
                case MessageAppended(message) | Replied(message):
                    said.append(_message(message, record))
                case StatusChanged():
                    _tell_status(said, entry, record)
                case Restarted():
                    said.append(
                        _note("note", "a new attempt began; what was unfinished is gone", record)
                    )
                case Unknown():
                    said.append(_note("note", "an entry that this release does not know", record))
                case _:
                    pass
        for index, artifact_id in begun.get(record.version, ()):
            said.append(_artifact(artifacts[artifact_id], index, record))
    return _shown(said)


def _shown(said: Sequence[_Said]) -> list[_Said]:
    """Return what the page shows: from the newest on, until it has enough; a note says so."""
    left, shown = MOST_OF_ALL, list[_Said]()
    for one in reversed(said):
        parts: list[_ShownPart] = []
        more = _shown_parts(one.content)
        for part in more:
            parts.append(part)
            left -= part.length
            if left < 0:
                break
        is_short = next(more, None) is not None
        left -= _PER_PART
        shown.append(replace(one, parts=tuple(parts), is_short=is_short))
        if left < 0:
            break
    if len(shown) < len(said):
        shown.append(_Said(kind="note", at=None, version=0, title=LEFT_OUT))
    return shown[::-1]


def _tell_status(said: list[_Said], change: StatusChanged, record: Record) -> None:
    """Add a status's message, the bar instead of the turn's earlier one, and the task's end."""
    status, progress = change.status, progress_in(change.metadata)
    if progress is not None:
        for place in range(len(said) - 1, -1, -1):
            if said[place].kind == "user":
                break
            if said[place].kind == "progress":
                del said[place]
                break
        message = _message(status.message, record)
        said.append(replace(message, kind="progress", progress=progress))
    elif status.HasField("message"):
        said.append(_message(status.message, record))
    if status.state in TERMINAL | INTERRUPTED:
        said.append(_note("state", plain_state(status.state), record))


def _begun(log: Log, artifacts: dict[str, Artifact]) -> dict[int, list[tuple[int, str]]]:
    """Return by versions which artifacts that still stand were begun: their places and ids."""
    begun: dict[str, int] = {}
    for record in log.records:
        for entry in record.entries:
            if isinstance(entry, Restarted):
                begun = {name: v for name, v in begun.items() if v <= entry.base}
            elif isinstance(entry, ArtifactWritten):
                begun.setdefault(entry.artifact.artifact_id, record.version)
    first = log.records[0].version if log.records else 0
    found: dict[int, list[tuple[int, str]]] = {}
    for place, name in enumerate(artifacts):
        found.setdefault(begun.get(name, first), []).append((place, name))
    return found


def _message(message: Message, record: Record) -> _Said:
    return _Said(
        kind="user" if message.role == Role.ROLE_USER else "agent",
        at=record.at,
        version=record.version,
        content=message.parts,
    )


def _artifact(artifact: Artifact, index: int, record: Record) -> _Said:
    return _Said(
        kind="artifact",
        at=record.at,
        version=record.version,
        title=_short(artifact.name or artifact.artifact_id),
        content=artifact.parts,
        index=index,
    )


def _note(kind: Literal["state", "note"], title: str, record: Record) -> _Said:
    return _Said(kind=kind, at=record.at, version=record.version, title=title)


def _shown_parts(parts: Sequence[Part]) -> Iterator[_ShownPart]:
    """Yield parts; join texts of one kind that follow each other, such as chunks."""
    texts: list[str] = []
    is_markdown = False
    for index, part in enumerate(parts):
        if part.WhichOneof("content") == "text":
            markdown = part.media_type.partition(";")[0].strip().lower() == "text/markdown"
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
    return _ShownPart(kind="text", html=escape(shown), is_cut=is_cut)


def _other(part: Part, index: int) -> _ShownPart:
    match part.WhichOneof("content"):
        case "data":
            text = json.dumps(MessageToDict(part.data), indent=2, ensure_ascii=False)
            return _ShownPart(kind="json", text=text[:MOST_TEXT], is_cut=len(text) > MOST_TEXT)
        case "raw":
            kind: _PartKind = "image" if media_type(part) in IMAGES else "file"
            name = _short(part.filename or part.media_type or "file")
            return _ShownPart(kind=kind, name=name, size=len(part.raw), index=index)
        case "url":
            return _ShownPart(kind="link", text=_short(part.url), name=_short(part.filename))
        case _:
            return _ShownPart(kind="elsewhere")


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

"""Parts of messages and artifacts as a page shows them: harmless and bounded. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from a2a.types import Artifact, Message, Part
from google.protobuf.message import Message as AnyMessage
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_block import StateBlock, table
from markdown_it.token import Token
from markupsafe import Markup, escape

from a2a_serverless.tasks.blobs import blob_of, linked_blob
from a2a_serverless.tasks.entries import json_of, parts_of
from a2a_serverless.tasks.questions import id_of_part

Content: TypeAlias = Message | Artifact

_PartKind: TypeAlias = Literal["text", "markdown", "json", "image", "file", "link", "elsewhere"]

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Images that are shown; all others, SVG among them, are files."""
MOST_IMAGE: Final = 10_000_000
"""Bytes of an image that is shown; a larger one is a file."""
MOST_TEXT: Final = 100_000
"""Characters of one text that a page shows."""
PER_PART: Final = 200
"""Characters that a part counts beside its own."""
_MOST_NAME: Final = 500
"""Characters of a name or a URL."""
_OF_MARKDOWN: Final = 3
"""How often a character of Markdown counts: it has to be parsed, at worst a second for 100,000."""
_SCHEMES: Final = ("http://", "https://", "mailto:")
_MOST_TOKENS: Final = 50_000
"""Behind so many pieces no further table is one: a row of one character fills all columns."""
_ALIGNED: Final = {f"text-align:{side}": side for side in ("left", "center", "right")}
"""Classes in the place of the styles that the parser gives to cells, and no page of ours allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """A part of a message or artifact, ready to be escaped by the template."""

    kind: _PartKind
    text: str = ""
    """Of a file, its media type."""
    html: Markup | None = None
    """Of texts, escaped, and of Markdown: their characters are shown as they are."""
    name: str = ""
    size: int = 0
    """Of a file, in bytes."""
    index: int = 0
    """The part's place, for its URL."""
    is_cut: bool = False

    @property
    def length(self) -> int:
        """Return the characters that it takes on the page; those of Markdown weigh more."""
        own = len(self.text if self.html is None else self.html)
        return PER_PART + own * (_OF_MARKDOWN if self.kind == "markdown" else 1)


def text_of(content: Content | None) -> str:
    """Return the parts of a content as one text, to look for another in it."""
    texts: list[str] = []
    for part in [] if content is None else content.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                texts.append(_json_of(part))
            case _:
                texts.append(f"{part.filename} {part.url}\n")
    return "".join(texts)


def size_of(parts: Sequence[Part]) -> int:
    """Return about how many characters parts take on a page, without rendering them."""
    return sum(map(_size_of_part, parts))


def _size_of_part(part: Part) -> int:
    blob = blob_of(part)
    if blob is not None:
        return PER_PART + (0 if blob.kind == "raw" else min(blob.size, MOST_TEXT))
    match part.WhichOneof("content"):
        case "text":
            return min(len(part.text), MOST_TEXT) * (_OF_MARKDOWN if _is_markdown(part) else 1)
        case "data":
            return PER_PART + min(part.ByteSize(), MOST_TEXT)
        case _:
            return PER_PART


def shown_parts(parts: Sequence[Part]) -> Iterator[ShownPart]:
    """Yield parts; join texts of one kind that follow each other, such as chunks.

    Texts of two questions are two.
    """
    texts: list[str] = []
    is_markdown, question = False, ""
    for index, part in enumerate(parts):
        if part.WhichOneof("content") == "text":
            markdown, asked = _is_markdown(part), id_of_part(part)
            if texts and (markdown, asked) != (is_markdown, question):
                yield _text("".join(texts), is_markdown=is_markdown)
                texts = []
            is_markdown, question = markdown, asked
            texts.append(part.text)
            continue
        if texts:
            yield _text("".join(texts), is_markdown=is_markdown)
            texts = []
        yield _other(part, index)
    if texts:
        yield _text("".join(texts), is_markdown=is_markdown)


def _text(text: str, *, is_markdown: bool) -> ShownPart:
    shown, is_cut = text[:MOST_TEXT], len(text) > MOST_TEXT
    if is_markdown:
        return ShownPart(kind="markdown", html=_html_of(shown), is_cut=is_cut)
    return ShownPart(kind="text", text=shown, html=escape(shown), is_cut=is_cut)


def _other(part: Part, index: int) -> ShownPart:
    match part.WhichOneof("content"):
        case "data":
            text = _json_of(part)
            return ShownPart(kind="json", text=text[:MOST_TEXT], is_cut=len(text) > MOST_TEXT)
        case "raw":
            return _file(part, index, len(part.raw))
        case "url" if (blob := linked_blob(part.url)) is not None:
            return _file(part, index, blob.size)
        case "url":
            return ShownPart(kind="link", text=short(part.url), name=short(part.filename))
        case _:
            return ShownPart(kind="elsewhere")


def _file(part: Part, index: int, size: int) -> ShownPart:
    kind = media_type(part)
    return ShownPart(
        kind="image" if kind in IMAGES and size <= MOST_IMAGE else "file",
        name=short(part.filename or part.media_type or "file"),
        text=short(kind),
        size=size,
        index=index,
    )


def _json_of(part: Part) -> str:
    return json.dumps(json_of(part.data), indent=2, ensure_ascii=False)


def _is_markdown(part: Part) -> bool:
    return media_type(part) == "text/markdown"


def without_signatures(content: AnyMessage) -> None:
    """Cut from the links to files, in place, what lets everybody follow them."""
    for part in parts_of(content):
        if linked_blob(part.url) is not None:
            part.url = part.url.partition("?")[0]


def short(name: str) -> str:
    """Return a name or a URL as it is, or cut with an ellipsis behind it."""
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

"""Agents' Markdown as harmless HTML: without HTML of their own, images, or unsafe links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.rules_block import StateBlock, table
from markdown_it.token import Token
from markupsafe import Markup

_SCHEMES: Final = ("http://", "https://", "mailto:")
_MOST_TOKENS: Final = 50_000
"""Behind so many pieces no further table is one: a row of one character fills all columns."""
_ALIGNED: Final = {f"text-align:{side}": side for side in ("left", "center", "right")}
"""Classes in the place of the styles that the parser gives to cells, and no page of ours allows."""


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


def html_of(text: str) -> Markup:
    """Return Markdown as HTML. Links open in a new page, which learns nothing about this one."""
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

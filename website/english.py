"""Finds sentences that are too long, words that only insiders know, and pages that are too long."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

LONGEST_SENTENCE: Final = 30
"""Words; a piece of code is one."""
LONGEST_PAGE: Final = 1500
"""Words, without blocks of code."""
TERMS: Final = Path(__file__).with_name("terms.toml")

_MARKDOWN: Final = MarkdownIt("commonmark").enable("table")
_END: Final = re.compile(r"(?<=[.!?])[\"')”]*\s+(?=[\"'(“]?[A-Z0-9`~])")
_CODE: Final = "~"
"""Stands for a piece of code in a sentence."""


class Finding(NamedTuple):
    """What has to be written in another way, and where."""

    line: int
    what: str


class Sentence(NamedTuple):
    """A sentence without markup, and the line at which its paragraph begins."""

    line: int
    text: str


def sentences(page: str) -> Iterator[Sentence]:
    """Yield the sentences of a page: those of paragraphs, headings, lists and tables."""
    line = 1
    for token in _MARKDOWN.parse(page):
        line = token.map[0] + 1 if token.map else line
        if token.type == "inline":
            at = line
            for sentence in _END.split(_text(token)):
                yield Sentence(
                    at + sentence[: len(sentence) - len(sentence.lstrip())].count("\n"),
                    " ".join(sentence.split()),
                )
                at += sentence.count("\n")


def _text(inline: Token) -> str:
    parts = []
    for child in inline.children or ():
        match child.type:
            case "text":
                parts.append(child.content)
            case "code_inline":
                parts.append(_CODE)
            case "softbreak" | "hardbreak":
                parts.append("\n")
            case _:
                pass
    return "".join(parts)


def terms() -> dict[re.Pattern[str], str]:
    """Return the phrases that only insiders understand, and what to say instead."""
    with TERMS.open("rb") as file:
        listed: dict[str, str] = tomllib.load(file)["terms"]
    return {re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE): say for phrase, say in listed.items()}


def findings(page: str, listed: dict[re.Pattern[str], str], *, is_long: bool) -> Iterator[Finding]:
    """Yield what is wrong with a page; only a page that may be long has any length."""
    length = 0
    for line, text in sentences(page):
        number = len(text.split())
        length += number
        if number > LONGEST_SENTENCE:
            yield Finding(line, f"a sentence of {number} words: {text[:60]}…")
        for phrase, say in listed.items():
            if found := phrase.search(text):
                yield Finding(line, f'"{found[0]}": say {say}')
    if not is_long and length > LONGEST_PAGE:
        yield Finding(1, f"a page of {length} words: {LONGEST_PAGE} are the most, split it")

"""The blocks of code of a page, and the commands of those that are typed into a shell."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from tests.support.pages import DOCS

_MARKDOWN = MarkdownIt("commonmark")
_COMMENT = re.compile(r"(?m)(?:^|\s)#\s.*$")
_OUTPUT = re.compile(r"(?m)\s>\s\S+$")
_VARIABLE = re.compile(r"[A-Z_0-9]+=.*", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code: fenced with its language, or indented with none."""

    page: Path
    line: int
    language: str
    source: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(DOCS.parent)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    return [
        Block(page, (token.map or [0])[0] + 1, token.info.strip(), token.content)
        for token in _MARKDOWN.parse(page.read_text(encoding="utf-8"))
        if token.type in {"fence", "code_block"}
    ]


def commands(source: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell's block, without variables, output, comments."""
    joined = _OUTPUT.sub("", _COMMENT.sub("", source.replace("\\\n", " ")))
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t", "", True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set(";&|\n"):
            if words:
                yield words
            words = []
        elif words or not _VARIABLE.fullmatch(word):
            words.append(word)
    if words:
        yield words

"""The pages of the documentation: titles, search, and the list of them for coding assistants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Final

from a2a_serverless_tools.scaffold.source import PAGES, files

_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_SECTION: Final = re.compile(r"^## (.+)$", re.MULTILINE)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

_ABOUT: Final = """\
# a2a-serverless

> A durable task runtime for A2A agents on AWS Lambda, DynamoDB and SQS: its documentation.

The package has the pages. `.venv/bin/a2a-serverless docs PATH` prints one, by the path of its link
or by its name: `docs testing`. AGENTS.md has the rules that code of an agent has to keep.
"""


def title(page: str, name: str) -> str:
    """Return the title of a page; its name if it has none."""
    found = _TITLE.search(page)
    return found[1] if found else name


def found(pages: Mapping[str, str], text: str, sought: Mapping[str, str]) -> list[str]:
    """Return the names of the pages in which words begin with all words of `text`, the best first.

    First is the page that `sought` has for just these words. Then come those whose title begins
    with them or has them, those with a heading that does, and those that have them most often.
    """
    asked = _words(text)
    starts = [re.compile(rf"\b{re.escape(word)}", re.IGNORECASE) for word in asked]
    best = {tuple(_words(each)): page for each, page in sought.items()}.get(tuple(asked))

    def has(line: str) -> bool:
        return all(start.search(line) for start in starts)

    def rank(name: str) -> tuple[bool, bool, bool, bool, int]:
        page = pages[name]
        of_title = title(page, name)
        return (
            name != best,
            _words(of_title)[: len(asked)] != asked,
            not has(of_title),
            not any(has(heading) for heading in _HEADING.findall(page)),
            -min(len(start.findall(page)) for start in starts),
        )

    return sorted(
        (name for name in pages if asked and (name == best or has(pages[name]))), key=rank
    )


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def listed_pages(root: Path) -> str:
    """Return the text of llms.txt, by the form of llmstxt.org: a line for each page below `root`.

    A line has the titles of the page's sections.
    """
    text = _ABOUT
    for part, paths in groupby(files(root, PAGES), lambda path: path.relative_to(root).parts[1]):
        name = part.removesuffix(".md").capitalize()
        text += f"\n## {name}\n\n{''.join(_line(root, path) for path in paths)}"
    return text


def _line(root: Path, path: Path) -> str:
    page = _CODE.sub("", path.read_text(encoding="utf-8"))
    sections = "; ".join(_SECTION.findall(page))
    name = path.relative_to(root).as_posix()
    return f"- [{title(page, path.stem)}]({name}){sections and f': {sections}'}\n"

"""The pages of the documentation, their parts and order, and the place of each in the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from a2a_serverless_tools.scaffold.pages import title
from a2a_serverless_tools.scaffold.source import ORDER, page_order

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ("*.md", "docs/**/*.md", "examples/**/*.md")
HOME: Final = "README.md"


@dataclass(frozen=True, slots=True)
class Place:
    """A page: its path in the repository, its part, and its path in the site."""

    name: str
    part: str

    @property
    def path(self) -> Path:
        """Return the page's file."""
        return ROOT / self.name

    @property
    def title(self) -> str:
        """Return the page's first heading."""
        return title(self.path.read_text(encoding="utf-8"), self.path.stem)

    @property
    def staged(self) -> str:
        """Return the page's path among the sources of the site."""
        if self.name == HOME:
            return "index.md"
        if found := re.fullmatch(r"examples/(?:(\w+)/)?README\.md", self.name):
            return f"examples/{found[1] or 'index'}.md"
        return self.name.removeprefix("docs/") if "/" in self.name else self.name.lower()


def pages() -> list[Path]:
    """Return all pages, by their paths."""
    return sorted(path for pattern in PAGES for path in ROOT.glob(pattern))


def places() -> list[Place]:
    """Return the pages that the order has, in that order."""
    named = {_key(name): name for name in (path.relative_to(ROOT).as_posix() for path in pages())}
    return [
        Place(named[key], part)
        for part, keys in page_order(ROOT).items()
        for key in keys
        if key in named
    ]


def misplaced() -> Iterator[tuple[str, str]]:
    """Yield the pages that the order lacks, and the names of it that are no pages."""
    have = {_key(name): name for name in (path.relative_to(ROOT).as_posix() for path in pages())}
    listed = [key for keys in page_order(ROOT).values() for key in keys]
    for key, name in have.items():
        if key not in listed:
            yield name, f"the page has no place in {ORDER}: add {key!r} to its part"
    for key in dict.fromkeys(listed):
        if key not in have:
            yield ORDER, f"{key!r} is no page"
        elif listed.count(key) > 1:
            yield ORDER, f"{key!r} has two places"


def _key(name: str) -> str:
    return Path(name).stem if name.startswith("docs/") else name

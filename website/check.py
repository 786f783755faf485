"""`python -m website check`: what is wrong with the pages, a line each with page and line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from website import english, names, observed, places, reference
from website.places import ROOT

LONG: Final = ("CHANGELOG.md", "docs/reference/", "docs/understand/format.md")
WITHOUT_ENGLISH: Final = "--names"


def main(arguments: list[str]) -> int:
    """Check the pages whose paths begin with one of the arguments, or all.

    `--names` leaves out how they are written.
    """
    prefixes = tuple(each for each in arguments if each != WITHOUT_ENGLISH)
    found = [*of_pages(prefixes, is_english=WITHOUT_ENGLISH not in arguments)]
    if not prefixes:
        found += of_all()
    for line in found:
        print(line)
    return 1 if found else 0


def of_pages(prefixes: tuple[str, ...] = (), *, is_english: bool = True) -> Iterator[str]:
    """Yield what is wrong with single pages."""
    listed = english.terms()
    known = names.known()
    for path in places.pages():
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(prefixes or ("",)):
            continue
        text = path.read_text(encoding="utf-8")
        of_page = [*names.findings(name, text, known)]
        if is_english:
            of_page += english.findings(text, listed, is_long=name.startswith(LONG))
        for line, what in sorted(of_page):
            yield f"{name}:{line}: {what}"


def of_all() -> Iterator[str]:
    """Yield what is wrong with the order of the pages, and with the reference."""
    for name, what in places.misplaced():
        yield f"{name}:1: {what}"
    for what in observed.problems():
        yield f"website/meanings.toml:1: {what}"
    for name in reference.stale():
        yield f"{name}:1: is not as the code is: python -m website reference"

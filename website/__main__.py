"""`python -m website check`: what is wrong with the pages, a line each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from website import english

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ("*.md", "docs/**/*.md", "examples/**/*.md")
LONG: Final = ("CHANGELOG.md", "docs/reference/", "docs/understand/format.md")


def pages() -> list[Path]:
    """Return all pages, by their paths."""
    return sorted(path for pattern in PAGES for path in ROOT.glob(pattern))


def main(arguments: list[str]) -> int:
    """Check the pages whose paths begin with one of the arguments, or all."""
    listed = english.terms()
    count = 0
    for path in pages():
        name = path.relative_to(ROOT).as_posix()
        if not arguments or name.startswith(tuple(arguments)):
            text = path.read_text(encoding="utf-8")
            for line, what in english.findings(text, listed, is_long=name.startswith(LONG)):
                print(f"{name}:{line}: {what}")
                count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

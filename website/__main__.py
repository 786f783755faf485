"""What `python -m website COMMAND` does: `check`, `build`, `search` or `reference`."""

from __future__ import annotations

import sys

from website import check, reference, search, site
from website.places import ROOT


def main(arguments: list[str]) -> int:
    """Run a command; arguments without one are those of `check`."""
    match arguments:
        case ["build"]:
            print(site.build().relative_to(ROOT))
            return 0
        case ["search"]:
            search.add_words()
            return 0
        case ["reference"]:
            reference.write()
            return 0
        case ["check", *rest] | rest:
            return check.main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

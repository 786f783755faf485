"""`python -m website search`: puts the words that readers look for into the built site's search."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any, Final

from a2a_serverless_tools.scaffold.source import sought
from website.places import ROOT, Place, places
from website.site import FOLDER

_SCRIPT: Final = "var __index = {};"
"""The same index for pages that are opened as files."""


def add_words(site: Path = FOLDER / "site") -> None:
    """Add an entry for each word: the search puts first what has all of it in its title."""
    path = site / "search.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    by_name = {place.path.stem: place for place in places()}
    index["items"][:0] = [_entry(word, by_name[page]) for word, page in sought(ROOT).items()]
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text, encoding="utf-8")
    (site / "search.js").write_text(_SCRIPT.replace("{}", text), encoding="utf-8")


def _entry(word: str, place: Place) -> dict[str, Any]:
    # The search ranks by how close the matches within a field are: other words would spread them.
    name = f"{word[0].upper()}{word[1:]}"
    return {
        "location": place.staged.removesuffix(".md") + ".html",
        "level": 1,
        "title": escape(name),
        "text": f"<p>{escape(name)}: {escape(place.title)}</p>",
        "path": [name, place.title],
        "tags": [],
    }

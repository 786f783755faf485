"""`python -m website build`: makes the sources of the site out of the pages, for Zensical."""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from website.places import HOME, ROOT, Place, places

FOLDER: Final = ROOT / "build/site"
"""What Zensical gets: the pages in `docs`; it writes `site`."""
SETTINGS: Final = Path(__file__).with_name("site.yml")
PICTURES: Final = "docs/pictures"
ASSETS: Final = Path(__file__).with_name("assets")

_FENCE: Final = re.compile(r"(?ms)^([ ]*)(```|~~~).*?^\1\2[ ]*$")
_LINK: Final = re.compile(
    r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<where>[^()\s]+)\)"
)
_SOURCE: Final = re.compile(r'(?P<name>src|srcset|href)="(?P<where>[^"]+)"')
_PICTURE: Final = re.compile(
    r'<picture>.*?srcset="(?P<dark>[^"]+)".*?<img(?P<more>[^>]*?) src="(?P<light>[^"]+)"'
    r"(?P<rest>[^>]*)>.*?</picture>",
    re.DOTALL,
)
_WIDE: Final = "-wide"
"""In the name of a picture: there is another one without it, for narrow screens."""
_FAR: Final = ("https://", "http://", "mailto:", "#")


def build(folder: Path = FOLDER) -> Path:
    """Write the sources of the site into a folder; return the path of its configuration."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = places()
    staged = {place.name: place.staged for place in listed}
    for place in listed:
        target = folder / "docs" / place.staged
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(place, staged), encoding="utf-8")
    shutil.copytree(ROOT / PICTURES, folder / "docs/pictures")
    shutil.copytree(ASSETS, folder / "docs/assets")
    configuration = folder / "mkdocs.yml"
    nav = json.dumps(list(_nav(listed)), indent=1)  # which is YAML, too
    configuration.write_text(f"{SETTINGS.read_text()}nav: {nav}\n", encoding="utf-8")
    return configuration


def page(place: Place, staged: Mapping[str, str]) -> str:
    """Return a page as the site has it: its links lead to pages of the site, or are text."""
    text = place.path.read_text(encoding="utf-8")

    def moved(where: str) -> str | None:
        return _moved(where, place, staged)

    def link(found: re.Match[str]) -> str:
        where = moved(found["where"])
        shown = _LINK.sub(link, found["text"])
        return shown if where is None else f"{found['image']}[{shown}]({where})"

    def source(found: re.Match[str]) -> str:
        return f'{found["name"]}="{moved(found["where"]) or found["where"]}"'

    def picture(found: re.Match[str]) -> str:
        pair = str(moved(found["light"])), str(moved(found["dark"]))
        tags = f"{found['more']}{found['rest'].rstrip('/ ')}"
        if _WIDE not in pair[0]:
            return _both(pair, tags)
        narrow = pair[0].replace(_WIDE, ""), pair[1].replace(_WIDE, "")
        return _both(pair, f'{tags} class="wide"') + _both(narrow, f'{tags} class="narrow"')

    def changed(part: str) -> str:
        part = _PICTURE.sub(picture, part)
        return _LINK.sub(link, part if "#only-" in part else _SOURCE.sub(source, part))

    return _outside_code(text, changed)


def _both(pair: tuple[str, str], tags: str) -> str:
    """Return a picture for each scheme, of which the theme shows one."""
    light, dark = pair
    return f'<img{tags} src="{light}#only-light"><img{tags} src="{dark}#only-dark">'


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def _moved(where: str, place: Place, staged: Mapping[str, str]) -> str | None:
    """Return where a link leads in the site; None if what it leads to is not there."""
    if where.startswith(_FAR):
        return where
    path, _, anchor = where.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(place.name), path))
    found = staged.get(target) or staged.get(posixpath.join(target, "README.md"))
    if found is None and target.startswith(f"{PICTURES}/"):
        found = target.removeprefix("docs/")
    if found is None:
        return None
    relative = os.path.relpath(found, posixpath.dirname(place.staged) or ".")
    return f"{relative}#{anchor}" if anchor else relative


def _nav(listed: list[Place]) -> Iterator[dict[str, Any]]:
    """Yield the parts with their pages; "Part / Section" is a section of its part."""
    tree: dict[str, list[dict[str, Any]]] = {}
    for place in listed:
        part, _, section = place.part.partition(" / ")
        title = "Overview" if place.name == HOME else place.title.replace("`", "")
        of_part = tree.setdefault(part, [])
        if section and not (of_part and section in of_part[-1]):
            of_part.append({section: []})
        (of_part[-1][section] if section else of_part).append({title: place.staged})
    for part, entries in tree.items():
        yield {part: entries}

"""What the pages are made of: templates as answers, fields of forms, and notes of what was done."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

from a2a.types import Part
from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from a2a_serverless_tools.operate import wording

BASE: Final = "/_console"
"""The path of the console; no agent has a tenant of this name."""

Route: TypeAlias = tuple[str, str, Callable[[Request], Awaitable[Response]]]
"""Method, path and answer of a page."""

MAY_ACT: Final[ContextVar[bool]] = ContextVar("may_act", default=True)
"""False while a request is answered of a person who may look and not act."""

PLACE: Final[ContextVar[str]] = ContextVar("place", default="")
"""What the console of the request that is answered looks at, such as `the table tasks`."""

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""Control characters, and those that turn the direction of what follows them."""
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d{3})Z")
"""A time as `wording.iso` writes it."""
_ELEMENT: Final = (
    r'<time datetime="\g<0>" title="\g<0>">\1 <b>\2</b><span class="ms">\3</span></time>'
)
_RETRY: Final = re.compile(r"(?:(?<=tried again as )|(?<=tried again before: as ))[\w-]+")
"""The id of a task that tries another one again, in a sentence about the act."""
_CORRELATION: Final = re.compile(r"(?<=correlation id )[\w-]+")
_FIELD: Final = re.compile(
    r'; name="([^"]*)"(?:; filename="([^"]*)"(?:\r\ncontent-type: *([^\r]*))?)?', re.IGNORECASE
)
"""Name, file and media type of a field of a form with files."""
_ESCAPED: Final = re.compile("%(0A|0D|22)")
"""A character of a file's name that a browser cannot write as it is."""
_KEPT: Final = 50
"""Notes that are remembered."""


def visible(value: object) -> object:
    """Return a text with each hidden character as Python and JSON write it; all else as it is.

    A name cannot change how the words beside it read. Texts of messages and artifacts, which stand
    in a block of their own, come as markup and keep theirs: Arabic and Hebrew need them.
    """
    if isinstance(value, str) and not isinstance(value, Markup):
        return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
    return value


def timed(text: str) -> Markup:
    """Return a text with each of its times in UTC as an element, which a page shows as local."""
    return Markup(_TIME.sub(_ELEMENT, str(escape(visible(text)))))  # noqa: S704 - escaped


def _copyable(text: str) -> Markup:
    """Return a text of a row with its times as elements, and its correlation ids to be copied."""
    code = r'<code class="copy" title="A click selects it">\g<0></code>'
    return Markup(_CORRELATION.sub(code, timed(text)))  # noqa: S704 - escaped


def _linked(text: str, scope: str) -> Markup:
    """Return a sentence about an act on a task of an owner; a new task in it is a link."""
    link = rf'<a href="{BASE}/task/{escape(scope)}/\g<0>">\g<0></a>'
    return Markup(_RETRY.sub(link, str(escape(visible(text)))))  # noqa: S704 - escaped


_TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    finalize=visible,
    undefined=ChainableUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals |= {
    "base": BASE,
    "w": wording,
    "may_act": MAY_ACT.get,
    "plain": lambda state: state.replace("_", " "),
}
_TEMPLATES.filters |= {"timed": timed, "copyable": _copyable, "linked": _linked}


def page(template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a template as an answer; every value in it is escaped."""
    text = _TEMPLATES.get_template(template).render(place=PLACE.get(), **values)
    return Response(text, status, media_type="text/html; charset=utf-8")


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, without spaces around them, their lines as they were typed."""
    body = (await request.body()).decode(errors="replace")
    return {name: _typed(value) for name, value in parse_qsl(body)}


def _typed(value: str) -> str:
    """Return a field with the ends of lines of its author: a form has others."""
    return value.replace("\r\n", "\n").strip()


async def form_with_files(request: Request) -> tuple[dict[str, str], list[Part]]:
    """Return the fields of a form as `form_of`, and the files of one that may have some."""
    kind, _, boundary = request.headers.get("content-type", "").partition("boundary=")
    if not kind.startswith("multipart/form-data"):
        return await form_of(request), []
    form, files = dict[str, str](), list[Part]()
    # As browsers write it: https://html.spec.whatwg.org/#multipart-form-data
    for piece in (b"\r\n" + await request.body()).split(f"\r\n--{boundary}".encode())[1:-1]:
        lines, _, content = piece.partition(b"\r\n\r\n")
        found = _FIELD.search(lines.decode(errors="replace"))
        if found is None:
            continue
        name, file, media_type = found.groups()
        if file is None:
            form[name] = _typed(content.decode(errors="replace"))
        elif file:  # empty: no file was chosen
            file = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), file)
            files.append(Part(raw=content, filename=file, media_type=media_type or ""))
    return form, files


class Notes:
    """The newest sentences about what a write has done, by keys that only the console knows.

    The link to the page that shows one has its key and not the sentence: else a link in an artifact
    could have the console say whatever its author likes.
    """

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

    def keep(self, sentence: str) -> str:
        """Remember a sentence; return its key."""
        key = secrets.token_urlsafe(9)
        self._kept[key] = sentence
        for old in list(self._kept)[:-_KEPT]:
            del self._kept[old]
        return key

    def get(self, key: str) -> str:
        """Return the sentence of a key; empty for one that the console has not made."""
        return self._kept.get(key, "")

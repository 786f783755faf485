"""Templates as answers: all that is put into one is escaped, and what hides in a name is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from markupsafe import Markup
from starlette.responses import Response

from a2a_serverless_tools.inspect import wording

BASE: Final = "/_console"
"""The path of the console; no agent has a tenant of this name."""

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
"""Control characters, and those that turn the direction of what follows them."""


def visible(value: object) -> object:
    """Return a text with each hidden character as Python and JSON write it; all else as it is.

    A name cannot change how the words beside it read. Texts of messages and artifacts, which stand
    in a block of their own, come as markup and keep theirs: Arabic and Hebrew need them.
    """
    if isinstance(value, str) and not isinstance(value, Markup):
        return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", value)
    return value


_TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    finalize=visible,
    undefined=ChainableUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals |= {"base": BASE, "w": wording, "plain": lambda state: state.replace("_", " ")}


def page(template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a template as an answer; every value in it is escaped."""
    text = _TEMPLATES.get_template(template).render(**values)
    return Response(text, status, media_type="text/html; charset=utf-8")

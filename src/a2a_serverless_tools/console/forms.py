"""The fields of a form that a page has sent."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, without spaces around them."""
    body = (await request.body()).decode(errors="replace")
    return {name: value.strip() for name, value in parse_qsl(body)}

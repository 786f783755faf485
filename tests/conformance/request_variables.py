"""Context variables that a middleware sets from a request's headers, as applications do."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send


@dataclass(frozen=True)
class Session:
    """Something that is no JSON."""

    user: str


REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="unset")
SESSION: ContextVar[Session | None] = ContextVar("session", default=None)
LOCALE: ContextVar[str] = ContextVar("locale", default="unset")

CARRIED = ", ".join(f"{__name__}:{name}" for name in ("REQUEST_ID", "SESSION"))
"""A2A_CONTEXT_VARIABLES; `LOCALE` is left out."""

_HEADERS: dict[str, tuple[ContextVar[Any], Callable[[str], Any]]] = {
    "x-request-id": (REQUEST_ID, str),
    "x-session": (SESSION, Session),
    "x-locale": (LOCALE, str),
}


class RequestVariables:
    """Sets them for as long as the request is served."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        given = [
            (variable, variable.set(made(value)))
            for name, (variable, made) in _HEADERS.items()
            if (value := headers.get(name)) is not None
        ]
        try:
            await self._app(scope, receive, send)
        finally:
            for variable, token in given:
                variable.reset(token)

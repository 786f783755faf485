"""Refuses requests of other sites' pages to an endpoint on this machine without authentication.

Every page in a browser on this machine can send requests to `127.0.0.1`. The browser names the page
in `Origin`. A page whose own name was made to resolve to this machine (DNS rebinding) is recognised
by that name in `Host`. Programs send no `Origin`, and in `Host` the address that they were given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from a2a_serverless.http.errors import RefusedError, quoted, response_of
from a2a_serverless.http.middleware import ANY_ORIGIN, origins_of
from a2a_serverless.settings import Settings
from a2a_serverless_tools.local.asgi import ASGIApp, Receive, Scope, Send

_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_HTTP_PORT: Final = 80


def guarded(app: ASGIApp, settings: Settings, port: int) -> ASGIApp:
    """Return the application for `port` of the loopback, with `OwnAddress` if A2A_AUTH is `none`.

    With authentication the application is returned as it is: a page in a browser has neither a key
    nor a token.
    """
    if settings.auth == "none":
        origins = origins_of(settings.cors_origins)
        return OwnAddress(app, port=port, public_url=settings.public_url, origins=origins)
    return app


class OwnAddress:
    """Passes on requests for this machine's own address, and answers the others with 403.

    Args:
        app: the application.
        port: the port of the loopback on which it is served.
        public_url: the address that its operator has given it; empty: none.
        origins: the origins whose pages may call as well, see A2A_CORS_ORIGINS.
    """

    def __init__(
        self, app: ASGIApp, *, port: int, public_url: str = "", origins: tuple[str, ...] = ()
    ) -> None:
        self._app = app
        self._url = f"http://127.0.0.1:{port}"
        names = [f"{name}:{port}" for name in _LOOPBACK]
        if port == _HTTP_PORT:
            names += _LOOPBACK
        self._allowed = {
            "host": set(names),
            "origin": {f"http://{name}" for name in names} | {*origins},
        }
        if public_url:
            public = urlsplit(public_url)
            self._allowed["host"].add(public.netloc.lower())
            self._allowed["origin"].add(f"{public.scheme}://{public.netloc}".lower())
        if ANY_ORIGIN in origins:
            del self._allowed["origin"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        foreign = next(self._foreign(scope), None) if scope["type"] == "http" else None
        if foreign is None:
            await self._app(scope, receive, send)
            return
        error = RefusedError("ForeignAddress", 403, self._sentence(*foreign))
        await response_of(error, scope["path"])(scope, receive, send)

    def _foreign(self, scope: Scope) -> Iterator[tuple[str, str]]:
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            if name in self._allowed and value.strip().lower() not in self._allowed[name]:
                yield name.title(), value

    def _sentence(self, name: str, value: str) -> str:
        return (
            f"The header {name} says {quoted(value)}, and without authentication only"
            f" {self._url} is served: use that URL, or start with A2A_AUTH=api-key."
        )

"""An ASGI application served by uvicorn in a thread of its own, for this machine's own address.

Every page in a browser on this machine can send requests to `127.0.0.1`. The browser names the page
in `Origin`. A page whose own name was made to resolve to this machine (DNS rebinding) is recognised
by that name in `Host`. Programs send no `Origin`, and in `Host` the address that they were given.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import uvicorn

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.errors import RequestRefusedError, quoted, response_of
from a2a_serverless.http.middleware import ANY_ORIGIN, origins_of
from a2a_serverless.settings import Settings
from a2a_serverless_tools.local.loops import Loop
from a2a_serverless_tools.local.sockets import HOST

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_uvicorn_logger = logging.getLogger("uvicorn.error")

START_S = 15.0
DRAIN_S = 1
"""Seconds that open streams may go on when the server stops."""
KEEP_ALIVE_S = 60
"""Seconds that an idle connection is kept: longer than clients keep one, so that none is closed
while a request is sent."""
LINGER_S = 10
"""The same for a server that leaves its port to another one."""
_CLOSE = (b"connection", b"close")


class HttpServer:
    """A server on a bound socket, which runs for a `with` block.

    At the end the port is closed, and streams that are still open `DRAIN_S` seconds later are cut.

    Raises (on entry):
        ConfigurationError: the server failed to start; the log says why.
    """

    def __init__(self, app: Any, bound: socket.socket, *, lifespan: bool = True) -> None:
        self._socket = bound
        self.port: int = bound.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="auto" if lifespan else "off",
            timeout_graceful_shutdown=DRAIN_S,
            timeout_keep_alive=KEEP_ALIVE_S,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._join_s: float | None = DRAIN_S + 3
        self._lingers_until = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name=f"http-{self.port}", daemon=True)

    def leave(self) -> None:
        """Leave the port to another process that listens on it, too, and take the time to end.

        No connection is accepted any more, and answers close theirs. The end of the block waits for
        answers and streams; an idle connection is closed `LINGER_S` from now.
        """
        self._loop.call_soon_threadsafe(self._loop.remove_reader, self._socket.fileno())
        state, config = self._server.server_state, self._server.config
        config.encoded_headers.append(_CLOSE)
        state.default_headers.append(_CLOSE)  # of answers that begin before it is made anew
        config.timeout_graceful_shutdown = self._join_s = None
        self._lingers_until = time.monotonic() + LINGER_S

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise ConfigurationError(f"The HTTP server on port {self.port} did not start.")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        state = self._server.server_state
        while state.connections and time.monotonic() < self._lingers_until:
            time.sleep(0.05)
        self._server.should_exit = True
        _uvicorn_logger.addFilter(self._is_news)
        self._thread.join(self._join_s)
        _uvicorn_logger.removeFilter(self._is_news)
        self._socket.close()

    def _is_news(self, record: logging.LogRecord) -> bool:
        """Return False while stopping: uvicorn reports each stream that it cuts off as an error."""
        return record.thread != self._thread.ident

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[self._socket])


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
        error = RequestRefusedError("ForeignAddress", 403, self._sentence(*foreign))
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

"""An ASGI application served by uvicorn in a thread of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Self

import uvicorn

from a2a_serverless.errors import ConfigurationError

HOST = "127.0.0.1"
START_S = 15.0
DRAIN_S = 2
"""How long open streams may go on when the server stops."""


def bind(port: int, host: str = HOST) -> socket.socket:
    """A socket that holds `port`; 0 takes a free one.

    Raises:
        ConfigurationError: somebody else has the port.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        msg = f"Port {port} of {host} cannot be used: {error.strerror}."
        raise ConfigurationError(msg) from error
    return bound


def bind_neighbours(port: int) -> tuple[socket.socket, socket.socket]:
    """Sockets on `port` and `port + 1`; with 0 a free pair of neighbours.

    Raises:
        ConfigurationError: one of the ports is taken.
    """
    for attempt in range(50):
        first = bind(port)
        try:
            return first, bind(first.getsockname()[1] + 1)
        except (ConfigurationError, OverflowError):
            first.close()
            if port or attempt == 49:  # noqa: PLR2004 - the last of the range
                raise
    raise AssertionError  # the loop returns or raises


class HttpServer:
    """A server on a bound socket; it runs from `start` to `stop`, or for a `with` block."""

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
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name=f"http-{self.port}", daemon=True)

    def start(self) -> None:
        """Return when the server takes requests.

        Raises:
            ConfigurationError: it does not; the log says why.
        """
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                msg = f"The HTTP server on port {self.port} did not start."
                raise ConfigurationError(msg)
            time.sleep(0.01)

    def stop(self) -> None:
        """Close the port; open streams end after `DRAIN_S` seconds."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(DRAIN_S + 3)
        self._socket.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        sockets: Sequence[socket.socket] = [self._socket]
        self._server.run(sockets=list(sockets))

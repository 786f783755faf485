"""An ASGI application served by uvicorn in a thread of its own."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any, Self

import uvicorn

from a2a_serverless.errors import ConfigurationError

_uvicorn_logger = logging.getLogger("uvicorn.error")

HOST = "127.0.0.1"
START_S = 15.0
DRAIN_S = 1
"""Seconds that open streams may go on when the server stops."""
KEEP_ALIVE_S = 60
"""Seconds that an idle connection is kept: longer than clients keep one, so that none is closed
while a request is sent."""


def bind(port: int) -> socket.socket:
    """Return a socket that holds `port` of the loopback; 0 takes a free one.

    Raises:
        ConfigurationError: the port is taken.
    """
    # asyncio sets TCP_NODELAY only on connections of a socket that names its protocol.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((HOST, port))
        bound.listen()  # otherwise Linux lets a second process bind the port as well
    except OSError as error:
        bound.close()
        way_out = "name another one with --port; 0 takes a free one"
        msg = f"Port {port} of {HOST} cannot be used ({error.strerror}): {way_out}."
        raise ConfigurationError(msg) from error
    return bound


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
        self._thread = threading.Thread(target=self._run, name=f"http-{self.port}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise ConfigurationError(f"The HTTP server on port {self.port} did not start.")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        _uvicorn_logger.addFilter(self._is_news)
        self._thread.join(DRAIN_S + 3)
        _uvicorn_logger.removeFilter(self._is_news)
        self._socket.close()

    def _is_news(self, record: logging.LogRecord) -> bool:
        """Return False while stopping: uvicorn reports each stream that it cuts off as an error."""
        return record.thread != self._thread.ident

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

"""A receiver of push notifications."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Webhook:
    """Where it is, and what it has received: headers and JSON."""

    url: str
    received: list[tuple[Mapping[str, str], Any]] = field(default_factory=list)


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A receiver that takes everything, for the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Take a notification."""
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.received.append((dict(self.headers), json.loads(body)))
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's
            """Say nothing: the test speaks."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hook = Webhook(f"http://127.0.0.1:{server.server_address[1]}/hook")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()

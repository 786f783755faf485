"""Lambda's Runtime API for one execution environment, as far as a function sees it.

https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any, ClassVar, Literal

_ROOT = "/2018-06-01/runtime"
_ACCOUNT = "123456789012"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the runtime client told: that it waits for an event, an answer, or an error."""

    kind: Literal["ready", "response", "error", "init error"]
    content: Any = None


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One event, to be answered within `timeout_s` seconds."""

    event: Any
    timeout_s: float
    function: str


class RuntimeApi:
    """Hands out events and keeps the reports; `address` is what AWS_LAMBDA_RUNTIME_API holds.

    None among the events ends a connection that waits for one.
    """

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.invocations: Queue[Invocation | None] = Queue()
        self.reports: Queue[Report] = Queue()
        host, port = server.server_address[:2]
        self.address = f"{host!s}:{port}"


@contextmanager
def runtime_api() -> Iterator[RuntimeApi]:
    """A Runtime API on a free port, for the block."""

    class Handler(_Handler):
        pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        Handler.api = api = RuntimeApi(server)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield api
        finally:
            api.invocations.put(None)
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A function that was ended has broken its connection; everything else is a mistake."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ClassVar[RuntimeApi]

    def do_GET(self) -> None:
        """`invocation/next`: waits for an event."""
        assert self.path == f"{_ROOT}/invocation/next", self.path
        self.api.reports.put(Report(kind="ready"))
        invocation = self.api.invocations.get()
        if invocation is None:
            self.close_connection = True
            return
        headers = {
            "Content-Type": "application/json",
            "Lambda-Runtime-Aws-Request-Id": str(uuid.uuid4()),
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + invocation.timeout_s) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": (
                f"arn:aws:lambda:us-east-1:{_ACCOUNT}:function:{invocation.function}"
            ),
            "Lambda-Runtime-Trace-Id": (
                f"Root=1-{int(time.time()):08x}-{secrets.token_hex(12)};"
                f"Parent={secrets.token_hex(8)};Sampled=1"
            ),
        }
        self._answer(HTTPStatus.OK, json.dumps(invocation.event).encode(), headers)

    def do_POST(self) -> None:
        """`invocation/ID/response`, `invocation/ID/error` and `init/error`."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"null")
        kinds: dict[str, Literal["response", "error"]] = {"response": "response", "error": "error"}
        if self.path == f"{_ROOT}/init/error":
            report = Report(kind="init error", content=body)
        else:
            report = Report(kind=kinds[self.path.rpartition("/")[2]], content=body)
        self._answer(HTTPStatus.ACCEPTED, b'{"status": "OK"}', {})
        self.api.reports.put(report)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the test speaks."""

    def _answer(self, status: HTTPStatus, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

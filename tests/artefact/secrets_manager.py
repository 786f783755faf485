"""What the functions need of Secrets Manager: to read a current value."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def secrets_manager(values: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A Secrets Manager with these secrets; gives the variable that leads to it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """GetSecretValue."""
            wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.headers["X-Amz-Target"] == "secretsmanager.GetSecretValue"
            name, stage = wanted["SecretId"], wanted.get("VersionStage", "AWSCURRENT")
            if name in values and stage == "AWSCURRENT":
                self._answer(HTTPStatus.OK, {"Name": name, "SecretString": values[name]})
            else:
                self._answer(HTTPStatus.BAD_REQUEST, {"__type": "ResourceNotFoundException"})

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's
            """Say nothing: the test speaks."""

        def _answer(self, status: HTTPStatus, content: Mapping[str, str]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            port = server.server_address[1]
            yield {"AWS_ENDPOINT_URL_SECRETS_MANAGER": f"http://127.0.0.1:{port}"}
        finally:
            server.shutdown()
            thread.join()

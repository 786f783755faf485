"""Files for agents: in the content of a message, or at URLs of this machine."""

from __future__ import annotations

import mimetypes
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import quote, unquote, urlsplit

from a2a.types import Part

_OK: Final = 200
_NOT_FOUND: Final = 404
_POLL_S: Final = 0.01
"""Seconds within which the server notices that it has to end."""


def file_part(filename: str, content: bytes | str, media_type: str = "") -> Part:
    """Return a part with a file's content, as a client sends a small file.

    >>> run = bench.send(["Read this.", file_part("report.txt", "Sales were fine.")])

    Without `media_type` the ending of the name decides.
    """
    raw = content.encode() if isinstance(content, str) else content
    return Part(raw=raw, filename=filename, media_type=media_type or _type_of(filename))


@dataclass(frozen=True, slots=True)
class _Served:
    content: bytes
    media_type: str
    status: int


class FakeFiles:
    """A server on this machine, for files that messages name by their URL.

    The agent fetches them with the library that it always uses.

    >>> with FakeFiles() as files:
    ...     report = files.add("report.txt", "Sales were fine.")
    >>> report.filename
    'report.txt'
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        """The names of the requested files in order, including those that do not exist."""
        self._files: dict[str, _Served] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="fake-files", daemon=True
        )
        self._thread.start()

    def add(
        self, filename: str, content: bytes | str = b"", media_type: str = "", *, status: int = _OK
    ) -> Part:
        """Serve a file; it replaces one with the same name. Return the part that names its URL.

        >>> run = bench.send(["Read this.", files.add("report.txt", "Sales were fine.")])

        `status`: the status of the answer, such as 503 for a server that is down.
        """
        raw = content.encode() if isinstance(content, str) else content
        kind = media_type or _type_of(filename)
        self._files[filename] = _Served(raw, kind, status)
        return Part(url=self.url(filename), filename=filename, media_type=kind)

    def url(self, filename: str) -> str:
        """Return the URL of a file, which need not exist.

        >>> run = bench.send(f"Read {files.url('missing.txt')}")
        """
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/{quote(filename)}"

    def close(self) -> None:
        """End the server, as `with` does.

        >>> files.close()
        """
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, path: str) -> _Served:
        filename = unquote(urlsplit(path).path.removeprefix("/"))
        self.requests.append(filename)
        return self._files.get(filename, _Served(b"", "text/plain", _NOT_FOUND))


def _handler_of(files: FakeFiles) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(self._begin())

        def do_HEAD(self) -> None:
            self._begin()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
            """Write nothing to stderr."""

        def _begin(self) -> bytes:
            """Send status and headers; return the content."""
            served = files._answer(self.path)  # noqa: SLF001 - its own server
            self.send_response(served.status)
            self.send_header("Content-Type", served.media_type)
            self.send_header("Content-Length", str(len(served.content)))
            self.end_headers()
            return served.content

    return Handler


def _type_of(filename: str) -> str:
    return mimetypes.guess_type(filename)[0] or "application/octet-stream"

"""Requests whose answers are read as they come: httpx's ASGI transport waits for their end."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope


@dataclass(frozen=True)
class ServerEvent:
    """One server-sent event; `data` is its JSON."""

    data: Any
    id: str | None = None
    event: str | None = None


class LiveResponse:
    """An answer whose body still comes."""

    def __init__(self, window: int = 0) -> None:
        self.messages: asyncio.Queue[Message | None] = asyncio.Queue(window)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.comments: list[str] = []
        self.retry: str | None = None
        self._buffer = ""
        self._is_read = True

    async def put(self, message: Message | None) -> None:
        """Take what the application sends, None at its end."""
        if self._is_read:
            await self.messages.put(message)

    def abandon(self) -> None:
        """Read no more; a writer that waits for a reader goes on."""
        self._is_read = False
        while not self.messages.empty():
            self.messages.get_nowait()

    async def start(self) -> None:
        message = await self.messages.get()
        assert message is not None, "the application answered nothing"
        self.status = message["status"]
        self.headers = {k.decode(): v.decode() for k, v in message["headers"]}

    async def chunks(self) -> AsyncIterator[bytes]:
        while (message := await self.messages.get()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def events(self) -> AsyncIterator[ServerEvent]:
        """Events one by one; comments are kept in `comments`, the last block's `retry` in `retry`.

        Lines may end with CRLF, as those of the stock server do.
        """
        async for chunk in self.chunks():
            self._buffer += chunk.decode().replace("\r\n", "\n")
            while "\n\n" in self._buffer:
                block, _, self._buffer = self._buffer.partition("\n\n")
                event = self._event(block)
                if event is not None:
                    yield event

    def _event(self, block: str) -> ServerEvent | None:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            if name:
                fields[name] = value.removeprefix(" ")
            else:
                self.comments.append(value.strip())
        self.retry = fields.get("retry")
        if "data" not in fields:
            return None
        return ServerEvent(json.loads(fields["data"]), fields.get("id"), fields.get("event"))


def scope_of(method: str, target: str, headers: Mapping[str, str]) -> Scope:
    """The ASGI scope of a request; what is no text in it is replaced."""
    path, _, query = target.partition("?")
    lines = [(k.encode(errors="replace"), v.encode(errors="replace")) for k, v in headers.items()]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(errors="replace"),
        "root_path": "",
        "query_string": query.encode(errors="replace"),
        "headers": lines,
        "server": ("test", 80),
        "client": ("127.0.0.1", 1),
    }


@asynccontextmanager
async def live(
    app: ASGIApp,
    method: str,
    target: str,
    *,
    body: Any = None,
    headers: Mapping[str, str | None] | None = None,
    window: int = 0,
) -> AsyncIterator[LiveResponse]:
    """The answer to a request, from its first byte on; leaving the block is a disconnect.

    Content-Type and A2A-Version are sent, too, unless `headers` has None for them.

    The application may be `window` messages ahead of the reader, 0: any number; then its sending
    blocks, as that of a server does whose client does not read.
    """
    content = (
        body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    )
    given: dict[str, str | None]
    given = {"host": "test", "content-type": "application/json", "a2a-version": "1.0"}
    given |= {name.lower(): value for name, value in (headers or {}).items()}
    sent = {name: value for name, value in given.items() if value is not None}
    scope = scope_of(method, target, sent)
    response = LiveResponse(window)
    gone = asyncio.Event()
    requests: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Message:
        if requests:
            return requests.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        await response.put(message)

    async def serve() -> None:
        try:
            await app(scope, receive, send)
        finally:
            await response.put(None)

    serving = asyncio.create_task(serve())
    try:
        await response.start()
        yield response
    finally:
        gone.set()
        response.abandon()
        await serving

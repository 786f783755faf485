"""The ids of server-sent events, which the SDK's client skips.

httpx calls `watch_response` with every response. If the request was made under a `Watch`, the ids
in the response's body are noted there while the SDK reads it.
"""

from __future__ import annotations

import codecs
import io
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import httpx

_current: ContextVar[Watch | None] = ContextVar("a2a_serverless_client_watch", default=None)


def watch_responses_of(http: httpx.AsyncClient) -> None:
    """Let watches see the responses of `http`, without any effect on its other users."""
    hooks = http.event_hooks["response"]
    if watch_response not in hooks:
        hooks.append(watch_response)


async def watch_response(response: httpx.Response) -> None:
    """Show `response` to the watch under which its request was made, if there is one."""
    watch = _current.get()
    if watch is not None:
        watch.see(response)


class Watch:
    """Sees the responses to one call of the SDK's client.

    `has_answer` is True once there was any response, `is_stream` once one was an event stream.
    """

    def __init__(self) -> None:
        self.has_answer = False
        self.is_stream = False
        self._ids: deque[str | None] = deque()
        self._response: httpx.Response | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch the requests made inside the block, in its asyncio task and in those it starts."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def see(self, response: httpx.Response) -> None:
        """Note the ids of `response` while it is read, if it is a readable event stream."""
        self.has_answer = True
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            return
        self.is_stream = True
        self._response = response
        is_plain = response.headers.get("content-encoding", "identity") == "identity"
        if is_plain and isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _Read(response.stream, _Parser(self._ids))

    def take(self) -> str | None:
        """Return the id of the next event that the SDK yields; None if it has none."""
        return self._ids.popleft() if self._ids else None

    async def close(self) -> None:
        """Close the stream's connection now; the SDK's generators would keep it until they end."""
        if self._response is not None:
            await self._response.aclose()


class _Read(httpx.AsyncByteStream):
    """A response's body; the parser gets each piece before the SDK does."""

    def __init__(self, body: httpx.AsyncByteStream, parser: _Parser) -> None:
        self._body = body
        self._parser = parser

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            self._parser.feed(piece)
            yield piece
        # The SDK treats a carriage return at the end of the stream as a complete line end.
        self._parser.feed(b"", is_last=True)

    async def aclose(self) -> None:
        await self._body.aclose()


class _Parser:
    """Puts the id, or None, of every event with data into `ids`, when the event is complete."""

    def __init__(self, ids: deque[str | None]) -> None:
        self._ids = ids
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._lines = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._unfinished = ""
        self._reset()

    def _reset(self) -> None:
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, piece: bytes, *, is_last: bool = False) -> None:
        """Read the next piece of the stream, which may end anywhere."""
        text = self._lines.decode(piece, final=is_last)
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        for line in lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not line:
                # The SDK yields no event without data either: ids and events stay in step.
                if "\n".join(self._data):
                    self._ids.append(self._id)
                self._reset()
            elif name == "id":
                self._id = value
            elif name == "data":
                self._data.append(value)

"""The ids of events: those of a stream, which the SDK's client skips, and those a caller has.

httpx calls `_see` with every response. If the request was made under a `Listener`, the fields
`id` and `retry` of the response's body are noted there while the SDK reads it.
"""

from __future__ import annotations

import codecs
import hashlib
import io
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

import httpx
from a2a.client.errors import A2AClientError
from a2a.types import Artifact, Part, StreamResponse, Task, TaskState, TaskStatus
from google.protobuf.message import Message

LONGEST_ID = 4096
"""Characters of an id that can be sent back: gateways take headers of some kilobytes."""
_LONGEST_EVENT = 64_000_000
"""Characters of one event of a stream, and bytes of an answer that is none. The SDK keeps each in
memory until it is complete."""

_ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"}
"""What the SDK's client takes for the end of a line, as httpx does, and the standard does not. In
the JSON of an event its escape is the same character."""

_current: ContextVar[Listener | None] = ContextVar("a2a_serverless_client_watch", default=None)


class Listener:
    """Sees the responses to one call of the SDK's client.

    `has_answer` is True once there was any response, `is_stream` once one was an event stream.
    """

    def __init__(self) -> None:
        self.has_answer = False
        self.is_stream = False
        self._parser = _Parser()
        self._response: httpx.Response | None = None

    @staticmethod
    def responses_of(http: httpx.AsyncClient) -> None:
        """Let watches see the responses of `http`, without any effect on its other users."""
        hooks = http.event_hooks["response"]
        if _see not in hooks:
            hooks.append(_see)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch the requests made inside the block, in its asyncio task and in those it starts."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def see(self, response: httpx.Response) -> bool:
        """Note the fields of `response` while it is read; return False if it is no event stream.

        Raises:
            A2AClientError: the stream is compressed.
        """
        self.has_answer = True
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            return False
        self.is_stream = True
        self._response = response
        self._parser = _Parser()
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise _given_up(
                f"the Content-Encoding {encoding!r}, in which the ids and the sizes of its events"
                " cannot be read"
            )
        body = cast("httpx.AsyncByteStream", response.stream)  # as each of httpx's AsyncClient
        response.stream = _Read(body, self._parser)
        return True

    @property
    def asks_to_come_back(self) -> bool:
        """Return True if the server has sent `retry` after the last event: there is more."""
        return self._parser.retries

    def take(self) -> str | None:
        """Return the id of the next event that the SDK yields; None if it has none."""
        return self._parser.ids.popleft() if self._parser.ids else None

    async def close(self) -> None:
        """Close the stream's connection now; the SDK's generators would keep it until they end."""
        if self._response is not None:
            await self._response.aclose()


def _given_up(what: str) -> A2AClientError:
    """Return the error for a stream that has `what` a client cannot take."""
    return A2AClientError(
        f"The server's stream has {what}: the stream is given up. Call get_task to see how the"
        " task stands."
    )


async def _see(response: httpx.Response) -> None:
    watch = _current.get()
    if watch is not None and not watch.see(response):
        await read_whole(response)


async def read_whole(response: httpx.Response, most: int = 0) -> None:
    """Read an answer that is no stream, before the SDK does.

    It may have so many bytes; 0: as many as an event of a stream.

    Raises:
        A2AClientError: it is longer than a client can take, after it was decompressed.
    """
    most = most or _LONGEST_EVENT
    pieces, size = [], 0
    async for piece in response.aiter_bytes():
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise A2AClientError(
                f"The server's answer has more than {most:,} bytes: it is given up. Call"
                " get_task with a history_length to see how the task stands."
            )
    response._content = b"".join(pieces)  # noqa: SLF001 - as httpx itself keeps what it has read


class _Read(httpx.AsyncByteStream):
    """A response's body; the SDK gets of each piece what the parser has read."""

    def __init__(self, body: httpx.AsyncByteStream, parser: _Parser) -> None:
        self._body = body
        self._parser = parser

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            yield self._parser.feed(piece)
        # The SDK treats a carriage return at the end of the stream as a complete line end.
        yield self._parser.feed(b"", is_last=True)

    async def aclose(self) -> None:
        await self._body.aclose()


class _Parser:
    """Reads a stream before the SDK does, and keeps none of its data.

    `ids` has the id, or None, of every event with data, in order; `retries` says whether the field
    `retry` came after the last one.
    """

    def __init__(self) -> None:
        self.ids: deque[str | None] = deque()
        self.retries = False
        decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._lines = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._line = ""
        """The beginning of the unfinished line: as much of it as an id may have."""
        self._begin_event()

    def _begin_event(self) -> None:
        self._id: str | None = None
        self._data_lines = 0
        self._has_text = False
        self._size = 0

    def feed(self, piece: bytes, *, is_last: bool = False) -> bytes:
        """Read the next piece of the stream, which may end anywhere; return it for the SDK.

        All its lines end with LF, and nothing else in it ends a line.

        Raises:
            A2AClientError: an event or an id is longer than a client can take.
        """
        text = self._lines.decode(piece, final=is_last)
        rest, *lines = text.split("\n")
        self._add(rest)
        for line in lines:
            self._end_line()
            self._add(line)
        return text.translate(_ESCAPED).encode()

    def _add(self, text: str) -> None:
        self._size += len(text)
        if self._size > _LONGEST_EVENT:
            raise _given_up(f"an event of more than {_LONGEST_EVENT:,} characters")
        self._line += text[: _LONGEST_ID_LINE + 1 - len(self._line)]
        if len(self._line) > _LONGEST_ID_LINE and self._line.startswith("id:"):
            raise _given_up(
                f"an id of more than {LONGEST_ID:,} characters, which no request could name"
            )

    def _end_line(self) -> None:
        self._size += 1
        name, _, value = self._line.partition(":")
        value = value.removeprefix(" ")
        if not self._line:
            # The SDK yields no event without data either: ids and events stay in step.
            if self._has_text or self._data_lines > 1:
                self.ids.append(self._id)
                self.retries = False
            self._begin_event()
        elif name == "id":
            self._id = value if _can_be_sent(value) else None
        elif name == "data":
            self._data_lines += 1
            self._has_text = self._has_text or bool(value)
        elif name == "retry":
            self.retries = True
        self._line = ""


_LONGEST_ID_LINE = len("id: ") + LONGEST_ID


def _can_be_sent(event_id: str) -> bool:
    """Return True if an id can be the value of an HTTP header, as `Last-Event-ID` is."""
    is_text = event_id.isascii() and event_id.isprintable()
    return is_text and bool(event_id) and event_id == event_id.strip()


# -- what the caller has ---------------------------------------------------------------------


class Known:
    """The newest event that a caller has, and digests of everything before it.

    `newest` is that event, `last_id` its id; each is None if there is none. `state` is the task's
    newest state.
    """

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self.newest: StreamResponse | None = None
        self._status = TaskStatus()
        self._artifacts: dict[str, _Content] = {}
        """What the parts of each artifact say."""
        self._seen: dict[str, bytes] = {}
        self._ids_are_unique = True

    @property
    def state(self) -> TaskState:
        return self._status.state

    def ends_at(self, event_id: str | None, opening: StreamResponse) -> bool:
        """Return True if a stream with this opening goes on after the newest event.

        Its id alone does not prove that: a server that numbers the events of each connection opens
        every stream under the same id.
        """
        if event_id is None or event_id != self.last_id:
            return False
        if not opening.HasField("task"):
            return opening == self.newest
        return self._has_status(opening.task.status) and _contents(opening.task) == self._artifacts

    def _has_status(self, status: TaskStatus) -> bool:
        """Return True if `status` shows nothing new; a follow-up clears the message of a status."""
        known = TaskStatus()
        known.CopyFrom(self._status)
        if not status.HasField("message"):
            known.ClearField("message")
        return status == known

    def has(self, event_id: str | None, event: StreamResponse) -> bool:
        """Return True if the server has sent this very event before, under the same id.

        A server that gives one id to different events has no ids by which events are recognised.
        """
        if event.HasField("task") and self.ends_at(event_id, event):
            return True
        before = self._seen.get(event_id or "")
        if before is None or before == _digest(event):
            return before is not None
        self._ids_are_unique = False
        self._seen.clear()
        return False

    def forget_ids(self) -> None:
        """Forget all ids: those that come may be given to other events."""
        self._seen.clear()
        self.last_id = None

    def note_id(self, event_id: str | None, event: StreamResponse) -> None:
        """Note that the caller has `event`, which came under this id."""
        self.last_id = event_id
        if event_id is not None and self._ids_are_unique:
            self._seen[event_id] = _digest(event)

    def take(self, event_id: str | None, event: StreamResponse) -> None:
        """Note that the caller gets `event`."""
        self.note_id(event_id, event)
        self.newest = event
        match event.WhichOneof("payload"):
            case "task":
                self._status.CopyFrom(event.task.status)
                self._artifacts = _contents(event.task)
            case "status_update":
                self._status.CopyFrom(event.status_update.status)
            case "artifact_update":
                artifact = event.artifact_update.artifact
                if not event.artifact_update.append:
                    self._artifacts.pop(artifact.artifact_id, None)
                self._artifacts.setdefault(artifact.artifact_id, _Content()).add(artifact)


class _Content:
    """A digest of an artifact's parts, the same however their text was cut into chunks."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._before = b""
        """What the newest part has besides its text."""

    def add(self, artifact: Artifact) -> None:
        """Take the parts that follow."""
        for part in artifact.parts:
            rest = Part()
            rest.CopyFrom(part)
            if part.HasField("text"):
                rest.text = ""
            beside = _digest(rest)
            if not (part.HasField("text") and beside == self._before):
                self._digest.update(b"\xff" + beside)  # no text in UTF-8 has this byte
            self._digest.update(part.text.encode())
            self._before = beside

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self._digest.digest() == other._digest.digest()

    __hash__ = None  # type: ignore[assignment]


def _contents(task: Task) -> dict[str, _Content]:
    found: dict[str, _Content] = {}
    for artifact in task.artifacts:
        found[artifact.artifact_id] = _Content()
        found[artifact.artifact_id].add(artifact)
    return found


def _digest(message: Message) -> bytes:
    content = message.SerializeToString(deterministic=True)
    return hashlib.blake2b(content, digest_size=16).digest()

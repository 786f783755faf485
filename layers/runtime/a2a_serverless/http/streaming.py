"""Server-sent events that a client can resume: every event carries its cursor as `id:`.

The SDK turns events into responses and knows no ids. So the handler puts the cursor of each event
into a note, a context variable, just before it yields the event, and `with_event_ids` takes it out
when the item that the SDK made of the event comes out of the response. Both sides are in step,
because the SDK makes one item of each event and fetches only the first one ahead. In the same way
the handler says which event is the last of its turn, which 0.3 tells its clients, and why a stream
ends early, which a comment after its last event says. The field `retry` beside the comment tells a
client that there is more.

Lines end with LF, because some clients only find the end of an event at two LF.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from a2a.utils import json_utils
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError
from google.protobuf.json_format import ParseError
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response

from a2a_serverless.http.errors import rest_error
from a2a_serverless.tasks.events import Cursor

Endpoint = Callable[[Request], Awaitable[Response]]
Marked = Callable[[str], str]
"""Takes an event's JSON, and returns it with the mark of a turn's last event."""

RETRY_MS = 200
"""The value of the field `retry` at the end of a stream that ends early."""

_LINE_END = "\n"

_UNICODE_LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
"""JSON escapes of the characters that end a line in Unicode, and in the SDK's client, but not in
server-sent events."""


@dataclass(slots=True)
class _Note:
    """What the handler says of its stream."""

    cursor: Cursor | None = None
    """The cursor of the event that was yielded last; None once its item has taken it."""
    is_last: bool = False
    """Whether that event is the last of its turn."""
    remark: str = ""
    """Why the stream ends early."""


_note: ContextVar[_Note | None] = ContextVar("a2a_serverless_event_cursor", default=None)


def announce(cursor: Cursor, *, is_last: bool = False) -> None:
    """Set the cursor of the event that the handler yields next, and whether it ends its turn."""
    note = _note.get()
    if note is not None:
        note.cursor, note.is_last = cursor, is_last


def remark(text: str) -> None:
    """Say in a comment, which is no event, why the stream ends now."""
    note = _note.get()
    if note is not None:
        note.remark = text


def with_event_ids(
    endpoint: Endpoint, *, keep_alive_s: float, marked: Marked | None = None
) -> Endpoint:
    """Return the endpoint with ids in its streams, and a comment every `keep_alive_s` seconds.

    `marked` is applied to the last event of a turn, in dialects whose clients wait for a mark.
    """

    async def streaming_endpoint(request: Request) -> Response:
        note = _Note()
        _note.set(note)
        response = await endpoint(request)
        if not isinstance(response, EventSourceResponse):
            return response
        response.ping_interval = keep_alive_s
        response.sep = _LINE_END
        items = aiter(response.body_iterator)
        try:
            first = await anext(items)
        except StopAsyncIteration:
            return response
        except (A2AError, ParseError) as error:
            # The dialect of 0.3 begins its stream before it knows whether the request succeeds.
            return rest_error(error)
        response.body_iterator = _numbered(first, items, note, marked)
        return response

    return streaming_endpoint


async def _numbered(
    first: Any, items: AsyncIterator[Any], note: _Note, marked: Marked | None
) -> AsyncIterator[dict[str, Any]]:
    try:
        yield _framed(first, note, marked)
        async for item in items:
            yield _framed(item, note, marked)
        if note.remark:
            yield {"comment": note.remark, "retry": RETRY_MS}
    except A2AError as error:
        yield {"event": "error", "data": json_utils.dumps(build_rest_error_payload(error))}
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


def _framed(item: Any, note: _Note, marked: Marked | None) -> dict[str, Any]:
    """Return an item's fields, with the note's cursor as its id, and Unicode's line ends escaped.

    An item may have any of the forms that EventSourceResponse allows. The note gives its cursor
    only once: an error that follows is no event and gets no id.
    """
    fields = _fields(item)
    if note.cursor is not None:
        fields["id"], note.cursor = str(note.cursor), None
        if note.is_last and marked is not None:
            fields["data"] = marked(fields["data"])
    if isinstance(fields["data"], str):
        fields["data"] = fields["data"].translate(_UNICODE_LINE_ENDS)
    return fields


def _fields(item: Any) -> dict[str, Any]:
    match item:
        case ServerSentEvent():
            return {"data": item.data, "event": item.event}
        case dict():
            return {"data": None, **item}
        case _:
            return {"data": item}

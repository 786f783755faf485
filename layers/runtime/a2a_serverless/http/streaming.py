"""Server-sent events that a client can resume: every event carries its cursor as `id:`.

The SDK turns events into responses and knows no ids. So the handler puts the cursor of each event
into a slot, a context variable, just before it yields the event, and `with_event_ids` takes it out
when the item that the SDK made of the event comes out of the response. Both sides are in step,
because the SDK makes one item of one event and fetches none ahead but the first. In the same way
the handler says why a stream ends early, in a comment behind its last event.
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

_UNICODE_LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
"""Line ends to Unicode, and to the SDK's client, but not to server-sent events, as JSON escapes."""


@dataclass(slots=True)
class _Slot:
    """What the handler says of its stream."""

    cursor: Cursor | None = None
    """That of the event on its way out; None when its item has taken it."""
    remark: str = ""
    """Why the stream ends early."""


_slot: ContextVar[_Slot | None] = ContextVar("a2a_serverless_event_cursor", default=None)


def announce(cursor: Cursor) -> None:
    """Set the cursor of the event that the handler yields next."""
    slot = _slot.get()
    if slot is not None:
        slot.cursor = cursor


def remark(text: str) -> None:
    """Say in a comment, which is no event, why the stream ends now."""
    slot = _slot.get()
    if slot is not None:
        slot.remark = text


def with_event_ids(endpoint: Endpoint, *, keep_alive_s: float) -> Endpoint:
    """Return the endpoint with ids in its streams, and a comment every `keep_alive_s` seconds."""

    async def streaming_endpoint(request: Request) -> Response:
        slot = _Slot()
        _slot.set(slot)
        response = await endpoint(request)
        if not isinstance(response, EventSourceResponse):
            return response
        response.ping_interval = keep_alive_s
        items = aiter(response.body_iterator)
        try:
            first = await anext(items)
        except StopAsyncIteration:
            return response
        except (A2AError, ParseError) as error:
            # The 0.3 dialect starts its stream before it knows whether there is one.
            return rest_error(error)
        response.body_iterator = _numbered(first, items, slot)
        return response

    return streaming_endpoint


async def _numbered(first: Any, items: AsyncIterator[Any], slot: _Slot) -> AsyncIterator[Any]:
    try:
        yield _with_id(_in_lines(first), slot)
        async for item in items:
            yield _with_id(_in_lines(item), slot)
        if slot.remark:
            yield ServerSentEvent(comment=slot.remark)
    except A2AError as error:
        yield ServerSentEvent(json_utils.dumps(build_rest_error_payload(error)), event="error")
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


def _in_lines(item: Any) -> Any:
    """Return an item whose JSON has no line end that only some clients see."""
    if isinstance(item, ServerSentEvent) and isinstance(item.data, str):
        item.data = item.data.translate(_UNICODE_LINE_ENDS)
    elif isinstance(item, dict) and isinstance(item.get("data"), str):
        return {**item, "data": item["data"].translate(_UNICODE_LINE_ENDS)}
    return item


def _with_id(item: Any, slot: _Slot) -> Any:
    """Return an item of an EventSourceResponse, in any of its forms, with the id in the slot.

    The slot gives its cursor once: an error that follows is no event and gets none.
    """
    if slot.cursor is None:
        return item
    event_id, slot.cursor = str(slot.cursor), None
    if isinstance(item, ServerSentEvent):
        item.id = event_id
        return item
    if isinstance(item, dict):
        return {**item, "id": event_id}
    return {"data": item, "id": event_id}

"""One client's stream of a task: its events with their ids, and why it ends.

It goes out as server-sent events that a client can resume: every event carries its cursor as `id:`.
A stream that ends early says why in a comment, beside the field `retry`, which tells a client that
there is more. Lines end with LF, because some clients only find the end of an event at two LF.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

from a2a.utils import json_utils
from a2a.utils.errors import A2AError
from starlette.responses import Response

from a2a_serverless.http.context import protocol_errors
from a2a_serverless.http.intake import Wait
from a2a_serverless.storage.tail import Tail, TailEvent
from a2a_serverless.tasks.fold import Cursor, Event
from a2a_serverless.tasks.head import Head
from a2a_serverless.values import dataclass

Json = dict[str, Any]

_TOO_MANY: Final = (
    "Too many streams are open: this one ends. Subscribe again with Last-Event-ID to go on."
)
"""The comment at the end of a stream above the limit."""
TOO_LONG: Final = (
    "The stream has reached its time limit. Subscribe again with Last-Event-ID to go on."
)
"""The comment at the end of a stream whose turn or task goes on."""

_RETRY_MS: Final = 200
"""The value of the field `retry` at the end of a stream that ends early."""

_LINE_END: Final = "\n"

_UNICODE_LINE_ENDS: Final = {char: f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
"""JSON escapes of the characters that end a line in Unicode, and in the SDK's client, but not in
server-sent events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """An event, the cursor that continues after it, and whether it is the last of its turn."""

    event: Event
    cursor: Cursor
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class _EarlyEnd:
    """The end of a stream whose turn or task goes on: a comment, which is no event, says why."""

    remark: str


StreamItems = AsyncGenerator[StreamEvent | _EarlyEnd]


async def followed(
    opening: TailEvent,
    tail: Tail,
    until: Callable[[Head], bool],
    *,
    deadline: float,
    stop: float,
    wait: Wait,
    flush_s: float,
    show: Callable[[Event], Awaitable[Event]],
) -> StreamItems:
    """Yield the opening event and those of a tail until HEAD satisfies `until`, or why it ends.

    A stream takes a lease before it waits for the first time. If it gets none, it ends there. What
    was committed until then has been delivered, so that a client that comes back makes progress.

    In monotonic seconds: the stream does not wait after `deadline`; the events of a finished turn
    are still sent up to `stop`, a margin before the function ends. `flush_s` are the seconds from a
    commit of chunks to the next one, as the workers are set. `show` makes an event what is sent.
    """
    yield StreamEvent(event=await show(opening.event), cursor=opening.cursor)
    deliveries = tail.events(
        until=until,
        deadline=deadline,
        stop=stop,
        may_wait=wait.begin,
        flush_s=flush_s,
    )
    try:
        async for delivery in deliveries:
            is_last = until(tail.head) and not tail.has_more
            event = await show(delivery.event)
            yield StreamEvent(event=event, cursor=delivery.cursor, is_last=is_last)
        if tail.has_more or not until(tail.head):
            yield _EarlyEnd(_TOO_MANY if wait.is_refused else TOO_LONG)
    finally:
        await wait.end()


async def event_source(
    items: StreamItems,
    show: Callable[[StreamEvent], Any],
    show_error: Callable[[A2AError], Json],
    *,
    keep_alive_s: float,
    tells_at_once: bool = False,
) -> Response:
    """Return the answer that streams `items`.

    Args:
        items: a handler's.
        show: returns an event's JSON.
        show_error: returns the fields of the server-sent event for an error after the first event.
        keep_alive_s: the seconds from one comment to the next.
        tells_at_once: whether `show_error` is for an error before the first event, too.

    Raises:
        A2AError: before the first event, unless `tells_at_once`: it is the answer.
    """
    # It loads uvicorn, which runs in StreamFunction alone.
    from sse_starlette.sse import EventSourceResponse  # noqa: PLC0415

    frames = _framed(items, show)
    try:
        first = await anext(frames)
    except A2AError as error:
        if not tells_at_once:
            raise
        first = show_error(error)
    whole = _with_errors(first, frames, show_error)
    return EventSourceResponse(whole, ping=keep_alive_s, sep=_LINE_END)


async def _framed(items: StreamItems, show: Callable[[StreamEvent], Any]) -> AsyncGenerator[Json]:
    with protocol_errors("stream"):
        async with aclosing(items):
            async for item in items:
                if isinstance(item, _EarlyEnd):
                    yield {"comment": item.remark, "retry": _RETRY_MS}
                else:
                    data = json_utils.dumps(show(item))
                    # Not by `translate`: that takes 0.1 µs a character where one is not ASCII.
                    for char, escape in _UNICODE_LINE_ENDS.items():
                        data = data.replace(char, escape)
                    yield {"id": str(item.cursor), "data": data}


async def _with_errors(
    first: Json, frames: AsyncGenerator[Json], show_error: Callable[[A2AError], Json]
) -> AsyncIterator[Json]:
    """Yield the frames, and that of an error at the end; it is no event and has no id."""
    async with aclosing(frames):
        try:
            yield first
            async for frame in frames:
                yield frame
        except A2AError as error:
            yield show_error(error)

"""One page of an owner's tasks, in the order and by the page tokens of the SDK's stores."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from dataclasses import replace

from a2a.types import ListTasksRequest, ListTasksResponse
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    decode_list_tasks_cursor,
    decode_page_token,
    encode_list_tasks_cursor,
)

from a2a_serverless.clock import Clock
from a2a_serverless.storage.layout import BY_CONTEXT, BY_SCOPE
from a2a_serverless.storage.table import Check, Range
from a2a_serverless.stores import layout
from a2a_serverless.stores.content import task_of
from a2a_serverless.stores.log import Head, Stored, TaskLog


async def page_of(
    log: TaskLog,
    params: ListTasksRequest,
    owner: str,
    read: Callable[[str, str, Head], Awaitable[Stored | None]],
) -> ListTasksResponse:
    """Return one page, newest status first.

    An index names the tasks, and each HEAD, which is read consistently, says whether its task still
    belongs there. The total is counted in the index, an entry for each task.

    Args:
        log: the table's logs.
        params: what to list.
        owner: whose tasks.
        read: returns the task of an id, an owner and a HEAD; None: it was deleted meanwhile.

    Raises:
        InvalidParamsError: the page token is none.
    """
    size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
    end = await _end(log, params.page_token, owner)
    ranges = _ranges(params, owner, log.clock)
    left = [replace(one, last=end) for one in ranges if str(one.first or "") <= end]
    first = asyncio.gather(
        *(log.table.first(size + 1, one, lambda item: item["status_key"] != end) for one in left)
    )
    counted = asyncio.gather(*map(log.table.count, ranges))
    counts, parts = await asyncio.gather(counted, first)
    merged = heapq.merge(*parts, key=lambda entry: str(entry["status_key"]), reverse=True)
    places = [layout.read_place(entry["status_key"]) for entry in merged][: size + 1]
    cursor = ListTasksCursor(*places[size - 1]) if len(places) > size else None
    # Each once: an index shows a task twice that moves down while its pages are read.
    ids = dict.fromkeys(task_id for _, task_id in places[:size])
    loaded = await log.table.load([layout.head_key(task_id) for task_id in ids])
    heads = {task_id: log.live(loaded[layout.head_key(task_id)]) for task_id in ids}
    reads = (
        read(task_id, owner, head)
        for task_id, head in heads.items()
        if head and head.owner == owner and params.status in (0, head.state)
    )
    found = await asyncio.gather(*reads)
    return ListTasksResponse(
        tasks=[task_of(stored.contents) for stored in found if stored],
        total_size=sum(counts),
        page_size=size,
        next_page_token=encode_list_tasks_cursor(cursor) if cursor else "",
    )


def _ranges(params: ListTasksRequest, owner: str, clock: Clock) -> list[Range]:
    """Return the parts of the index that have all tasks which pass the filters."""
    index, partitions = BY_SCOPE, layout.owner_partitions(owner)
    if params.context_id:
        index, partitions = BY_CONTEXT, [layout.context_partition(owner, params.context_id)]
    first = None
    if params.HasField("status_timestamp_after"):
        first = layout.list_place(params.status_timestamp_after.ToNanoseconds(), "")
    in_state = [Check("state", "=", int(params.status))] if params.status else []
    return [
        Range(
            partition=partition,
            index=index,
            first=first,
            when=[layout.living(clock), *in_state],
            newest_first=True,
            only=("status_key",),
        )
        for partition in partitions
    ]


async def _end(log: TaskLog, token: str, owner: str) -> str:
    """Return the place before which a page begins; behind all places without a token.

    Older tokens of the SDK's name the first task of the page, those of today the last one before.

    Raises:
        InvalidParamsError: there is no such place.
    """
    if not token:
        return "~"
    cursor = decode_list_tasks_cursor(token)
    if cursor is not None and layout.fits(cursor.task_id):
        return layout.list_place(cursor.timestamp_ns, cursor.task_id)
    head = None if cursor else await log.head(decode_page_token(token))
    if head is None or head.owner != owner:
        raise InvalidParamsError(f"Invalid page token: {token}")
    return f"{head.status_key}\0"

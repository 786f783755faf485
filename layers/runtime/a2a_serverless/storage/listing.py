"""Listing a scope's tasks: a validated query, its pages and their tokens.

An index names candidates; each task's HEAD, read consistently, says whether and where it belongs.
A page makes one request to each partition of its index and looks at a bounded number of entries. So
it may be short, or empty, and have a token all the same.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from a2a.types import ListTasksResponse, Task, TaskState
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from a2a_serverless.errors import (
    AnswerTooLargeError,
    InvalidArgumentError,
    PageTokenError,
    UnreadableTaskError,
)
from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import FOLDED, Commits, lives
from a2a_serverless.storage.durable import DurableStorage, tell_left_out
from a2a_serverless.storage.finding import readable_heads, stored
from a2a_serverless.storage.layout import status_key
from a2a_serverless.storage.table import Check, Item, Key, Range
from a2a_serverless.tasks.fold import Log, belonging_to, task_of_head
from a2a_serverless.tasks.head import KNOWN, Head, state_name
from a2a_serverless.tasks.identity import Scope, check_context_id, digest, first_task_id
from a2a_serverless.tasks.pace import PART_BYTES
from a2a_serverless.values import dataclass

_FIRST_COMMITS: Final = 8
"""Commits of a listed task that are read together with those of others.

A longer log is cheaper to read by a query of its own, which does not round up each commit's size.
"""

MOST_COUNTED: Final = 1000
"""The largest `total_size`, and about as many index entries as a page looks at.

Where an index has several partitions, each gets a third of it: 1,000 tasks are spread over four of
them by the digests of their ids, and none has so many.
"""

_MAX_PAGE_BYTES: Final = 4_000_000
"""The most stored bytes that are read for one page; a larger task is shown alone."""

_MAX_TOTAL: Final = 2**31 - 1
"""The largest number that the protocol's `totalSize` holds."""

_Fitting = Callable[[Sequence[Task]], Awaitable[int]]
"""Returns how many of the first tasks fit into one answer; it may make them what is sent."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BELOW_MS: Final = re.compile(r"[.,]\d{3}\d*[1-9]")
"""Finds a fraction of a millisecond in an ISO 8601 time."""
_PLACE = re.compile(r"[0-9]{15}#[A-Za-z0-9._:-]{1,100}")


class ListTasksQuery(BaseModel):
    """What to list; the filters AND together (A2A 1.0.1, section 3.1.4).

    `status_timestamp_after` is an ISO 8601 time and inclusive.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, defer_build=True)

    context_id: str | None = None
    status: SkipValidation[TaskState | None] = None
    page_size: int = Field(default=50, ge=1, le=100, strict=True)
    page_token: str | None = None
    history_length: int | None = Field(default=None, ge=0, strict=True)
    status_timestamp_after: str | None = None
    include_artifacts: bool = False


async def list_tasks(
    storage: DurableStorage,
    query: ListTasksQuery,
    *,
    fitting: _Fitting | None = None,
    most: int | None = MOST_COUNTED,
) -> ListTasksResponse:
    """Return one page of the scope's tasks, newest status first, ties by task id.

    A page ends after `page_size` tasks, before more than 4 MB are read for it, after
    those of its tasks that fit into one answer, or when it has looked at about `most` entries of
    the index. So it may be short, or empty: the list goes on as long as there is a token. If a task
    changes while a client pages, the later pages do not show it any more; it is found again with
    `status_timestamp_after` = the time of the first page.

    `total_size` is counted for the first page. It is exact up to `most`, and `most` if there are
    more, or if the list is one by a state and the page has not looked at all tasks. With `most`
    None everything is looked at: the total is exact, and a page has what it asks for.

    Raises:
        PageTokenError: the token was not made here for this query.
        AnswerTooLargeError: the page's first task alone does not fit.
    """
    listing = _Listing.of(query, storage.scope)
    found = await _newest(storage, listing, query.page_size, most)
    heads = _affordable(found.heads[: query.page_size], query)
    at_hand = await _at_hand(storage, heads, query)
    left = [head for head, task in zip(heads, at_hand, strict=True) if task is None]
    read = iter(await asyncio.gather(*(_read(storage, head, query) for head in left)))
    shown = [next(read) if task is None else task for task in at_hand]
    places = [place for place, task in enumerate(shown) if task is not None]
    tasks = [task for task in shown if task is not None]
    count = len(tasks) if fitting is None else await fitting(tasks)
    if count < len(tasks):
        if count == 0:
            raise AnswerTooLargeError(tasks[0].id)
        heads = heads[: places[count]]
    return ListTasksResponse(
        tasks=tasks[:count],
        next_page_token=listing.token_after(heads, found),
        page_size=query.page_size,
        total_size=found.total,
    )


async def newest_heads(storage: DurableStorage, query: ListTasksQuery) -> tuple[list[Head], str]:
    """Return the HEADs of one page, and the token of the next one; empty at the end.

    Like `list_tasks`, but tasks are not counted. The token is valid only for this method.

    Raises:
        PageTokenError: as `list_tasks`.
    """
    listing = _Listing.of(query, storage.scope)
    # With a total nothing is counted.
    listing = replace(listing, total_size=listing.total_size or 0)
    found = await _newest(storage, listing, query.page_size, MOST_COUNTED)
    page = found.heads[: query.page_size]
    return page, listing.token_after(page, found)


async def count_states(storage: DurableStorage) -> Counter[str]:
    """Return how many of the scope's tasks are in each state; it reads an index entry for each."""
    listing = _Listing.of(ListTasksQuery(), storage.scope)
    ranges = _ranges(storage.scope, listing, storage.clock.now_ms())
    parts = await asyncio.gather(*(storage.table.all(replace(one, only=())) for one in ranges))
    return Counter(str(entry.get("state")) for part in parts for entry in part)


async def _at_hand(
    storage: DurableStorage, heads: Sequence[Head], query: ListTasksQuery
) -> list[Task | None]:
    """Return the tasks of listed HEADs as of HEAD; None: its log has to be read."""
    length, has_artifacts = view = query.history_length, query.include_artifacts
    found = {
        head.task_id: storage.listed.of(head, view)
        if _needs_log(head, query)
        else task_of_head(head)
        for head in heads
    }
    logs = await _short_logs(
        storage, [h for h in heads if found[h.task_id] is None and _needs_log(h, query)]
    )
    for task_id, log in logs.items():
        task = log.fold().task(length, include_artifacts=has_artifacts)
        found[task_id] = task
        storage.listed.keep(log.head, view, task)
    return [found[head.task_id] for head in heads]


async def _read(storage: DurableStorage, head: Head, query: ListTasksQuery) -> Task | None:
    """Return the task of a listed HEAD as of this read; None: gone, moved on, or damaged."""
    length, has_artifacts = query.history_length, query.include_artifacts
    try:
        task = await storage.load_task(
            head.task_id, length, include_artifacts=has_artifacts, inline=None
        )
    except UnreadableTaskError as error:
        tell_left_out(error)
        return None
    return task if task and query.status in (None, task.status.state) else None


async def _newest(
    storage: DurableStorage, listing: _Listing, size: int, most: int | None
) -> _Found:
    """Return the first `size` live HEADs that the listing asks for, newest status first, or fewer.

    It takes one query for each partition of the index, and one batch. The total is that of the
    listing's token; on a first page it is counted, as `list_tasks` says.
    """
    scope, now_ms = storage.scope, storage.clock.now_ms()
    ranges = _ranges(scope, listing, now_ms)
    # A range includes its end: on a later page that is the task at which the last one ended.
    more = 1 if listing.before is None else 2
    limit = None if most is None else size + more
    if most is not None and (listing.total_size is None or listing.state is not None):
        limit = max(size, most // max(1, len(ranges) - 1)) + more

    seen = await storage.table.counted(ranges, looks=limit, shows=size + more)
    # A partition that has not been looked at to its end may have more from there on.
    unended = [layout.place_in(entry) for entry in seen.ends]
    floor = max(unended, default="")
    named = [layout.place_in(entry) for entry in seen.items]
    places = sorted((p for p in named if floor <= p and p != listing.before), reverse=True)
    if len(places) > size:
        floor = places[size - 1]
    ids = [layout.task_in(place) for place in places[:size]]
    if listing.context_id is not None:
        ids.append(first_task_id(scope, listing.context_id))
    keys = [layout.head_key(scope.digest, task_id) for task_id in dict.fromkeys(ids)]
    loaded = await readable_heads(storage, keys)
    heads = listing.page(loaded, floor)
    total = listing.total_size
    if total is None:
        in_context = [head for head in loaded if listing.context_id and head.begins_context]
        counted = seen.number + sum(map(listing.matches, in_context)) if floor else len(heads)
        total = counted if most is None else most if unended else min(counted, most)
    return _Found(heads=heads, floor=floor, total=total)


def _ranges(scope: Scope, listing: _Listing, now_ms: int) -> list[Range]:
    """Return the partitions of the index that names a listing's tasks, newest first."""
    since = status_key(listing.since_ms, "")
    if listing.before is not None and listing.before <= since:
        return []
    index, keys = layout.BY_SCOPE, layout.scope_keys(scope.digest)
    if listing.context_id is not None:
        index, keys = layout.BY_CONTEXT, [layout.context_key(scope.digest, listing.context_id)]
    end = layout.whole_scope(scope.digest)[1]
    if listing.before is not None:
        end = layout.in_scope(scope.digest, listing.before)
    # An index has the entry of an expired task until DynamoDB has deleted the item, days later.
    when = [lives(now_ms)]
    if listing.state is not None:
        when.append(Check("state", "=", state_name(listing.state)))
    return [
        Range(
            partition=key,
            index=index,
            first=layout.in_scope(scope.digest, since),
            last=end,
            only=("status_key", "expires_at", *(("state",) if listing.state is not None else ())),
            when=when,
            newest_first=True,
        )
        for key in keys
    ]


async def _short_logs(storage: DurableStorage, heads: Sequence[Head]) -> Mapping[str, Log]:
    """Read logs of a few small commits by batches of their items.

    The items are written once, together with HEAD, so that it does not matter when they are
    read. If an item cannot be seen yet, its log is left out.
    """
    short = [h for h in heads if h.version <= _FIRST_COMMITS and h.size <= PART_BYTES]
    keys = [
        Key(
            layout.task_partition(storage.scope.digest, head.task_id),
            layout.event_sort(head.incarnation, version, 0),
        )
        for head in short
        for version in range(1, head.version + 1)
    ]
    items: defaultdict[str, list[Item]] = defaultdict(list)
    for item in stored(await storage.table.load(keys, consistent=False, only=FOLDED)):
        items[item["PK"]].append(item)
    logs: dict[str, Log] = {}
    for head in short:
        commits = Commits(head.incarnation, 0)
        found = items[layout.task_partition(storage.scope.digest, head.task_id)]
        commits.add(sorted(found, key=lambda item: str(item["SK"])))
        records = belonging_to(head, commits.records, commits.version)
        if records is not None:
            logs[head.task_id] = Log(head=head, records=records)
    return logs


def _place_of(head: Head) -> str:
    """Return the place of a task in its scope, by its HEAD."""
    return status_key(head.status_at, head.task_id)


# -- pages ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """HEADs of a page, newest status first, perhaps one too many."""

    heads: list[Head]
    floor: str
    """The place down to which they are all that there is; empty: to the end."""
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """What one page asks for.

    `since_ms` is the lowest status time, `before` the place where the last page ended, which is
    excluded. `total_size` is known from the second page on.
    """

    context_id: str | None
    state: TaskState | None
    since_ms: int
    before: str | None
    total_size: int | None
    fingerprint: str

    @classmethod
    def of(cls, query: ListTasksQuery, scope: Scope) -> _Listing:
        """Check a query.

        Raises:
            InvalidArgumentError: an unknown state, an unreadable time, an oversized context id.
            PageTokenError: the token is not ours, or of another query.
        """
        if query.context_id is not None:
            check_context_id(query.context_id)
        if query.status is not None and query.status not in KNOWN:
            raise InvalidArgumentError(f"{query.status!r} is not a state of a task.")
        since_ms = _milliseconds(query.status_timestamp_after)
        fingerprint = digest(
            "listing", scope.digest, query.context_id or "", str(query.status), str(since_ms)
        )
        before, total = _read_token(query.page_token, fingerprint)
        return cls(
            context_id=query.context_id,
            state=query.status,
            since_ms=since_ms,
            before=before,
            total_size=total,
            fingerprint=fingerprint,
        )

    def token_after(self, shown: Sequence[Head], found: _Found) -> str:
        """Return the token of the page that follows the first heads of `found`; empty: none."""
        end = found.floor if len(shown) == len(found.heads) else _place_of(shown[-1])
        if not end:
            return ""
        return page_token([end, found.total, self.fingerprint])

    def matches(self, head: Head) -> bool:
        """Return True if a HEAD of this scope passes the filters; the cursor is not looked at."""
        in_context = self.context_id is None or head.context_id == self.context_id
        in_state = self.state is None or head.state == self.state
        return in_context and in_state and head.status_at >= self.since_ms

    def page(self, heads: Iterable[Head], floor: str) -> list[Head]:
        """Return those of `heads` from a place on to the cursor, newest status first."""
        keyed = {_place_of(head): head for head in heads if self.matches(head)}
        return [
            keyed[place]
            for place in sorted(keyed, reverse=True)
            if place >= floor and (self.before is None or place < self.before)
        ]


def _needs_log(head: Head, query: ListTasksQuery) -> bool:
    """Return True if HEAD alone does not have what a query wants to see of its task."""
    is_short = query.history_length == 0 and not query.include_artifacts
    return not is_short or head.status is None or head.metadata is None


def _affordable(heads: Sequence[Head], query: ListTasksQuery) -> list[Head]:
    """Return the first of `heads`, at least one, that are read with at most 4 MB."""
    size = 0
    taken: list[Head] = []
    for head in heads:
        size += head.size if _needs_log(head, query) else 0
        if taken and size > _MAX_PAGE_BYTES:
            break
        taken.append(head)
    return taken


def _read_token(token: str | None, fingerprint: str) -> tuple[str | None, int | None]:
    if not token:
        return None, None
    match page_place(token):
        case [before, total, made_for]:
            pass
        case _:
            raise PageTokenError
    is_place = isinstance(before, str) and _PLACE.fullmatch(before) is not None
    is_total = type(total) is int and 0 <= total <= _MAX_TOTAL  # True is an int, too
    if not is_place or not is_total or made_for != fingerprint:
        raise PageTokenError
    return before, total


def page_token(place: Any) -> str:
    """Return the token of the page behind a place, which is a JSON value; opaque to clients."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def page_place(token: str) -> Any:
    """Return the place that `page_token` was given, or another one of a client's own.

    Raises:
        PageTokenError: the token is none.
    """
    try:
        padded = token + "=" * (-len(token) % 4)
        return json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, RecursionError) as error:
        raise PageTokenError from error


def _milliseconds(timestamp: str | None) -> int:
    if not timestamp:
        return 0
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError as error:
        raise InvalidArgumentError("status_timestamp_after must be an ISO 8601 time.") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Those of tasks are whole milliseconds: a time between two of them is before the later one.
    past = bool(_BELOW_MS.search(timestamp))
    return max(0, (moment - _EPOCH) // timedelta(milliseconds=1) + past)

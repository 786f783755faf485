"""Listing a scope's tasks: a validated query, its pages and their tokens, and stored counts.

An index names candidates; each task's HEAD, read consistently, says whether and where it belongs.

COUNT items say how many tasks a listing's filters matched when they were counted. The listing that
has made a count stores it, and it serves the first pages of other listings for a while. Nothing
depends on it: if it is missing or damaged, the tasks are counted again.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from a2a.types import Task, TaskState
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from a2a_serverless.errors import (
    AnswerTooLargeError,
    ConditionFailedError,
    InvalidArgumentError,
    PageTokenError,
    UnavailableError,
    UnreadableTaskError,
)
from a2a_serverless.storage import layout
from a2a_serverless.storage.codec import FOLDED, PART_BYTES, Commits, misfits_of
from a2a_serverless.storage.durable import DurableStorage, tell_left_out
from a2a_serverless.storage.finding import head_keys, load_heads, readable_heads, stored
from a2a_serverless.storage.layout import count_partition, count_sort, status_key
from a2a_serverless.storage.table import Check, Item, Key, Range, Update
from a2a_serverless.tasks.fold import Log, belonging_to, task_of_head
from a2a_serverless.tasks.head import KNOWN, Head, is_terminal, state_name
from a2a_serverless.tasks.identity import Scope, check_context_id, digest

FIRST_COMMITS: Final = 8
"""Commits of a listed task that are read together with those of others.

A longer log is cheaper to read by a query of its own, which does not round up each commit's size.
"""

FRESH_S: Final = 60
"""Seconds for which a count serves, at least."""

ENTRIES_A_SECOND: Final = 100
"""A count serves one second for each `ENTRIES_A_SECOND` index entries that were read for it.

So the first pages of a large scope do not read more entries a second than that for counting.
"""

MAX_PAGE_BYTES: Final = 4_000_000
"""The most stored bytes that are read for one page; a larger task is shown alone."""

MAX_TOTAL: Final = 2**31 - 1
"""The largest number that the protocol's `totalSize` holds."""

Fitting = Callable[[Sequence[Task]], int]
"""Returns how many of the first tasks fit into one answer."""

_PLACE = re.compile(r"[0-9]{15}#[A-Za-z0-9._:-]{1,100}")


class ListTasksQuery(BaseModel):
    """What to list; the filters AND together (A2A 1.0.1, section 3.1.4).

    `status_timestamp_after` is an ISO 8601 time and inclusive.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    context_id: str | None = None
    status: SkipValidation[TaskState | None] = None
    page_size: int = Field(default=50, ge=1, le=100, strict=True)
    page_token: str | None = None
    history_length: int | None = Field(default=None, ge=0, strict=True)
    status_timestamp_after: str | None = None
    include_artifacts: bool = False


class ListTasksResult(BaseModel):
    """One page, newest status first.

    `total_size` counts what matched before paging, as `DurableStorage.list_tasks` says.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    tasks: list[Task] = Field(default_factory=list)
    next_page_token: str = ""
    page_size: int = 50
    total_size: int = 0


async def list_tasks(
    storage: DurableStorage, query: ListTasksQuery, *, fitting: Fitting = len
) -> ListTasksResult:
    """Return one page of the scope's tasks, newest status first, ties by task id.

    A page ends after `page_size` tasks, before more than `MAX_PAGE_BYTES` are read for it, or
    after those of its tasks that fit into one answer. If a task changes while a client pages,
    the later pages do not show it any more; it is found again with `status_timestamp_after` =
    the time of the first page.

    `total_size` is counted for the first page. It is exact if one page shows all tasks, and for
    a context. Elsewhere it may be a minute old, or a second for each 100 tasks that were looked
    at, if that is longer; newer tasks that the page shows are added to it.

    Raises:
        PageTokenError: the token was not made here for this query.
        AnswerTooLargeError: the page's first task alone does not fit.
    """
    listing = _Listing.of(query, storage.scope)
    found = await _newest(storage, listing, query.page_size + 1)
    heads = _affordable(found.heads[: query.page_size], query)
    logs = await _short_logs(storage, [head for head in heads if _needs_log(head, query)])
    shown = await asyncio.gather(
        *(_listed(storage, head, logs.get(head.task_id), query) for head in heads)
    )
    places = [place for place, task in enumerate(shown) if task is not None]
    tasks = [task for task in shown if task is not None]
    count = fitting(tasks)
    if count < len(tasks):
        if count == 0:
            raise AnswerTooLargeError(tasks[0].id)
        heads = heads[: places[count]]
    is_last = len(heads) == len(found.heads)
    return ListTasksResult(
        tasks=tasks[:count],
        next_page_token="" if is_last else listing.token_after(heads[-1], found.total),
        page_size=query.page_size,
        total_size=found.total,
    )


async def newest_heads(storage: DurableStorage, query: ListTasksQuery) -> tuple[list[Head], str]:
    """Return the HEADs of one page, and the token of the next one; empty at the end.

    Like `list_tasks`, but tasks are not counted, so that a page's cost does not depend on how
    many there are. The token is valid only for this method.

    Raises:
        PageTokenError: as `list_tasks`.
    """
    listing = _Listing.of(query, storage.scope)
    # With a total nothing is counted.
    listing = replace(listing, total_size=listing.total_size or 0)
    found = await _newest(storage, listing, query.page_size + 1)
    page = found.heads[: query.page_size]
    is_last = len(page) == len(found.heads)
    return page, "" if is_last else listing.token_after(page[-1], 0)


async def count_tasks(storage: DurableStorage, state: TaskState) -> int:
    """Return how many of the scope's tasks are in a state; as old as `total_size` may be."""
    listing = _Listing.of(ListTasksQuery(status=state, page_size=1), storage.scope)
    return (await _newest(storage, listing, 1)).total


async def _listed(
    storage: DurableStorage, head: Head, log: Log | None, query: ListTasksQuery
) -> Task | None:
    """Return the task of a listed HEAD; None when it is gone, has moved on, or is damaged.

    The task is shown as of HEAD; if its log has to be read, as of that read.
    """
    length, has_artifacts = query.history_length, query.include_artifacts
    if log is not None:
        return log.fold().task(length, include_artifacts=has_artifacts)
    task = None if _needs_log(head, query) else task_of_head(head)
    if task is None:
        try:
            task = await storage.load_task(head.task_id, length, include_artifacts=has_artifacts)
        except UnreadableTaskError as error:
            tell_left_out(error)
    if task is None or query.status in (None, task.status.state):
        return task
    return None


async def _newest(storage: DurableStorage, listing: _Listing, limit: int) -> _Found:
    """Return the first `limit` live HEADs that the listing asks for, newest status first.

    The total is that of the listing's token. On a first page it is the number of live tasks
    that the filters match, as old as `list_tasks` allows. It takes mostly one query for each
    shard and one batch.
    """
    if listing.context_id is not None:
        return listing.found(await _context_heads(storage, listing.context_id), limit)
    place = _count_key(storage.scope.digest, listing)
    heads: dict[str, Head] = {}
    before, counted, is_all = listing.before, None, False
    while len(heads) < limit and not is_all:
        candidates = await _candidates(storage, listing, before, limit)
        is_all = len(candidates) < limit
        keys = head_keys(candidates)
        asks = listing.total_size is None and before is None and not is_all
        items = await storage.table.load([*keys, place] if asks else keys)
        # The count comes with the HEADs, and costs no request of its own.
        count = items.pop(place, None)
        if count is not None:
            counted = _Count.of(count, storage.clock.now_ms() // 1000)
        found = readable_heads(items, storage.clock.now_ms())
        heads |= {head.task_id: head for head in listing.page(found)}
        if candidates:
            before = layout.place_in(candidates[-1])
    newest = listing.page(heads.values())[:limit]
    total = listing.total_size
    if total is None:
        is_whole = is_all and len(newest) == len(heads)
        total = len(newest) if is_whole else await _total(storage, listing, newest, counted)
    return _Found(heads=newest, total=total)


async def _total(
    storage: DurableStorage, listing: _Listing, newest: list[Head], counted: _Count | None
) -> int:
    """Return how many tasks the filters match: from a stored count, or by counting them.

    Counting reads one index entry for each task.
    """
    if counted is not None:
        return max(counted.with_newer(newest, listing.state), len(newest))
    at = storage.clock.now_ms()
    counts = [
        storage.table.count(_by_scope(storage, scope_key, listing, None))
        for scope_key in layout.scope_keys(storage.scope.digest)
    ]
    totals, looked_at = zip(*await asyncio.gather(*counts), strict=True)
    made = _Count.made(sum(totals), sum(looked_at), at)
    with suppress(ConditionFailedError, UnavailableError):  # it spares others the counting
        await storage.table.write(made.update(_count_key(storage.scope.digest, listing)), once=True)
    return made.total


async def _short_logs(storage: DurableStorage, heads: Sequence[Head]) -> Mapping[str, Log]:
    """Read logs of a few small commits by batches of their items.

    The items are written once, together with HEAD, so that it does not matter when they are
    read. If an item cannot be seen yet, its log is left out.
    """
    short = [h for h in heads if h.version <= FIRST_COMMITS and h.size <= PART_BYTES]
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


async def _context_heads(storage: DurableStorage, context_id: str) -> list[Head]:
    """Return HEADs of the live tasks of a context, in the order of their creation."""
    wanted = Range(
        partition=layout.context_key(storage.scope.digest, context_id),
        index=layout.BY_CONTEXT,
        when=[Check("expires_at", ">", storage.clock.now_ms() // 1000)],
    )
    return await load_heads(storage, await storage.table.all(wanted))


async def _candidates(
    storage: DurableStorage, listing: _Listing, before: str | None, limit: int
) -> list[Item]:
    """Return the first `limit` entries of the index by scope over all shards."""
    if before is not None and before <= listing.since:
        return []
    shards = [
        storage.table.first(
            limit,
            replace(_by_scope(storage, scope_key, listing, before), only=("status_key",)),
            lambda entry: before is None or layout.place_in(entry) < before,
        )
        for scope_key in layout.scope_keys(storage.scope.digest)
    ]
    entries = [entry for shard in await asyncio.gather(*shards) for entry in shard]
    entries.sort(key=lambda entry: str(entry["status_key"]), reverse=True)
    return entries[:limit]


def _by_scope(
    storage: DurableStorage, scope_key: str, listing: _Listing, before: str | None
) -> Range:
    """Return one shard of the index by scope, newest first."""
    scope = storage.scope.digest
    when = [Check("expires_at", ">", storage.clock.now_ms() // 1000)]
    if listing.state is not None:
        when.append(Check("state", "=", state_name(listing.state)))
    return Range(
        partition=scope_key,
        index=layout.BY_SCOPE,
        first=layout.in_scope(scope, listing.since),
        last=layout.whole_scope(scope)[1] if before is None else layout.in_scope(scope, before),
        when=when,
        newest_first=True,
    )


# -- pages ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The first HEADs that a listing asks for, and how many tasks its filters match."""

    heads: list[Head]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """What one page asks for.

    `since` is the lowest status key, `before` an exclusive upper one (the place where the last
    page ended). `total_size` is known from the second page on.
    """

    context_id: str | None
    state: TaskState | None
    since: str
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
            since=status_key(since_ms, ""),
            before=before,
            total_size=total,
            fingerprint=fingerprint,
        )

    def token_after(self, last: Head, total: int) -> str:
        """Return the token of the page that follows `last`."""
        place = [status_key(last.status_at, last.task_id), total, self.fingerprint]
        return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")

    def matches(self, head: Head) -> bool:
        """Return True if a HEAD of this scope passes the filters; the cursor is not looked at."""
        in_context = self.context_id is None or head.context_id == self.context_id
        in_state = self.state is None or head.state == self.state
        return in_context and in_state and status_key(head.status_at, head.task_id) >= self.since

    def found(self, heads: Iterable[Head], limit: int) -> _Found:
        """Return what a listing finds, given all HEADs of its scope or of its context."""
        every = list(heads)
        total = self.total_size
        if total is None:
            total = sum(map(self.matches, every))
        return _Found(heads=self.page(every)[:limit], total=total)

    def page(self, heads: Iterable[Head]) -> list[Head]:
        """Return those of `heads` that belong behind the cursor, newest status first."""
        keyed = {status_key(head.status_at, head.task_id): head for head in heads}
        return [
            keyed[place]
            for place in sorted(keyed, reverse=True)
            if (self.before is None or place < self.before) and self.matches(keyed[place])
        ]


def _needs_log(head: Head, query: ListTasksQuery) -> bool:
    """Return True if HEAD alone does not have what a query wants to see of its task."""
    is_short = query.history_length == 0 and not query.include_artifacts
    return not is_short or head.status is None or head.metadata is None


def _affordable(heads: Sequence[Head], query: ListTasksQuery) -> list[Head]:
    """Return the first of `heads`, at least one, that are read with at most `MAX_PAGE_BYTES`."""
    size = 0
    taken: list[Head] = []
    for head in heads:
        size += head.size if _needs_log(head, query) else 0
        if taken and size > MAX_PAGE_BYTES:
            break
        taken.append(head)
    return taken


def _read_token(token: str | None, fingerprint: str) -> tuple[str | None, int | None]:
    if not token:
        return None, None
    try:
        padded = token + "=" * (-len(token) % 4)
        before, total, made_for = json.loads(
            base64.b64decode(padded, altchars=b"-_", validate=True)
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise PageTokenError from error
    is_place = isinstance(before, str) and _PLACE.fullmatch(before) is not None
    is_total = type(total) is int and 0 <= total <= MAX_TOTAL  # True is an int, too
    if not is_place or not is_total or made_for != fingerprint:
        raise PageTokenError
    return before, total


def _milliseconds(timestamp: str | None) -> int:
    if not timestamp:
        return 0
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError as error:
        raise InvalidArgumentError("status_timestamp_after must be an ISO 8601 time.") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


# -- counts -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Count:
    """A count, the millisecond in which it began, and the second until which it serves."""

    total: int
    at: int
    expires_at: int

    @classmethod
    def made(cls, total: int, looked_at: int, at: int) -> _Count:
        """Return a new count, for which `looked_at` entries were read, begun at `at`."""
        fresh_s = max(FRESH_S, looked_at // ENTRIES_A_SECOND)
        return cls(total=min(total, MAX_TOTAL), at=at, expires_at=at // 1000 + fresh_s)

    @classmethod
    def of(cls, item: Mapping[str, Any], now_s: int) -> _Count | None:
        """Return the count in an item; None if it has expired or is damaged."""
        if any(name not in item for name in _FORMS) or misfits_of(item, _FORMS):
            return None
        counted = cls(total=item["total"], at=item["counted_at"], expires_at=item["expires_at"])
        return counted if counted.expires_at > now_s and counted.total <= MAX_TOTAL else None

    def with_newer(self, heads: Iterable[Head], state: TaskState | None) -> int:
        """Return the total, with those tasks of the page that came into the listing since.

        A task comes into a listing by a terminal `state` once, when it ends. It may come into any
        other state again and again, and would count each time: there, as in a listing by no state,
        only tasks that were created since are added.
        """
        by_end = state is not None and is_terminal(state)
        came = (head.status_at if by_end else head.created_at for head in heads)
        return min(MAX_TOTAL, self.total + sum(at > self.at for at in came))

    def update(self, key: Key) -> Update:
        """Return the update that stores the count, unless a later one is stored."""
        values = {"total": self.total, "counted_at": self.at, "expires_at": self.expires_at}
        is_later = [Check("counted_at", "absent"), Check("counted_at", "<", self.at)]
        return Update(key=key, values=values, when=[is_later])


_FORMS: Final = {"total": int, "counted_at": int, "expires_at": int}


def _count_key(scope: str, listing: _Listing) -> Key:
    """Return the key of the count for a listing's filters, for a listing without a context."""
    state = "" if listing.state is None else state_name(listing.state)
    return Key(count_partition(scope), count_sort(state, listing.since))

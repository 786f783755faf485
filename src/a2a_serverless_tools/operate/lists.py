"""Lists of the tasks of all scopes, page by page, with what a person knows of each task."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, cast

from a2a_serverless.errors import PageTokenError
from a2a_serverless.storage import layout
from a2a_serverless.storage.durable import LOOK_AT_ONCE, DurableStorage
from a2a_serverless.storage.finding import Due, due_tasks
from a2a_serverless.storage.layout import (
    HEAD,
    HOUR_MS,
    TROUBLES,
    attention_in,
    event_sort,
    task_partition,
)
from a2a_serverless.storage.listing import ListTasksQuery, count_states, newest_heads
from a2a_serverless.storage.table import Item, Range
from a2a_serverless.tasks.attempts import overdue_cancel
from a2a_serverless.tasks.head import Attention, Head, Trouble, Wait, state_name
from a2a_serverless.tasks.identity import Scope, TaskKey
from a2a_serverless_tools.operate.asked import Requests
from a2a_serverless_tools.operate.finding import (
    Created,
    NotedTasks,
    created_in,
    load_noted,
    tasks_in_trouble,
    waiting_tasks,
)
from a2a_serverless_tools.operate.rows import STATES, TaskQuery, TaskRow, row_of

SEARCHED: Final = 1_000
"""The newest tasks of a list among which a text is looked for."""

MOST_NOTED: Final = 4_000
"""The most entries of the index of what needs attention that one look reads."""

_KEPT: Final = 5_000
"""Claims whose process is remembered."""
_CLAIM: Final = ("token", "worker")
_CLAIMS: Final = 30
"""The first commits of a turn, among which its claim is looked for."""
_DAY_MS: Final = 24 * HOUR_MS
_AHEAD_MS: Final = 300_000
"""How far the clock that a task was created by may be ahead of this one."""
_STEPS: Final = 50
"""The most reads for one page of all tasks; each looks at as many tasks as the page shows."""
_PLACE: Final = re.compile(
    r"(?P<hour>[0-9]{1,7})/(?P<before>([0-9]{15}#[A-Za-z0-9._:-]{1,100}#[A-Za-z0-9_-]{32})?)"
)
_NEXT_MS: Final = 2 * HOUR_MS
"""An open turn that is not asleep is due within a lease, the longest wait of a sweep or of a retry:
within this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The tasks among which a page was looked for: those created from `oldest` to `newest`."""

    count: int
    newest: int
    oldest: int
    """Milliseconds since the epoch, as `newest`."""
    requests: int
    """The requests of the table that it took, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One page of a list, and the token of the next one; empty: there is none."""

    rows: tuple[TaskRow, ...]
    next_token: str = ""
    looked: Looked | None = None
    """None: the list is in the order of changes, and the page has all that match up to its end."""
    searched: int | None = None
    """The tasks among which a text was looked for; None: none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenTurns:
    """Open turns of all callers, those first at which the sweeper looks first."""

    rows: tuple[TaskRow, ...]
    cancels: tuple[TaskRow, ...]
    """Tasks, of open turns or none, that were to be canceled by now."""
    unread: tuple[Due, ...]
    """Those whose HEAD could not be read."""
    is_all: bool
    """False: there are more, due later."""


class Lists:
    """Lists the tasks of all scopes.

    Args:
        storage: the storage, in any scope.

    Every method raises:
        ConfigurationError: one sentence says what cannot be reached, and what to do.
    """

    def __init__(self, storage: DurableStorage) -> None:
        self._storage = storage
        self.asked = Requests(storage.table)
        self._holders: dict[str, str] = {}

    async def tasks(self, query: TaskQuery) -> Rows:
        """Return one page of tasks; it looks at a bounded number, and may have fewer than asked.

        Failed and rejected tasks of all owners come in the order of their ends, without a bound.

        Raises:
            PageTokenError: the token was made for another kind of list.
        """
        if query.attention is None and query.state in ("failed", "rejected") and not query.scope:
            kind: Trouble = "failed" if query.state == "failed" else "rejected"
            query = replace(query, attention=kind)
        if query.text:
            return await self._with_text(query)
        if query.attention is not None:
            return await self._of_attention(query, query.attention)
        return await (self._of_scope(query) if query.scope else self._of_all(query))

    async def has(self, query: TaskQuery, head: Head) -> bool:
        """Return True if a task is one of those that a query asks for, as it is now."""
        row = row_of(head)
        if query.attention is None:
            is_one = query.has(row)
        else:
            why = await self._why(head, query.attention)
            is_one = any(query.has(replace(row, reason=one.reason), one.at) for one in why)
        if not is_one or not query.text:
            return is_one
        (described,) = await self.described(Rows(rows=(row,)))
        return described.mentions(query.text.casefold())

    async def _why(self, head: Head, kind: Trouble | Wait) -> list[Attention]:
        """Return why a task needs attention of a kind, as HEAD or its webhooks say."""
        if kind != "untold":
            return [] if head.attention is None or head.attention.kind != kind else [head.attention]
        pushes = await self._storage.for_scope(Scope(head.scope)).webhooks.all(head.task_id)
        return [push.given_up.attention for push in pushes if push.given_up is not None]

    async def _with_text(self, query: TaskQuery) -> Rows:
        """Return those of the newest `SEARCHED` tasks of a list that contain the query's text."""
        rest, looked, wanted = replace(query, text="", limit=100), 0, query.text.casefold()
        given = Rows(rows=()) if query.scope else await self._with_reference(wanted)
        rows = {row.key: row for row in await self.described(given)}
        while looked < SEARCHED:
            page = await self.tasks(rest)
            looked += len(page.rows) if page.looked is None else page.looked.count
            described = await self.described(page)
            rows |= {row.key: row for row in described if row.mentions(wanted)}
            if not page.next_token:
                break
            rest = replace(rest, token=page.next_token)
        return Rows(rows=tuple(rows.values()), searched=looked)

    async def _with_reference(self, correlation_id: str) -> Rows:
        """Return the failed task whose client was given a correlation id, of all that are kept."""
        page, place = NotedTasks(found=(), is_all=False), ""
        while not page.is_all:
            page = await tasks_in_trouble(self._storage, before=place, limit=MOST_NOTED)
            place = page.found[-1].place if page.found else place
            own = [one for one in page.found if one.why.correlation_id == correlation_id]
            if own:
                heads = await load_noted(self._storage, own)
                return Rows(rows=tuple(map(row_of, heads.values())))
        return Rows(rows=())

    async def _of_attention(self, query: TaskQuery, kind: Trouble | Wait) -> Rows:
        """Return tasks that need attention, in the order of its index; HEAD has the last word."""
        found: dict[TaskKey, TaskRow] = {}
        place = query.token or (_time(query.until_ms) if kind in TROUBLES else "")
        if query.token and attention_in(query.token) is None:
            raise PageTokenError
        for _ in range(_STEPS):
            page = await self._noted(kind, query.since_ms or 0, place, query.limit)
            wanted = [
                o for o in page.found if o.why.kind == kind and query.scope in (None, o.scope)
            ]
            heads = await load_noted(self._storage, wanted)
            for one in wanted:
                if len(found) >= query.limit and one.place != place:
                    return Rows(rows=tuple(found.values()), next_token=place)
                place = one.place
                head = heads.get((one.scope, one.task_id))
                why = one.why if one.config_id or head is None else head.attention
                if head is None or why is None or why.kind != kind:
                    continue
                row = replace(row_of(head), reason=why.reason)
                if query.has(row, why.at):
                    found.setdefault(row.key, row)
            place = page.found[-1].place if page.found else place
            if page.is_all or len(found) >= query.limit:
                place = "" if page.is_all else place
                break
        return Rows(rows=tuple(found.values()), next_token=place)

    async def _noted(
        self, kind: Trouble | Wait, since_ms: int, place: str, limit: int
    ) -> NotedTasks:
        if kind in TROUBLES:
            return await tasks_in_trouble(
                self._storage, since_ms=since_ms, before=place, limit=limit
            )
        return await waiting_tasks(self._storage, cast("Wait", kind), after=place, limit=limit)

    async def described(self, page: Rows) -> list[TaskRow]:
        """Return a page with what a person knows of tasks: who asked for what, and who has them.

        It costs one request for a hundred tasks that are new here, and one for each claim. The
        rows of a search are described already.
        """
        if page.searched is not None:
            return list(page.rows)
        heads = [row.head for row in page.rows]
        asked = await self.asked.of(heads)
        holders = await asyncio.gather(*map(self._holder, heads))
        said = (asked[row.key] for row in page.rows)
        return [
            replace(row, caller=of.caller, tenant=of.tenant, first_line=of.line, holder=holder)
            for row, of, holder in zip(page.rows, said, holders, strict=True)
        ]

    async def _holder(self, head: Head) -> str:
        """Return the process that has claimed a turn; empty: it is not among its first commits."""
        token = head.token
        if token is None or not head.turn_is_open or not head.is_claimed or head.left:
            return ""
        if token not in self._holders:
            partition = task_partition(head.scope, head.task_id)
            first = event_sort(head.incarnation, head.turn_base)
            wanted = Range(partition=partition, first=first, last=HEAD, only=_CLAIM, page=_CLAIMS)
            async with aclosing(self._storage.table.query(wanted)) as pages:
                items: list[Item] = await anext(pages, [])
            for item in items:
                if item.get("token") == token and isinstance(item.get("worker"), str):
                    self._holders[token] = item["worker"]
            for old in list(self._holders)[:-_KEPT]:
                del self._holders[old]
        return self._holders.get(token, "")

    async def _of_scope(self, query: TaskQuery) -> Rows:
        since = query.since_ms
        listed = ListTasksQuery(
            status=STATES[query.state] if query.state else None,
            page_size=query.limit,
            page_token=query.token or None,
            context_id=query.context_id,
            status_timestamp_after=None if since is None else _iso(since),
        )
        heads, token = await newest_heads(self._storage.for_scope(Scope(query.scope or "")), listed)
        return Rows(rows=tuple(filter(query.has, map(row_of, heads))), next_token=token)

    async def _of_all(self, query: TaskQuery) -> Rows:
        """Return tasks hour by hour, the newest first; the token is the place to go on from.

        One page reads at most `_STEPS` times, however many tasks there are.
        """
        now, floor = self._storage.clock.now_ms(), query.created_ms
        place = _place_in(query.token)
        hour, before = place or ((now + _AHEAD_MS) // HOUR_MS, "")
        newest = _oldest_looked_at(hour, before) if place else now
        oldest = max(0, now - int(self._storage.timing.ttl_s * 1000))
        first = now - _DAY_MS if query.since_ms is None else min(now - _DAY_MS, query.since_ms)
        is_older = place or query.is_whole
        until = (oldest if is_older else max(first, oldest)) if floor is None else max(0, floor)
        rows: list[TaskRow] = []
        count, requests = 0, 0

        def answer(token: str, looked_to: int) -> Rows:
            down_to = max(looked_to, floor or 0)
            looked = Looked(count=count, newest=newest, oldest=down_to, requests=requests)
            return Rows(rows=tuple(rows), next_token=token, looked=looked)

        for _ in range(_STEPS):
            if hour < until // HOUR_MS:
                has_more = floor is None and hour >= oldest // HOUR_MS
                return answer(f"{hour}/" if has_more else "", (hour + 1) * HOUR_MS)
            found = await created_in(
                self._storage, hour * HOUR_MS, before=before, limit=query.limit
            )
            requests += layout.SHARDS + bool(found.heads)
            for head in found.heads:
                if floor is not None and head.created_at < floor:
                    continue
                count += 1
                row = row_of(head)
                if query.has(row):
                    rows.append(row)
                if len(rows) == query.limit:
                    return answer(f"{hour}/{Created.place(head)}", head.created_at)
            hour, before = (hour, found.before) if found.before else (hour - 1, "")
        return answer(f"{hour}/{before}", _oldest_looked_at(hour, before))

    async def counts(self, scope: str) -> Mapping[str, int]:
        """Return the number of a scope's tasks by state; this reads an index entry for each."""
        counted = await count_states(self._storage.for_scope(Scope(scope)))
        return {name: counted[state_name(state)] for name, state in STATES.items()}

    async def open_turns(self, limit: int) -> _OpenTurns:
        """Return what is due of the first `limit` tasks at which the sweeper looks next."""
        now = self._storage.clock.now_ms()
        found = await due_tasks(self._storage, now + _NEXT_MS, limit=limit + 1)
        turns, is_all = found[:limit], len(found) <= limit
        keys = [(one.scope.digest, one.task_id) for one in turns]
        heads: dict[TaskKey, Head | None] = dict.fromkeys(keys)
        parts = (keys[at : at + LOOK_AT_ONCE] for at in range(0, len(keys), LOOK_AT_ONCE))
        for seen in await asyncio.gather(*map(self._storage.look, parts)):
            heads |= seen
        known = [head for head in heads.values() if head is not None]
        cancels = [head for head in known if overdue_cancel(head, now_ms=now)]
        rows = [row_of(head) for head in known if head.turn_is_open and head not in cancels]
        unread = [one for one, key in zip(turns, keys, strict=True) if heads[key] is None]
        return _OpenTurns(
            rows=tuple(rows),
            cancels=tuple(map(row_of, cancels)),
            unread=tuple(unread),
            is_all=is_all,
        )


def _time(at_ms: int | None) -> str:
    """Return the place before a time in the index of trouble; empty: its end."""
    return "" if at_ms is None else f"{at_ms:015d}"


def _place_in(token: str) -> tuple[int, str] | None:
    """Return the hour, and the place in it, at which a page begins; None if there is no token."""
    if not token:
        return None
    match = _PLACE.fullmatch(token)
    if match is None:
        raise PageTokenError
    return int(match["hour"]), match["before"]


def _oldest_looked_at(hour: int, before: str) -> int:
    """Return the time of creation down to which tasks were looked at, by the place to go on."""
    return int(before.partition("#")[0]) if before else (hour + 1) * HOUR_MS


def _iso(at_ms: int) -> str:
    """Return a time in UTC; one before 1970 as 1970: nothing is older."""
    return datetime.fromtimestamp(max(0, at_ms) / 1000, UTC).isoformat()

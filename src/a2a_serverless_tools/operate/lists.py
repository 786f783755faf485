"""Lists of the tasks of all scopes, page by page, with what a person knows of each task."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Final, TypeAlias, cast

from a2a.types import TaskState

from a2a_serverless.errors import A2AServerlessError, PageTokenError
from a2a_serverless.storage import layout
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import HOUR_MS, TROUBLES, event_sort, task_partition
from a2a_serverless.storage.listing import ListTasksQuery, count_states, newest_heads
from a2a_serverless.storage.table import Item, Key, Range
from a2a_serverless.tasks.attempts import overdue_cancel
from a2a_serverless.tasks.entries import decode_entries
from a2a_serverless.tasks.head import (
    ASLEEP,
    HANDOVER,
    Attention,
    Head,
    Wait,
    plain_state,
    state_name,
)
from a2a_serverless.tasks.identity import Scope, TaskKey
from a2a_serverless_tools.operate.filters import STATES, TaskFilter
from a2a_serverless_tools.operate.finding import (
    Named,
    created_in,
    named_heads,
    tasks_in_trouble,
    waiting_tasks,
)
from a2a_serverless_tools.operate.tables import NUMBER, Cell, Table
from a2a_serverless_tools.operate.wording import (
    IN_LINE,
    age,
    duration,
    iso,
    left_at_record,
    number,
    times,
)
from a2a_serverless_tools.operate.words import UNKNOWN, TaskRequest, asked_in

PAGE: Final = 50
"""The tasks of one page, unless the caller asks for another number."""
LATE_MS: Final = 120_000
"""Two sweeps of a deployment: a turn that slept is woken by then."""
MOST_NOTED: Final = 4_000
"""The most entries of the index of what needs attention that one look reads."""
_SEARCHED: Final = 1_000
"""The newest tasks of a list among which a text is looked for."""
_KEPT: Final = 5_000
"""Tasks whose request, and claims whose process, are remembered: neither ever changes."""
_CLAIMS: Final = 30
"""The first commits of a turn, among which its claim is looked for."""
_DAY_MS: Final = 24 * HOUR_MS
_AHEAD_MS: Final = 300_000
"""How far the clock that a task was created by may be ahead of this one."""
_STEPS: Final = 50
"""The most reads for one page of all tasks; each looks at as many tasks as the page shows."""
_OF_HEAD: Final = (
    *("scope", "task_id", "incarnation", "context_id", "created_at", "status_at", "version"),
    "due_at",
)
_PLACE: Final = re.compile(r"(?P<down_to>[0-9]{1,14})/(?P<after>[A-Za-z0-9_-]*)")

COLUMNS: Final[Mapping[str, str]] = {
    "task": "main-cell",
    "state": "",
    "changed": "",
    "caller": "short",
    "asked": "rest",
    "known": "notes",
    "took": f"{NUMBER} from-980",
    "created": "from-1500",
    "context": "from-1900 short",
}
"""What a list on a page shows of a task, each with the look of its column; `cli/tasks.py` chooses
what a list on a terminal shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task in a list."""

    head: Head
    why: Attention | None
    """Why the task is in a list of those that need attention, or else what HEAD says."""
    asked: TaskRequest = UNKNOWN
    holder: str = ""
    """The process that has claimed the open turn; empty: none has, or it is unknown."""

    @property
    def key(self) -> TaskKey:
        """Return the key of the task among those of all scopes."""
        return self.head.scope, self.head.task_id

    @property
    def reason(self) -> str:
        """Return why the task has failed, or what its open turn waits for; empty: unknown."""
        return self.why.reason if self.why else ""

    @property
    def is_claimed(self) -> bool:
        """Return True if an attempt has claimed the open turn and has not given it back."""
        head = self.head
        turn = head.turn
        return turn.is_open and turn.is_claimed and not turn.parked

    @property
    def waits_since(self) -> int | None:
        """Return since when the open turn has no worker; None: it has one, or it is unknown."""
        head = self.head
        if not head.turn.is_open:
            return None
        if (end := head.turn.released) is not None:
            return end.until if end.reason == ASLEEP else end.at
        is_new = head.turn.token is None and head.state == TaskState.TASK_STATE_SUBMITTED
        return head.status_at if is_new else None

    @property
    def fields(self) -> dict[str, Any]:
        """Return what is known of the task, for programs; times are milliseconds.

        A list has these of each task, and `task --json` has them before all else.
        """
        head, why = self.head, self.why
        released = head.turn.released
        return {name: getattr(head, name) for name in _OF_HEAD} | {
            "attempts": head.turn.attempts,
            "turn_is_open": head.turn.is_open,
            "state": plain_state(head.state),
            "is_cancel_asked": head.cancel is not None,
            "resends": head.turn.resends,
            "is_claimed": self.is_claimed,
            "waits_since": self.waits_since,
            "waits_until": released.until if released else 0,
            "waits_for": released.reason if released else "",
            "parked": head.turn.parked,
            "reason": self.reason,
            "correlation_id": why.correlation_id if why else "",
            "holder": self.holder,
            "caller": self.asked.caller,
            "tenant": self.asked.tenant,
            "first_line": self.asked.line,
        }

    def took_ms(self, now_ms: int) -> int:
        """Return how long the task took to its end, or has taken so far."""
        end = self.head.status_at if self.head.is_terminal else now_ms
        return max(0, end - self.head.created_at)

    def mentions(self, text: str) -> bool:
        """Return True if the row, with what is known of it, contains a casefolded text."""
        asked = self.asked
        shown = (asked.caller, asked.tenant, asked.line, self.head.context_id, self.reason)
        whole = (self.why.correlation_id if self.why else "", self.head.scope)
        return (
            self.head.task_id.casefold().startswith(text)
            or any(text == one.casefold() for one in whole)
            or any(text in one.casefold() for one in (*shown, self.holder))
        )

    def notes(self, now_ms: int) -> list[str]:
        """Return what a person should know of the task besides its state."""
        head, since = self.head, self.waits_since
        is_canceled = head.state == TaskState.TASK_STATE_CANCELED
        notes = ["cancel asked"] if head.cancel is not None and not is_canceled else []
        if overdue_cancel(head, now_ms=now_ms):
            notes = ["a cancel that has not ended it"]
        if not head.turn.is_open:
            has_time = head.turn.asks and head.due_at is not None and head.cancel is None
            return [*notes, f"waits for an answer until {iso(head.due_at)}"] if has_time else notes
        released = head.turn.released
        waited = "" if since is None else f" for {age(now_ms - since)}"
        if head.turn.parked == ASLEEP:
            notes.append(left_at_record(ASLEEP, released.until if released else 0))
        elif head.turn.parked:
            notes.append(IN_LINE[head.turn.parked] + (waited and f",{waited}"))
        elif released and released.until > now_ms:
            notes.append(f"waits {age(released.until - now_ms)}: {released.reason}")
        elif not self.is_claimed:
            handed = "handed over, " if released and released.reason == HANDOVER else ""
            notes.append(f"{handed}no worker{waited}")
        if head.turn.attempts > 1:
            notes.append(f"attempt {head.turn.attempts}")
        if head.turn.resends:
            notes.append(f"sent again {times(head.turn.resends)}")
        if self.is_overdue(now_ms):
            notes.append("overdue")
        return notes

    def is_overdue(self, now_ms: int) -> bool:
        """Return True if the sweeper was to look at the task; it wakes a sleeping turn a bit late.

        That is at most `LATE_MS` where it runs.
        """
        is_swept = self.head.turn.parked == ASLEEP or self.head.turn.asks
        late_ms = LATE_MS if is_swept else 0
        return self.head.due_at is not None and self.head.due_at + late_ms < now_ms

    def cells(self, now_ms: int) -> dict[str, Cell]:
        """Return what a list shows of the task, by the names of `COLUMNS`."""
        head, state = self.head, plain_state(self.head.state)
        reason = self.reason if not head.turn.is_open else ""
        notes = ((note, "note") for note in self.notes(now_ms))
        return {
            "task": Cell(head.task_id, task=self.key),
            "state": Cell(state, f"state {state}"),
            "changed": Cell(at=head.status_at),
            "caller": Cell(self.asked.by, "by"),
            "asked": Cell(self.asked.line),
            "known": Cell("", "", ((reason, "why"), *notes, (self.holder, "worker"))),
            "took": Cell(duration(self.took_ms(now_ms))),
            "created": Cell(at=head.created_at, look="time"),
            "context": Cell(head.context_id, "worker"),
            "owner": Cell(head.scope),
        }


def listed(rows: Iterable[TaskRow], names: Iterable[str], now_ms: int) -> Table:
    """Return tasks as a table with some of what `TaskRow.cells` has."""
    cells = [row.cells(now_ms) for row in rows]
    columns = {name: COLUMNS.get(name, "") for name in names}
    return Table("", columns, [[of[name] for name in columns] for of in cells])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """The tasks among which a page was looked for: those created from `oldest` to `newest`."""

    count: int = 0
    newest: int
    oldest: int
    """Milliseconds since the epoch, as `newest`."""
    requests: int = 0
    """The requests of the table that it took, at least."""

    def __add__(self, other: _Looked) -> _Looked:
        return _Looked(
            count=self.count + other.count,
            newest=max(self.newest, other.newest),
            oldest=min(self.oldest, other.oldest),
            requests=self.requests + other.requests,
        )

    def sentence(self) -> str:
        """Return what was looked at, without a full stop."""
        return (
            f"Looked at {number(self.count, 'task')} created from {iso(self.oldest)} to"
            f" {iso(self.newest)}, the newest first, by {number(self.requests, 'request')} of the"
            " table"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One page of a list."""

    rows: tuple[TaskRow, ...]
    after: str = ""
    """Where the next page goes on; empty: there is none."""
    looked: _Looked | None = None
    """None: the list is in the order of changes, and the page has all that match up to its end."""
    searched: int | None = None
    """The tasks among which a text was looked for; None: none was."""

    @property
    def count(self) -> int:
        """Return the tasks that were looked at."""
        return self.looked.count if self.looked else len(self.rows)

    def search(self) -> str:
        """Return where a text was looked for, as a sentence; empty: none was."""
        if self.searched is None:
            return ""
        return (
            f"Looked for the text in {number(self.searched, 'task')}, the newest of this list; by"
            " correlation id in all that failed."
        )


_Found: TypeAlias = tuple[TaskRow, int, str]
"""A task, the time that a filter's times are about, and its place in the list."""
_Step: TypeAlias = tuple[list[_Found], str, bool]
"""What one read has found, where the next one goes on, and whether none is to be made."""


class Lists:
    """Lists the tasks of all scopes.

    Args:
        storage: the storage, in any scope.

    Every method raises:
        ConfigurationError: one sentence says what cannot be reached, and what to do.
    """

    def __init__(self, storage: DurableStorage) -> None:
        self._storage = storage
        self._asked: dict[Key, TaskRequest] = {}
        self._holders: dict[str, str] = {}

    async def page(self, which: TaskFilter, *, after: str = "", limit: int = PAGE) -> Rows:
        """Return one page of tasks; it looks at a bounded number, and may have fewer than `limit`.

        Those that need attention come in the order of that: the newest trouble first, the longest
        wait first. So do failed and rejected tasks of all owners. An owner's come with the newest
        change first, and else the newest task does.

        Raises:
            PageTokenError: `after` was made for another kind of list.
        """
        which = which.at(self._storage.clock.now_ms())
        if which.text:
            return await self._with_text(which)
        if which.kind:
            return await self._of_attention(which, after, limit)
        return await (self._of_owner if which.owner else self._of_all)(which, after, limit)

    async def has(self, which: TaskFilter, head: Head) -> bool:
        """Return True if a task is one of those that a filter with times chooses, as it is now."""
        row = TaskRow(head=head, why=head.attention)
        why = [row.why] if row.why and row.why.kind == which.attention else []
        if which.attention in {"untold", "owed"}:
            pushes = await self._storage.for_scope(Scope(head.scope)).webhooks.all(head.task_id)
            every = [push.attention for push in pushes]
            why = [one for one in every if one is not None and one.kind == which.attention]
        seen = [(one.reason, one.at) for one in why]
        seen = seen if which.attention else [(row.reason, head.status_at)]
        is_one = any(which.has(head, reason, at) for reason, at in seen)
        if not is_one or not which.text:
            return is_one
        (described,) = await self.described(Rows(rows=(row,)))
        return described.mentions(which.text.casefold())

    async def _with_text(self, which: TaskFilter) -> Rows:
        """Return those of the newest `_SEARCHED` tasks of a list that contain the filter's text."""
        rest, looked, wanted = replace(which, text=""), 0, which.text.casefold()
        # `created` is where a list of all owners ends, and not an index of what failed.
        failed = await self._with_reference(wanted, replace(rest, created=""))
        rows = {row.key: row for row in await self.described(failed)}
        async for page in self.newest(rest):
            looked += page.count
            described = await self.described(page)
            rows |= {row.key: row for row in described if row.mentions(wanted)}
        return Rows(rows=tuple(rows.values()), searched=looked)

    async def longest(self, which: TaskFilter, limit: int) -> Rows:
        """Return those of the newest `_SEARCHED` tasks of a list that took longest, or take so far.

        Raises:
            ConfigurationError: as every method.
        """
        now_ms = self._storage.clock.now_ms()
        pages = [page async for page in self.newest(which)]
        rows = sorted(
            (row for page in pages for row in page.rows), key=lambda row: -row.took_ms(now_ms)
        )
        looked = [page.looked for page in pages if page.looked]
        return replace(
            pages[0],
            rows=tuple(rows[:limit]),
            after="",
            looked=reduce(add, looked) if looked else None,
        )

    async def newest(self, which: TaskFilter) -> AsyncIterator[Rows]:
        """Yield pages of a list until they have looked at `_SEARCHED` tasks."""
        looked, after = 0, ""
        while looked < _SEARCHED:
            page = await self.page(which, after=after, limit=100)
            yield page
            looked, after = looked + page.count, page.after
            if not after:
                break

    async def _with_reference(self, correlation_id: str, which: TaskFilter) -> Rows:
        """Return those of a filter whose client was given a correlation id, of all that failed."""
        look = await tasks_in_trouble(self._storage, limit=MOST_NOTED)
        while True:
            own = [o for o in look.found if o.why and o.why.correlation_id == correlation_id]
            if own or not look.after:
                heads = (await named_heads(self._storage, own)).values()
                fitting = [head for head in heads if await self.has(which, head)]
                return Rows(rows=tuple(TaskRow(head=o, why=o.attention) for o in fitting))
            look = await tasks_in_trouble(self._storage, after=look.after, limit=MOST_NOTED)

    async def _of_owner(self, which: TaskFilter, after: str, limit: int) -> Rows:
        listed = ListTasksQuery(
            status=STATES[which.state] if which.state else None,
            page_size=limit,
            page_token=after or None,
            context_id=which.context or None,
            status_timestamp_after=which.since or None,
        )
        storage = self._storage.for_scope(Scope(which.owner))
        heads, after = await newest_heads(storage, listed)
        rows = [TaskRow(head=head, why=head.attention) for head in heads]
        own = (row for row in rows if which.has(row.head, row.reason, row.head.status_at))
        return Rows(rows=tuple(own), after=after)

    async def _of_attention(self, which: TaskFilter, after: str, limit: int) -> Rows:
        """Return tasks in the order of the index of attention; HEAD has the last word."""
        kind, since, until = which.kind, which.since_ms, which.until_ms

        async def look(after: str) -> _Step:
            if kind in TROUBLES:
                page = await tasks_in_trouble(
                    self._storage, since_ms=since or 0, until_ms=until, after=after, limit=limit
                )
            else:
                wait = cast("Wait", kind)
                page = await waiting_tasks(self._storage, wait, after=after, limit=limit)
            named = [o for o in page.found if o.why and o.why.kind == kind]
            heads = await named_heads(
                self._storage, [one for one in named if which.owner in ("", one.scope)]
            )
            seen: list[_Found] = []
            for one in named:
                head = heads.get((one.scope, one.task_id))
                why = one.why if one.config_id or head is None else head.attention
                if head is not None and why is not None and why.kind == kind:
                    seen.append((TaskRow(head=head, why=why), why.at, one.place))
            return seen, page.after, not page.after

        rows, after, _ = await _walked(which, after, limit, look)
        return Rows(rows=rows, after=after)

    async def _of_all(self, which: TaskFilter, after: str, limit: int) -> Rows:
        """Return tasks hour by hour, the newest first.

        Its first page looks at those of a day, or since `since` if that is longer ago; the next
        ones look further back. With `created` it looks back until then.
        """
        now = self._storage.clock.now_ms()
        newest, _ = _place_in(after) if after else (now, "")
        oldest = max(0, now - int(self._storage.timing.ttl_s * 1000))  # the rest has expired
        created, since = which.created_ms, which.since_ms
        last = oldest if created is None else created
        day = now - _DAY_MS if since is None else min(now - _DAY_MS, since)
        until = last if after or created is not None else max(last, day)
        requests = 0

        async def look(after: str) -> _Step:
            nonlocal requests
            down_to, behind = _place_in(after)
            hour = (down_to if behind else down_to - 1) // HOUR_MS * HOUR_MS
            page = await created_in(self._storage, hour, after=behind, limit=limit)
            heads = await named_heads(self._storage, page.found)
            requests += layout.SHARDS + bool(page.found)
            seen = [
                (TaskRow(head=head, why=head.attention), head.status_at, f"{one.at}/{one.place}")
                for one in page.found
                if (head := heads.get((one.scope, one.task_id)))
                and head.created_at >= (created or 0)
            ]
            end = f"{page.found[-1].at}/{page.after}" if page.after else f"{hour}/"
            return seen, end, not page.after and hour <= until

        start = after or f"{now + _AHEAD_MS + 1}/"
        rows, after, count = await _walked(which, start, limit, look)
        down_to, behind = _place_in(after)
        if not behind and down_to <= last:
            after = ""
        looked = _Looked(
            count=count, newest=newest, oldest=max(down_to, created or 0), requests=requests
        )
        return Rows(rows=rows, after=after, looked=looked)

    async def described(self, page: Rows) -> list[TaskRow]:
        """Return a page with what a person knows of tasks: who asked for what, and who has them.

        It costs one request for a hundred tasks that are new here, and one for each claim. The
        rows of a search are described already.
        """
        if page.searched is not None:
            return list(page.rows)
        heads = [row.head for row in page.rows]
        asked = await self.asked(heads)
        holders = await asyncio.gather(*map(self._holder, heads))
        return [
            replace(row, asked=asked[row.key], holder=holder)
            for row, holder in zip(page.rows, holders, strict=True)
        ]

    async def asked(self, tasks: Iterable[Head | Named]) -> Mapping[TaskKey, TaskRequest]:
        """Return what tasks were asked, out of the first commit of each log.

        One request reads those of a hundred that are not known.
        """
        keys = {(one.scope, one.task_id): _first_commit(one) for one in tasks}
        missing = list(dict.fromkeys(key for key in keys.values() if key not in self._asked))
        if missing:
            found = await self._storage.table.load(missing, consistent=False, only=("body",))
            self._asked |= {key: _asked_in(found.get(key)) for key in missing}
            _forget(self._asked)
        return {task: self._asked.get(key, UNKNOWN) for task, key in keys.items()}

    async def _holder(self, head: Head) -> str:
        """Return the process that has claimed a turn; empty: it is not among its first commits."""
        token = head.turn.token
        if token is None or not head.turn.is_open or not head.turn.is_claimed or head.turn.parked:
            return ""
        if token not in self._holders:
            partition = task_partition(head.scope, head.task_id)
            first = event_sort(head.incarnation, head.turn.base)
            only = ("token", "worker")
            last = layout.HEAD
            wanted = Range(partition=partition, first=first, last=last, only=only, page=_CLAIMS)
            async with aclosing(self._storage.table.query(wanted)) as pages:
                items: list[Item] = await anext(pages, [])
            for item in items:
                if item.get("token") == token and isinstance(item.get("worker"), str):
                    self._holders[token] = item["worker"]
            _forget(self._holders)
        return self._holders.get(token, "")

    async def counts(self, scope: str) -> Mapping[str, int]:
        """Return the number of a scope's tasks by state; this reads an index entry for each."""
        counted = await count_states(self._storage.for_scope(Scope(scope)))
        return {name: counted[state_name(state)] for name, state in STATES.items()}


async def _walked(
    which: TaskFilter, after: str, limit: int, look: Callable[[str], Awaitable[_Step]]
) -> tuple[tuple[TaskRow, ...], str, int]:
    """Return up to `limit` tasks behind a place, where it goes on, and how many were looked at."""
    rows: dict[TaskKey, TaskRow] = {}
    count = 0
    for _ in range(_STEPS):
        seen, end, is_over = await look(after)
        for looked, (row, at, place) in enumerate(seen, 1):
            count += 1
            if which.has(row.head, row.reason, at):
                rows.setdefault(row.key, row)
            if len(rows) == limit:
                return tuple(rows.values()), place if looked < len(seen) else end, count
        after = end
        if is_over:
            break
    return tuple(rows.values()), after, count


def _place_in(after: str) -> tuple[int, str]:
    """Return the time down to which a page has looked, and its place in that hour, if it has one.

    Raises:
        PageTokenError: it is no place in the list of all tasks.
    """
    match = _PLACE.fullmatch(after)
    if match is None:
        raise PageTokenError
    return int(match["down_to"]), match["after"]


def _first_commit(task: Head | Named) -> Key:
    partition = task_partition(task.scope, task.task_id)
    return Key(partition, event_sort(task.incarnation, 1, 0))


def _asked_in(item: Mapping[str, Any] | None) -> TaskRequest:
    """Return what the first part of a log says; what cannot be read counts as unknown."""
    body = None if item is None else item.get("body")
    try:
        return asked_in(decode_entries(body)) if isinstance(body, bytes) else UNKNOWN
    except (A2AServerlessError, ValueError):
        return UNKNOWN


def _forget(known: dict[Any, Any]) -> None:
    for old in list(known)[:-_KEPT]:
        del known[old]

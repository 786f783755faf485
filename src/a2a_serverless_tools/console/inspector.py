"""Looks at the tasks of a storage."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, cast

from a2a.types import Message, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as AnyMessage

from a2a_serverless.errors import PageTokenError, TaskNotFoundError
from a2a_serverless.settings import Settings
from a2a_serverless.storage import layout
from a2a_serverless.storage.blobs import Inline
from a2a_serverless.storage.conversation import line_of
from a2a_serverless.storage.durable import LOOK_AT_ONCE, DurableStorage
from a2a_serverless.storage.finding import Due, due_tasks
from a2a_serverless.storage.layout import (
    HEAD,
    HOUR_MS,
    MAX_REASON,
    TROUBLES,
    WAIT_KINDS,
    attention_in,
    event_sort,
    task_partition,
)
from a2a_serverless.storage.listing import ListTasksQuery, count_states, newest_heads
from a2a_serverless.storage.shares import ahead
from a2a_serverless.storage.table import Item, Range
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.attempts import overdue_cancel
from a2a_serverless.tasks.conversation import Place
from a2a_serverless.tasks.fold import (
    Cursor,
    Event,
    Fold,
    Log,
    Record,
    events_of,
    incarnation_tag,
)
from a2a_serverless.tasks.head import (
    ASLEEP,
    HANDOVER,
    KNOWN,
    TERMINAL,
    Attention,
    Head,
    Reason,
    Trouble,
    Wait,
    plain_state,
    state_name,
)
from a2a_serverless.tasks.identity import Scope, TaskKey
from a2a_serverless.tasks.turns import Turn
from a2a_serverless.wiring import Backends
from a2a_serverless_tools.console.asked import Requests
from a2a_serverless_tools.console.finding import (
    Created,
    NotedTasks,
    created_in,
    find_tasks,
    load_noted,
    tasks_in_trouble,
    waiting_tasks,
)
from a2a_serverless_tools.console.lines import Logs
from a2a_serverless_tools.console.survey import Survey, survey_task
from a2a_serverless_tools.inspect.cost import Cost, Workers, cost_of
from a2a_serverless_tools.inspect.timeline import InLine, Timeline, timeline
from a2a_serverless_tools.inspect.wording import IN_LINE, age, duration, left_at_record, times

STATES: Final[Mapping[str, TaskState]] = {plain_state(state): state for state in sorted(KNOWN)}
"""The states that a task can have, by their plain names."""

ATTENTIONS: Final[tuple[Trouble | Wait, ...]] = (*TROUBLES, *WAIT_KINDS)
"""What a task can need attention for."""

PAGE: Final = 50
"""The tasks of one page, unless the caller asks for another number."""

SEARCHED: Final = 1_000
"""The newest tasks of a list among which a text is looked for."""

MOST_NOTED: Final = 4_000
"""The most entries of the index of what needs attention that one look reads."""

_SURVEYS: Final = 16
_SURVEYED_BYTES: Final = 64 * 1024 * 1024
"""Tasks whose log is kept, and the bytes of all their entries."""
_KEPT: Final = 5_000
"""Claims whose process is remembered."""
_CLAIM: Final = ("token", "worker")
_CLAIMS: Final = 30
"""The first commits of a turn, among which its claim is looked for."""
_ENDS: Final = frozenset(map(plain_state, TERMINAL))
_DAY_MS: Final = 24 * HOUR_MS
_AHEAD_MS: Final = 300_000
"""How far the clock that a task was created by may be ahead of this one."""
_STEPS: Final = 50
"""The most reads for one page of all tasks; each looks at as many tasks as the page shows."""
_PLACE: Final = re.compile(
    r"(?P<hour>[0-9]{1,7})/(?P<before>([0-9]{15}#[A-Za-z0-9._:-]{1,100}#[A-Za-z0-9_-]{32})?)"
)
_MOST_BEFORE: Final = 1_000
"""The most turns before one in the line of its caller that are counted."""
_NEXT_MS: Final = 2 * HOUR_MS
"""An open turn that is not asleep is due within a lease, the longest wait of a sweep or of a retry:
within this."""
LATE_MS: Final = 120_000
"""Two sweeps of a deployment: a turn that slept is woken by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task in a list. Times are milliseconds since the epoch."""

    scope: str
    task_id: str
    incarnation: str
    context_id: str
    state: str
    created_at: int
    status_at: int
    version: int
    attempts: int
    turn_is_open: bool
    due_at: int | None
    is_cancel_asked: bool
    sends: int
    """How often the sweeper has sent the turn again."""
    is_claimed: bool
    """True if an attempt has claimed the open turn and has not given it back."""
    waits_since: int | None
    """The time since which the open turn has no worker; None: it is claimed, or the time is
    unknown."""
    waits_until: int
    """The time before which the open turn does not start again; 0: it may start."""
    waits_for: str
    """Why the open turn was given back; empty: it was not."""
    left: Reason
    """What the open turn stands in line for, without a message on the queue; empty: it does not."""
    reason: str = ""
    """Why the task has failed, or what its open turn waits for; empty: it has not, or no reason is
    known."""
    correlation_id: str = ""
    """What the client of a failed task was given."""
    holder: str = ""
    """The process that has claimed the open turn; empty: none has, or it is unknown."""
    caller: str = ""
    tenant: str = ""
    first_line: str = ""
    """The first line of what the task was asked."""

    def took_ms(self, now_ms: int) -> int:
        """Return how long the task took to its end, or has taken so far."""
        has_ended = self.state in _ENDS
        return max(0, (self.status_at if has_ended else now_ms) - self.created_at)

    def described(self, now_ms: int) -> list[str]:
        """Return what a person knows of the task: its reason, time, holder, caller and request."""
        by = f"{self.caller} ({self.tenant})" if self.tenant else self.caller
        return [
            *([self.reason] if self.reason and not self.turn_is_open else []),
            f"{'took' if self.state in _ENDS else 'for'} {duration(self.took_ms(now_ms))}",
            *([f"on {self.holder}"] if self.holder else []),
            *([f"by {by}"] if by else []),
            *([repr(self.first_line)] if self.first_line else []),
        ]

    def mentions(self, text: str) -> bool:
        """Return True if the row, with what is known of it, contains a casefolded text."""
        asked = (self.caller, self.tenant, self.context_id, self.first_line)
        shown = (*asked, self.reason, self.holder)
        exact = (self.correlation_id, self.scope)
        begins = self.task_id.casefold().startswith(text)
        return begins or any(text in one.casefold() for one in (*shown, *exact))

    def notes(self, now_ms: int) -> list[str]:
        """Return what a person should know of the task besides its state."""
        notes = ["cancel asked"] if self.is_cancel_asked and self.state != "canceled" else []
        if not self.turn_is_open:
            return notes
        since = self.waits_since
        if self.left == ASLEEP:
            notes.append(left_at_record(ASLEEP, self.waits_until))
        elif self.left:
            waited = "" if since is None else f", for {age(now_ms - since)}"
            notes.append(IN_LINE[self.left] + waited)
        elif self.waits_until > now_ms:
            notes.append(f"waits {age(self.waits_until - now_ms)}: {self.waits_for}")
        elif not self.is_claimed:
            handed = "handed over, " if self.waits_for == HANDOVER else ""
            waited = "" if since is None else f" for {age(now_ms - since)}"
            notes.append(f"{handed}no worker{waited}")
        if self.attempts > 1:
            notes.append(f"attempt {self.attempts}")
        if self.sends:
            notes.append(f"sent again {times(self.sends)}")
        if self.is_overdue(now_ms):
            notes.append("overdue")
        return notes

    def is_overdue(self, now_ms: int) -> bool:
        """Return True if the sweeper was to look at the task; it wakes a sleeping turn a bit late.

        That is at most `LATE_MS` where it runs.
        """
        late_ms = LATE_MS if self.left == ASLEEP else 0
        return self.due_at is not None and self.due_at + late_ms < now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQuery:
    """Which tasks to list: of one scope by their status, newest first; else by their creation."""

    scope: str | None = None
    state: str | None = None
    since_ms: int | None = None
    """Only tasks whose status has changed since then; None: all."""
    until_ms: int | None = None
    """Only tasks whose status has changed before then; None: all."""
    context_id: str | None = None
    reason: str | None = None
    """Only tasks that have failed, or whose open turn waits, for this; empty: for none known."""
    created_ms: int | None = None
    """Without a scope: only tasks created since then. None: a page without a token looks at those
    of a day, or since `since_ms` if that is longer ago; the next pages look further back."""
    limit: int = PAGE
    token: str = ""
    """The place where the page before ended; empty: from the newest on."""
    attention: Trouble | Wait | None = None
    """Only tasks that need attention for this: the newest trouble first, the longest wait first.
    Their times and reasons are then those of that, and not of the status."""
    text: str = ""
    """Only tasks of which caller, tenant, context, reason, correlation id, the holder of the open
    turn or the request's first line contain this, whatever the case, or whose id begins with it:
    among `SEARCHED`."""
    is_whole: bool = False
    """Without a scope: the first page, too, looks back to the oldest task."""

    def has(self, row: TaskRow, at: int | None = None) -> bool:
        """Return True if a task is one of those, but for its text and why it needs attention.

        `at` is the time that the query's times are about; None: that of its status.
        """
        at = row.status_at if at is None else at
        return (
            self.scope in (None, "", row.scope)
            and self.state in (None, "", row.state)
            and self.context_id in (None, row.context_id)
            and (self.reason is None or self.reason[:MAX_REASON] == row.reason[:MAX_REASON])
            and at >= (self.since_ms or 0)
            and (self.until_ms is None or at < self.until_ms)
        )


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
class _Rows:
    """One page of a list, and the token of the next one; empty: there is none."""

    rows: tuple[TaskRow, ...]
    next_token: str = ""
    looked: Looked | None = None
    """None: the list is in the order of changes, and the page has all that match up to its end."""
    heads: tuple[Head, ...] = ()
    """Those of the rows."""
    searched: int | None = None
    """The tasks among which a text was looked for; None: none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A task as far as it can be read, for a page about it."""

    timeline: Timeline
    head: Head
    records: tuple[Record, ...]
    """The commits that can be read, in order."""
    damage: tuple[tuple[int, str], ...] = ()
    """What of the log cannot be read: clauses, each with the first version that it is about."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Return the task's turns, with their attempts."""
        return self.timeline.turns

    @property
    def tag(self) -> str:
        """Return what its cursors end with."""
        return incarnation_tag(self.head.incarnation)

    def fold(self) -> Fold:
        """Return a fold of the task to which no record was added yet."""
        return Fold(self.head.task_id, self.head.context_id)


Show: TypeAlias = Callable[[AnyMessage], Awaitable[None]]
"""Replaces what a message refers to by contents or links, in place."""
_EventLine: TypeAlias = tuple[str, Mapping[str, Any]]
"""The cursor of an event, and the event as subscribers get it: a StreamResponse as JSON."""


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


class Inspector:
    """Looks at tasks of all scopes.

    Args:
        storage: the storage, in any scope.
        settings: the settings of its deployment.
        place: what is looked at, for sentences, such as `the table tasks`.
        backends: the backends with the queue; None: only the table can be reached.
        logs: the logs of its functions; None: they cannot be reached.
        workers: what is known of the function that runs the agent; None: nothing.

    Every method raises:
        ConfigurationError: one sentence says what cannot be reached, and what to do.
    """

    def __init__(
        self,
        storage: DurableStorage,
        settings: Settings,
        *,
        place: str,
        backends: Backends | None = None,
        logs: Logs | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.storage = storage
        self.settings = settings
        self.place = place
        self.logs = logs
        self.backends = backends
        self._workers = workers or Workers()
        self.asked = Requests(storage.table)
        self._holders: dict[str, str] = {}
        self._surveys: dict[TaskKey, Survey] = {}
        """The tasks that were seen last, for `seen` to go on from."""

    async def timelines(self, task_id: str, scope: str | None = None) -> list[Timeline]:
        """Return the task of `scope`; without a scope, all tasks with this id, ordered by scope."""
        scopes = (
            [scope] if scope else [digest for digest, _ in await find_tasks(self.storage, task_id)]
        )
        found = [await self.seen(digest, task_id) for digest in scopes]
        return [one.timeline for one in found if one is not None]

    async def seen(self, scope: str, task_id: str) -> Seen | None:
        """Return a task as far as it can be read; None if there is none.

        Of a task that was seen a while ago, only what was committed since is read.
        """
        storage = self.storage.for_scope(Scope(scope))
        survey = await survey_task(storage, task_id, self._surveys.pop((scope, task_id), None))
        if survey is None:
            return None
        self._surveys[scope, task_id] = survey
        self._forget()
        shown = timeline(
            survey.head,
            survey.records,
            missing=survey.missing,
            unreadable=survey.unreadable,
            pushes=survey.pushes,
            lease_s=storage.timing.lease_s,
            in_line=await in_line_of(storage, survey.head, survey.missing),
            push_events=self.settings.push_events,
        )
        return Seen(
            timeline=replace(shown, looked_at=storage.clock.now_ms()),
            head=survey.head,
            records=survey.records,
            damage=survey.damage,
        )

    def cost(self, shown: Timeline) -> Cost:
        """Return what a task has cost so far."""
        return cost_of(shown, self._workers)

    def _forget(self) -> None:
        """Forget the tasks that were seen longest ago, until the others are few and small."""
        while self._surveys and (
            len(self._surveys) > _SURVEYS
            or sum(one.head.size for one in self._surveys.values()) > _SURVEYED_BYTES
        ):
            del self._surveys[next(iter(self._surveys))]

    async def show(self, message: AnyMessage) -> None:
        """Replace what a message refers to by contents or links, in place."""
        await self.storage.show(message, self._inline)

    @property
    def _inline(self) -> Inline:
        return self.settings.inline(self.settings.public_url)

    async def events(
        self, task_id: str, scope: str, *, is_followed: bool = False
    ) -> AsyncIterator[_EventLine]:
        """Yield the task's events from the first one on; `is_followed`: until it has ended.

        Raises:
            TaskNotFoundError: there is no such task, or it has been deleted meanwhile.
        """
        storage = self.storage.for_scope(Scope(scope))
        log = await storage.read(task_id)
        if log is None:
            raise TaskNotFoundError
        for line in event_lines(await storage.shown(log, self._inline)):
            yield line
        if not is_followed:
            return
        last = Cursor(log.head.version, 1_000_000_000, incarnation_tag(log.head.incarnation))
        tail, _ = await Tail.resume(storage, task_id, last)
        async for told in tail.events(until=lambda head: head.is_terminal, deadline=math.inf):
            await storage.show(told.event, self._inline)
            yield str(told.cursor), as_response(told.event)

    async def tasks(self, query: TaskQuery) -> _Rows:
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
        (described,) = await self.described(_listed([(row, head)]))
        return described.mentions(query.text.casefold())

    async def _why(self, head: Head, kind: Trouble | Wait) -> list[Attention]:
        """Return why a task needs attention of a kind, as HEAD or its webhooks say."""
        if kind != "untold":
            return [] if head.attention is None or head.attention.kind != kind else [head.attention]
        pushes = await self.storage.for_scope(Scope(head.scope)).webhooks.all(head.task_id)
        return [push.given_up.attention for push in pushes if push.given_up is not None]

    async def _with_text(self, query: TaskQuery) -> _Rows:
        """Return those of the newest `SEARCHED` tasks of a list that contain the query's text."""
        rest, looked, wanted = replace(query, text="", limit=100), 0, query.text.casefold()
        given = _Rows(rows=()) if query.scope else await self._with_reference(wanted)
        rows = {(row.scope, row.task_id): row for row in await self.described(given)}
        while looked < SEARCHED:
            page = await self.tasks(rest)
            looked += len(page.rows) if page.looked is None else page.looked.count
            described = await self.described(page)
            rows |= {(row.scope, row.task_id): row for row in described if row.mentions(wanted)}
            if not page.next_token:
                break
            rest = replace(rest, token=page.next_token)
        return _Rows(rows=tuple(rows.values()), searched=looked)

    async def _with_reference(self, correlation_id: str) -> _Rows:
        """Return the failed task whose client was given a correlation id, of all that are kept."""
        page, place = NotedTasks(found=(), is_all=False), ""
        while not page.is_all:
            page = await tasks_in_trouble(self.storage, before=place, limit=MOST_NOTED)
            place = page.found[-1].place if page.found else place
            own = [one for one in page.found if one.why.correlation_id == correlation_id]
            if own:
                heads = await load_noted(self.storage, own)
                return _listed((row_of(head), head) for head in heads.values())
        return _Rows(rows=())

    async def _of_attention(self, query: TaskQuery, kind: Trouble | Wait) -> _Rows:
        """Return tasks that need attention, in the order of its index; HEAD has the last word."""
        found: dict[TaskKey, tuple[TaskRow, Head]] = {}
        place = query.token or (_time(query.until_ms) if kind in TROUBLES else "")
        if query.token and attention_in(query.token) is None:
            raise PageTokenError
        for _ in range(_STEPS):
            page = await self._noted(kind, query.since_ms or 0, place, query.limit)
            wanted = [
                o for o in page.found if o.why.kind == kind and query.scope in (None, o.scope)
            ]
            heads = await load_noted(self.storage, wanted)
            for one in wanted:
                if len(found) >= query.limit and one.place != place:
                    return _listed(found.values(), place)
                place = one.place
                head = heads.get((one.scope, one.task_id))
                why = one.why if one.config_id or head is None else head.attention
                if head is None or why is None or why.kind != kind:
                    continue
                row = replace(row_of(head), reason=why.reason)
                if query.has(row, why.at):
                    found.setdefault((one.scope, one.task_id), (row, head))
            place = page.found[-1].place if page.found else place
            if page.is_all or len(found) >= query.limit:
                return _listed(found.values(), "" if page.is_all else place)
        return _listed(found.values(), place)

    async def _noted(
        self, kind: Trouble | Wait, since_ms: int, place: str, limit: int
    ) -> NotedTasks:
        if kind in TROUBLES:
            return await tasks_in_trouble(
                self.storage, since_ms=since_ms, before=place, limit=limit
            )
        return await waiting_tasks(self.storage, cast("Wait", kind), after=place, limit=limit)

    async def described(self, page: _Rows) -> list[TaskRow]:
        """Return a page with what a person knows of tasks: who asked for what, and who has them.

        It costs one request for a hundred tasks that are new here, and one for each claim. The
        rows of a search are described already.
        """
        if page.searched is not None:
            return list(page.rows)
        asked = await self.asked.of(page.heads)
        holders = await asyncio.gather(*map(self._holder, page.heads))
        rows: list[TaskRow] = []
        for row, holder in zip(page.rows, holders, strict=True):
            said = asked[row.scope, row.task_id]
            row = replace(row, caller=said.caller, tenant=said.tenant, first_line=said.line)  # noqa: PLW2901
            rows.append(replace(row, holder=holder))
        return rows

    async def _holder(self, head: Head) -> str:
        """Return the process that has claimed a turn; empty: it is not among its first commits."""
        token = head.token
        if token is None or not head.turn_is_open or not head.is_claimed or head.left:
            return ""
        if token not in self._holders:
            partition = task_partition(head.scope, head.task_id)
            first = event_sort(head.incarnation, head.turn_base)
            wanted = Range(partition=partition, first=first, last=HEAD, only=_CLAIM, page=_CLAIMS)
            async with aclosing(self.storage.table.query(wanted)) as pages:
                items: list[Item] = await anext(pages, [])
            for item in items:
                if item.get("token") == token and isinstance(item.get("worker"), str):
                    self._holders[token] = item["worker"]
            for old in list(self._holders)[:-_KEPT]:
                del self._holders[old]
        return self._holders.get(token, "")

    async def _of_scope(self, query: TaskQuery) -> _Rows:
        since = query.since_ms
        listed = ListTasksQuery(
            status=STATES[query.state] if query.state else None,
            page_size=query.limit,
            page_token=query.token or None,
            context_id=query.context_id,
            status_timestamp_after=None if since is None else _iso(since),
        )
        heads, token = await newest_heads(self.storage.for_scope(Scope(query.scope or "")), listed)
        rows = [(row_of(head), head) for head in heads]
        return _listed((both for both in rows if query.has(both[0])), token)

    async def _of_all(self, query: TaskQuery) -> _Rows:
        """Return tasks hour by hour, the newest first; the token is the place to go on from.

        One page reads at most `_STEPS` times, however many tasks there are.
        """
        now, floor = self.storage.clock.now_ms(), query.created_ms
        place = _place_in(query.token)
        hour, before = place or ((now + _AHEAD_MS) // HOUR_MS, "")
        newest = _oldest_looked_at(hour, before) if place else now
        oldest = max(0, now - int(self.storage.timing.ttl_s * 1000))
        first = now - _DAY_MS if query.since_ms is None else min(now - _DAY_MS, query.since_ms)
        is_older = place or query.is_whole
        until = (oldest if is_older else max(first, oldest)) if floor is None else max(0, floor)
        rows: list[tuple[TaskRow, Head]] = []
        count, requests = 0, 0

        def answer(token: str, looked_to: int) -> _Rows:
            down_to = max(looked_to, floor or 0)
            looked = Looked(count=count, newest=newest, oldest=down_to, requests=requests)
            return replace(_listed(rows, token), looked=looked)

        for _ in range(_STEPS):
            if hour < until // HOUR_MS:
                has_more = floor is None and hour >= oldest // HOUR_MS
                return answer(f"{hour}/" if has_more else "", (hour + 1) * HOUR_MS)
            found = await created_in(self.storage, hour * HOUR_MS, before=before, limit=query.limit)
            requests += layout.SHARDS + bool(found.heads)
            for head in found.heads:
                if floor is not None and head.created_at < floor:
                    continue
                count += 1
                row = row_of(head)
                if query.has(row):
                    rows.append((row, head))
                if len(rows) == query.limit:
                    return answer(f"{hour}/{Created.place(head)}", head.created_at)
            hour, before = (hour, found.before) if found.before else (hour - 1, "")
        return answer(f"{hour}/{before}", _oldest_looked_at(hour, before))

    async def counts(self, scope: str) -> Mapping[str, int]:
        """Return the number of a scope's tasks by state; this reads an index entry for each."""
        counted = await count_states(self.storage.for_scope(Scope(scope)))
        return {name: counted[state_name(state)] for name, state in STATES.items()}

    async def open_turns(self, limit: int) -> _OpenTurns:
        """Return what is due of the first `limit` tasks at which the sweeper looks next."""
        now = self.storage.clock.now_ms()
        found = await due_tasks(self.storage, now + _NEXT_MS, limit=limit + 1)
        turns, is_all = found[:limit], len(found) <= limit
        keys = [(one.scope.digest, one.task_id) for one in turns]
        heads: dict[TaskKey, Head | None] = dict.fromkeys(keys)
        parts = (keys[at : at + LOOK_AT_ONCE] for at in range(0, len(keys), LOOK_AT_ONCE))
        for seen in await asyncio.gather(*map(self.storage.look, parts)):
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


async def in_line_of(
    storage: DurableStorage, head: Head, missing: Collection[str] = ()
) -> InLine | None:
    """Return the place of a turn that is left; None if it is not. One request."""
    if not head.left or head.left == ASLEEP or not head.turn_is_open:
        return None
    waits = InLine(reason=head.left)
    if head.left == "share":
        before = await ahead(storage, head, _MOST_BEFORE + 1)
        return replace(waits, before=before if before <= _MOST_BEFORE else None)
    if "context_id" in missing:
        return waits
    places = (await line_of(storage, head.context_id)).places
    if not places:
        return waits
    own = next((at for at, place in enumerate(places, 1) if place == Place.of(head)), 0)
    return replace(waits, first=places[0].task_id, place=own, places=len(places))


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


def event_lines(log: Log) -> Iterable[_EventLine]:
    """Yield the events of a log that was read from its beginning, with their cursors."""
    fold = Fold(log.head.task_id, log.head.context_id)
    tag = incarnation_tag(log.head.incarnation)
    for record in log.records:
        fold.add(record)
        for index, event in enumerate(events_of(record, fold)):
            yield str(Cursor(record.version, index, tag)), as_response(event)


def as_response(event: Event) -> dict[str, Any]:
    """Return an event as subscribers get it."""
    match event:
        case Task():
            response = StreamResponse(task=event)
        case Message():
            response = StreamResponse(message=event)
        case TaskArtifactUpdateEvent():
            response = StreamResponse(artifact_update=event)
        case _:
            response = StreamResponse(status_update=event)
    shown: dict[str, Any] = MessageToDict(response)
    return shown


def _listed(found: Iterable[tuple[TaskRow, Head]], token: str = "") -> _Rows:
    """Return a page of rows, with the place behind it."""
    both = list(found)
    return _Rows(
        rows=tuple(row for row, _ in both), heads=tuple(head for _, head in both), next_token=token
    )


def row_of(head: Head) -> TaskRow:
    """Return a task as a list shows it."""
    noted = head.attention
    released = head.released if head.turn_is_open and head.was_released else None
    return TaskRow(
        scope=head.scope,
        task_id=head.task_id,
        incarnation=head.incarnation,
        context_id=head.context_id,
        state=plain_state(head.state),
        created_at=head.created_at,
        status_at=head.status_at,
        version=head.version,
        attempts=head.attempts,
        turn_is_open=head.turn_is_open,
        due_at=head.due_at,
        is_cancel_asked=head.cancel is not None,
        sends=head.resends,
        is_claimed=head.turn_is_open
        and head.token is not None
        and not (head.was_released or head.left),
        waits_since=_waits_since(head),
        waits_until=released.until if released else 0,
        waits_for=released.reason if released else "",
        left=head.left if head.turn_is_open else "",
        reason=noted.reason if noted else "",
        correlation_id=noted.correlation_id if noted else "",
    )


def _waits_since(head: Head) -> int | None:
    """Return the time since which the open turn has no worker; None: it has one, or is unknown."""
    if not head.turn_is_open:
        return None
    if head.released is not None and head.was_released:
        return head.released.until if head.released.reason == ASLEEP else head.released.at
    is_new = head.token is None and head.state == TaskState.TASK_STATE_SUBMITTED
    return head.status_at if is_new else None


def _iso(at_ms: int) -> str:
    """Return a time in UTC; one before 1970 as 1970: nothing is older."""
    return datetime.fromtimestamp(max(0, at_ms) / 1000, UTC).isoformat()

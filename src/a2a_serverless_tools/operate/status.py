"""Is it well: the numbers of a place's first page, by few requests however many tasks there are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from a2a_serverless.storage.activity import Hours, Process, activity, percentile
from a2a_serverless.storage.layout import HOUR_MS
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless_tools.operate.finding import Noted, NotedTasks, tasks_in_trouble, waiting_tasks
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.lists import MOST_NOTED
from a2a_serverless_tools.operate.queues import QUEUES, WORKING, Queue, oldest_of, queues_of
from a2a_serverless_tools.operate.wording import duration
from a2a_serverless_tools.operate.words import Asked

SEEN_MS: Final = 180_000
"""A process that has told of itself since then works: it tells each minute, and clocks differ."""
TAIL: Final = 10
"""What has happened last."""
TOP: Final = 5
"""The most callers and reasons that are named: those of the most failures of a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller with tasks that have failed."""

    scope: str
    name: str
    """Empty: it is not known."""
    tenant: str
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    """What has gone wrong since a time."""

    since: int
    failed: int
    rejected: int
    untold: int
    """Webhooks of which the last notification that was given up was given up since then."""
    reasons: Mapping[str, int]
    """The tasks that failed, by the most frequent reasons of a day; empty: the agent said so."""
    callers: tuple[Caller, ...]
    """The callers of the most failures of a day."""
    is_all: bool
    """False: there are more than these."""

    def of(self, scope: str) -> int:
        """Return how many tasks of a caller have failed, if it is named here."""
        return next((one.tasks for one in self.callers if one.scope == scope), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How the tasks of some hours ended, and how long that took, in milliseconds.

    A percentile is up to 26 % more than was measured; None: none ended.
    """

    ended: Mapping[str, int]
    first_attempt_p50: int | None
    first_attempt_p95: int | None
    end_p50: int | None
    end_p95: int | None

    @classmethod
    def of(cls, hours: Hours) -> Times:
        """Return what the counts of hours say."""
        return cls(
            ended=dict(hours.states),
            first_attempt_p50=percentile(hours.waited, 0.5),
            first_attempt_p95=percentile(hours.waited, 0.95),
            end_p50=percentile(hours.took, 0.5),
            end_p95=percentile(hours.took, 0.95),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """A task that failed or was rejected, or a webhook of which a notification was given up."""

    at: int
    what: str
    scope: str
    task_id: str
    config_id: str
    reason: str
    caller: str
    first_line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Open turns that wait, or were sent again."""

    kinds: Mapping[str, int]
    """By what they wait for."""
    retries: Mapping[str, int]
    """Those that wait for their next try, by the reason."""
    is_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The first page. Times are milliseconds since the epoch."""

    place: str
    at: int
    wrong: tuple[str, ...]
    """What needs a person, one sentence each; empty: it is well, as far as the numbers say."""
    queues: tuple[Queue, ...]
    processes: tuple[Process, ...]
    working: int
    """How many of them have told of themselves within three minutes."""
    waiting: Waiting
    hour: Troubles
    day: Troubles
    last_hour: Times
    """Of the hour that has begun and the one before it."""
    last_day: Times
    tail: tuple[Happened, ...] = field(default=())


async def status_of(inspector: Inspector) -> Status:
    """Return the numbers of a place's first page.

    On a stack that is at most twelve requests: six of the table, five of queues, and one of
    CloudWatch where messages wait.

    Raises:
        ConfigurationError, UnavailableError: the table did not answer.
    """
    storage = inspector.storage
    now = storage.clock.now_ms()
    trouble, waits, active, queues = await asyncio.gather(
        tasks_in_trouble(storage, since_ms=now - 24 * HOUR_MS, limit=MOST_NOTED),
        waiting_tasks(storage, limit=MOST_NOTED),
        activity(storage.table, now),
        _queues(inspector, now),
    )
    top = _Top.of(trouble.found)
    shown = [*trouble.found[:TAIL], *top.callers.values()]
    asked = await inspector.lists.asked.of(shown)
    hour, day = (_troubles(trouble, now - hours * HOUR_MS, top, asked) for hours in (1, 24))
    working = sum(now - one.at < SEEN_MS for one in active.processes)
    return Status(
        place=inspector.place,
        at=now,
        wrong=tuple(_wrong(queues, hour, waits, working)),
        queues=tuple(queues),
        processes=active.processes,
        working=working,
        waiting=_waiting(waits),
        hour=hour,
        day=day,
        last_hour=Times.of(active.last_hour),
        last_day=Times.of(active.last_day),
        tail=tuple(_happened(one, asked) for one in trouble.found[:TAIL]),
    )


async def _queues(inspector: Inspector, now_ms: int) -> list[Queue]:
    """Return how full the queues are that are named here."""
    found = await queues_of(QUEUES, inspector.settings, inspector.backends)
    known = [queue for queue in found if queue.waiting is not None or queue.fault]
    named = {
        one.name: str(getattr(inspector.settings, one.name))
        for one in known
        if one.waiting and one.oldest_at is None
    }
    oldest = await oldest_of(named.values(), now_ms)
    return [
        replace(one, oldest_at=oldest.get(named.get(one.name, ""), one.oldest_at)) for one in known
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Top:
    """The reasons and callers of the most failures."""

    reasons: Sequence[str]
    callers: Mapping[str, Noted]
    """By their scopes, with a task of each that has failed."""

    @classmethod
    def of(cls, found: Sequence[Noted]) -> _Top:
        failed = [one for one in found if one.why.kind == "failed"]
        of_callers = {one.scope: one for one in failed}
        first = Counter(one.scope for one in failed).most_common(TOP)
        return cls(
            reasons=[name for name, _ in Counter(o.why.reason for o in failed).most_common(TOP)],
            callers={scope: of_callers[scope] for scope, _ in first},
        )


def _troubles(
    trouble: NotedTasks,
    since: int,
    top: _Top,
    asked: Mapping[TaskKey, Asked],
) -> Troubles:
    found = [one for one in trouble.found if one.why.at >= since]
    kinds = Counter(one.why.kind for one in found)
    failed = [one for one in found if one.why.kind == "failed"]
    said = [(scope, known) for (scope, _), known in asked.items()]
    names = dict(sorted(said, key=lambda one: bool(one[1].caller)))  # a name wins over none
    reasons, callers = (Counter(one.why.reason for one in failed), Counter(o.scope for o in failed))
    is_cut = not trouble.is_all and len(found) == len(trouble.found)
    return Troubles(
        since=since,
        failed=kinds["failed"],
        rejected=kinds["rejected"],
        untold=kinds["untold"],
        reasons={reason: reasons[reason] for reason in top.reasons},
        callers=tuple(
            Caller(
                scope=scope,
                name=names[scope].caller,
                tenant=names[scope].tenant,
                tasks=callers[scope],
            )
            for scope in top.callers
        ),
        is_all=not is_cut,
    )


def _waiting(waits: NotedTasks) -> Waiting:
    retries = Counter(one.why.reason for one in waits.found if one.why.kind == "retry")
    return Waiting(
        kinds=dict(Counter(one.why.kind for one in waits.found).most_common()),
        retries=dict(retries.most_common(TOP)),
        is_all=waits.is_all,
    )


def _happened(one: Noted, asked: Mapping[TaskKey, Asked]) -> Happened:
    said = asked[one.scope, one.task_id]
    return Happened(
        at=one.why.at,
        what=one.why.kind,
        scope=one.scope,
        task_id=one.task_id,
        config_id=one.config_id,
        reason=one.why.reason,
        caller=said.caller,
        first_line=said.line,
    )


def _wrong(
    queues: Iterable[Queue], hour: Troubles, waits: NotedTasks, working: int
) -> Iterable[str]:
    """Yield a sentence for each number that needs a person."""
    turns = sum(
        one.waiting or 0 for one in queues if one.name in WORKING and one.name != "push_queue"
    )
    if turns and not working:
        yield (
            f"{_count(turns, 'message waits', 'messages wait')} for a worker, and none has told of"
            f" itself for {duration(SEEN_MS)}: look whether workers run."
        )
    again = sum(one.why.kind == "again" for one in waits.found)
    if again:
        yield (
            f"{_count(again, 'open turn was', 'open turns were')} sent again, as no worker had"
            " taken or kept it: look whether workers run or die."
        )
    if hour.failed:
        yield f"{_count(hour.failed, 'task has', 'tasks have')} failed within the hour."
    if hour.untold:
        yield f"{_count(hour.untold, 'webhook was', 'webhooks were')} given up within the hour."
    for queue in queues:
        if queue.fault:
            yield queue.fault
        elif queue.is_aside and (held := (queue.waiting or 0) + (queue.received or 0)):
            yield f"{_count(held, 'message is', 'messages are')} set aside: {queue.what}."


def _count(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"

"""Is it well: the numbers of a place's first page, by few requests however many tasks there are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from a2a_serverless.storage.activity import SPAN_MS, Ends, Process, activity, percentile, summed
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.keys import KeyStore
from a2a_serverless.storage.layout import HOUR_MS, push_sort, task_partition
from a2a_serverless.storage.table import Key
from a2a_serverless.tasks.head import Trouble, Wait
from a2a_serverless.tasks.identity import TaskKey, code_version
from a2a_serverless_tools.operate.finding import Look, Named, tasks_in_trouble, waiting_tasks
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.lists import MOST_NOTED
from a2a_serverless_tools.operate.queues import QUEUES, WORKING, Queue, queues_of
from a2a_serverless_tools.operate.tables import NUMBER, Cell, Table
from a2a_serverless_tools.operate.wording import (
    ATTENTION,
    NO_REASON,
    UNCOUNTED,
    age,
    duration,
)
from a2a_serverless_tools.operate.words import TaskRequest

SEEN_MS: Final = 180_000
"""A process that has told of itself since then works: it tells each minute, and clocks differ."""
WELL: Final = "Nothing needs a person, as far as these numbers say."
_TAIL: Final = 10
"""What has happened last."""
_TOP: Final = 5
"""The most callers and reasons that are named: those of the most failures of a day."""
_PROCESSES: Final = 50
"""The most workers, and hosts of webhooks, that are named."""
_READ: Final = 100
"""The most failing webhooks that are read."""
_SPANS: Final = ("hour", "day")
_COMPARED: Final = 2
"""The versions of the worker's code that are compared."""
_RECENT_MS: Final = 2 * HOUR_MS
"""The time whose ends are shown every five minutes."""
_BOTH: Final = {"in the last": "", "hour": NUMBER, "24 hours": NUMBER}
_ENDS: Final = ("completed", "failed", "canceled", "rejected")
_ENDS_NOTE: Final = (
    "The process that tells webhooks counts them, by five minutes: with those in which the time"
    " began."
)
_QUEUED: Final = "on the queue, for a worker"
_QUEUES_NOTE: Final = (
    "Messages, with the copies that the sweeper has sent: one turn may have several. One that was"
    " received is worked on, waits for its next try, or was with a worker that has died."
)
_PERCENTILES: Final = {
    "first_attempt_p50": "first attempt, half within",
    "first_attempt_p95": "first attempt, 95 % within",
    "end_p50": "end, half within",
    "end_p95": "end, 95 % within",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Troubles:
    """What has gone wrong since a time."""

    since: int
    failed: int
    rejected: int
    untold: int
    """Webhooks of which the last notification that was given up was given up since then."""
    reasons: Mapping[str, int]
    """The tasks that failed, by the most frequent reasons of a day; empty: the agent said so."""
    callers: Mapping[str, int]
    """The tasks that failed, by the scopes of the callers with the most failures of a day."""
    is_all: bool
    """False: there are more than these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """Open turns that wait, or were sent again."""

    kinds: Mapping[Trouble | Wait, int]
    """By what they wait for."""
    retries: Mapping[str, int]
    """Those that wait for their next try, by the reason."""
    is_all: bool
    queued: int
    """Messages on the queues of operations that no worker has received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failing:
    """The webhooks of a host that fail now; times are milliseconds since the epoch."""

    host: str
    webhooks: int
    since: int
    next_at: int | None
    """The next attempt at one of those that were read; None: none was."""
    answer: str
    """How the last attempt ended of which this is known."""


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
    waiting: _Waiting
    failing: tuple[_Failing, ...]
    """The hosts whose webhooks wait for their next attempt, those with the most first."""
    hour: _Troubles
    day: _Troubles
    names: Mapping[str, str]
    """The callers of the most failures by their scopes, as far as they are known."""
    last_hour: Mapping[str, Any]
    """How many tasks ended so, by their states, and how long that took, in milliseconds: a
    percentile is up to 26 % more than was measured; None: none ended."""
    last_day: Mapping[str, Any]
    recent: tuple[Mapping[str, Any], ...]
    """The same of each five minutes of the last two hours in which any ended, from `at` on, the
    newest first."""
    versions: Mapping[str, Mapping[str, Any]]
    """The same of the last day by the version of the worker's code: of the newest, which is behind,
    and of the one with the most ends before it; `at` is when the first of its tasks ended."""
    signing: Mapping[str, int]
    """The ids of the published keys of notifications, and since when they are, the oldest first."""
    tail: tuple[Mapping[str, Any], ...]
    """The newest tasks that failed or were rejected, and webhooks that were given up."""

    def tables(self) -> Iterator[Table]:
        """Yield the numbers as tables; a number leads to the tasks that it counts."""
        yield self._failures()
        yield self._waits()
        yield self._webhooks()
        yield depths(self.queues, self.at)
        yield self._ends()
        yield self._recent()
        yield self._versions()
        yield self._workers()
        if self.signing:
            yield self._signing()
        yield self._last()

    def _failures(self) -> Table:
        rows: list[list[Cell]] = []

        def add(name: Cell, kind: str, numbers: tuple[int, int], **chosen: str) -> None:
            cells = [name]
            for number, since, of in zip(numbers, _SPANS, (self.hour, self.day), strict=True):
                link = {"attention": kind, "since": since, **chosen}
                cells.append(Cell(_counted(number, is_all=of.is_all), chosen=link))
            rows.append(cells)

        hour, day = self.hour, self.day
        add(Cell(ATTENTION["failed"]), "failed", (hour.failed, day.failed))
        for reason, number in day.reasons.items():
            name = Cell(reason or "said by the agent", "sub")
            add(name, "failed", (hour.reasons[reason], number), reason=reason or NO_REASON)
        for scope, number in day.callers.items():
            name = Cell(f"of {self.names.get(scope) or scope}", "sub")
            add(name, "failed", (hour.callers[scope], number), scope=scope)
        add(Cell(ATTENTION["rejected"]), "rejected", (hour.rejected, day.rejected))
        add(Cell(ATTENTION["untold"]), "untold", (hour.untold, day.untold))
        return Table("Failures", _BOTH, rows, note=f"Webhooks given up: {UNCOUNTED}.")

    def _waits(self) -> Table:
        rows = [(Cell(_QUEUED), Cell(f"{self.waiting.queued:,}"))] if self.waiting.queued else []
        for kind, number in self.waiting.kinds.items():
            text = _counted(number, is_all=self.waiting.is_all)
            rows.append((Cell(ATTENTION[kind]), Cell(text, chosen={"attention": kind})))
            for reason, of in self.waiting.retries.items() if kind == "retry" else ():
                chosen = {"attention": kind, "reason": reason or NO_REASON}
                rows.append((Cell(reason, "sub"), Cell(f"{of:,}", chosen=chosen)))
        none = "None waits, and none was sent again."
        return Table("Open turns that wait", {"for": "", "turns": NUMBER}, rows, none)

    def _webhooks(self) -> Table:
        rows = []
        for one in self.failing[:_PROCESSES]:
            text = _counted(one.webhooks, is_all=self.waiting.is_all)
            number = Cell(text, chosen={"attention": "owed", "reason": one.host or NO_REASON})
            host = Cell(one.host or "unknown", "", ((one.answer, "why"),))
            next_at = Cell("unknown") if one.next_at is None else Cell(at=one.next_at)
            rows.append((host, number, Cell(at=one.since), next_at))
        columns = {"host": "main-cell", "webhooks": NUMBER, "since": "", "next attempt": ""}
        return Table("Webhooks that fail now", columns, rows, "None waits for its next attempt.")

    def _ends(self) -> Table:
        both, rows = (self.last_hour, self.last_day), []
        for state in _ENDS:
            numbers = (
                Cell(f"{of['ended'].get(state, 0):,}", chosen={"state": state, "since": since})
                for of, since in zip(both, _SPANS, strict=True)
            )
            rows.append((Cell(state, f"state {state}"), *numbers))
        for name, text in _PERCENTILES.items():
            rows.append((Cell(text), *(_took(of, name) for of in both)))
        return Table("Tasks that ended", _BOTH, rows, note=_ENDS_NOTE)

    def _recent(self) -> Table:
        rows = [
            (
                Cell(at=of["at"]),
                *(Cell(f"{of['ended'].get(state, 0):,}") for state in _ENDS[:2]),
                *(_took(of, name) for name in _PERCENTILES),
            )
            for of in self.recent
        ]
        columns = ("completed", "failed", "start p50", "start p95", "end p50", "end p95")
        looks = {"from": ""} | dict.fromkeys(columns, NUMBER)
        note = "Start: until the first attempt. Five minutes in which no task ended have no line."
        none = "No task ended within two hours."
        return Table("Every five minutes, for two hours", looks, rows, none, note if rows else "")

    def _versions(self) -> Table:
        title, both = "Before and after the newest version", [*self.versions.values()]
        counts = [(sum(of["ended"].values()), of["ended"].get("failed", 0)) for of in both]
        others = sum(self.last_day["ended"].values()) - sum(ended for ended, _ in counts)
        if len(both) < _COMPARED:
            said = [f"{name} has ended {counts[0][0]:,}" for name in self.versions]
            said += [f"{_count(others, 'task has', 'tasks have')} no version"] if others else []
            only = f": {', and '.join(said)}" if said else ""
            return Table(title, {}, (), f"No tasks of two versions ended within 24 hours{only}.")
        rows = [
            (Cell("first end"), *(Cell(at=of["at"]) for of in both)),
            (Cell("ended"), *(Cell(f"{ended:,}") for ended, _ in counts)),
            (
                Cell(_ENDS[1], f"state {_ENDS[1]}"),
                *(Cell(f"{failed:,} ({failed / max(1, ended):.1%})") for ended, failed in counts),
            ),
        ]
        for name, text in _PERCENTILES.items():
            rows.append((Cell(text), *(_took(of, name) for of in both)))
        note = "Of the last 24 hours, by the version of the function that has claimed a task last."
        if others:
            note += f" {others:,} more ended with another version, or without one."
        columns = {"version": ""} | dict.fromkeys(self.versions, NUMBER)
        return Table(title, columns, rows, note=note)

    def _workers(self) -> Table:
        rows = [
            (Cell(one.name, "worker"), Cell(one.release), Cell(f"{one.turns:,}"), Cell(at=one.at))
            for one in self.processes[:_PROCESSES]
        ]
        columns = {"process": "", "release": "", "turns": NUMBER, "seen": ""}
        note = (
            f"{self.working:,} of {len(self.processes):,} have reported within"
            f" {duration(SEEN_MS)}. A worker reports once a minute while it works."
        )
        none = "None has reported within the hour. On Lambda that is so while nothing is sent."
        return Table("Workers", columns, rows, none, note if rows else "")

    def _signing(self) -> Table:
        rows = [(Cell(kid), Cell(at=at)) for kid, at in self.signing.items()]
        note = (
            "The newest signs once it is published for eleven minutes. `keys rotate --signing`"
            " makes another one, and `keys revoke` ends one that has leaked."
        )
        columns = {"key": "main-cell", "published": ""}
        return Table("Signing keys of notifications", columns, rows, note=note)

    def _last(self) -> Table:
        rows = []
        for one in self.tail:
            hook = f"webhook {one['config_id']}" if one["config_id"] else ""
            asked = ": ".join(filter(None, (one["caller"], one["first_line"])))
            task = Cell(
                one["task_id"], "", ((asked, "asked"),), task=(one["scope"], one["task_id"])
            )
            what = Cell(ATTENTION[one["what"]], "", ((hook, "why"), (one["reason"], "why")))
            rows.append((task, what, Cell(at=one["at"])))
        columns = {"task": "main-cell", "what": "", "when": ""}
        return Table("The last that went wrong", columns, rows, "Nothing within 24 hours.")


async def status_of(inspector: Inspector) -> Status:
    """Return the numbers of a place's first page.

    On a stack that is at most seventeen requests: eight of the table, six of queues, and three
    about messages that wait.

    Raises:
        ConfigurationError, UnavailableError: the table did not answer.
    """
    storage = inspector.storage
    now = storage.clock.now_ms()
    trouble, waits, active, queues, published = await asyncio.gather(
        tasks_in_trouble(storage, since_ms=now - 24 * HOUR_MS, limit=MOST_NOTED),
        waiting_tasks(storage, limit=MOST_NOTED),
        activity(storage.table, now),
        queues_of(QUEUES, inspector.settings, inspector.backends, now_ms=now),
        KeyStore(storage.table, clock=storage.clock).keys(),
    )
    failed = [one for one in trouble.found if _kind(one) == "failed"]
    hour, day = (_troubles(trouble, now - hours * HOUR_MS, failed) for hours in (1, 24))
    one_of = {one.scope: one for one in failed if one.scope in day.callers}
    asked, failing = await asyncio.gather(
        inspector.lists.asked([*trouble.found[:_TAIL], *one_of.values()]),
        _failing(storage, [one for one in waits.found if _kind(one) == "owed"]),
    )
    waiting = _waiting(waits, queues)
    seen = [one for one in active.processes if now - one.at < SEEN_MS]
    working = len(seen)
    are_outside = any(code_version(one.name) is None for one in seen)
    return Status(
        place=inspector.place,
        at=now,
        wrong=(
            *([] if are_outside else _off(queues)),
            *_wrong(queues, hour, waits, waiting, working),
        ),
        queues=tuple(one for one in queues if one.waiting is not None or one.fault),
        processes=active.processes,
        working=working,
        waiting=waiting,
        failing=failing,
        hour=hour,
        day=day,
        names={scope: known.by for (scope, _), known in asked.items() if known.by},
        last_hour=_times(summed(_since(active.ends, now - HOUR_MS))),
        last_day=_times(summed(_since(active.ends, now - 24 * HOUR_MS))),
        recent=tuple(
            _times(summed(of)) for of in _grouped(_since(active.ends, now - _RECENT_MS), "at")
        )[::-1],
        versions=_versions(_since(active.ends, now - 24 * HOUR_MS)),
        signing={key.kid: key.published_at for key in published},
        tail=tuple(_happened(one, asked) for one in trouble.found[:_TAIL]),
    )


def _kind(one: Named) -> str:
    return one.why.kind if one.why else ""


def _reason(one: Named) -> str:
    return one.why.reason if one.why else ""


def _troubles(trouble: Look, since: int, failed: Sequence[Named]) -> _Troubles:
    """Count what has happened since a time; the reasons and callers are those of all failures."""
    found = [one for one in trouble.found if one.at >= since]
    own = [one for one in failed if one.at >= since]
    kinds = Counter(map(_kind, found))

    def top(of: Callable[[Named], str]) -> dict[str, int]:
        counts = Counter(map(of, own))
        return {name: counts[name] for name, _ in Counter(map(of, failed)).most_common(_TOP)}

    return _Troubles(
        since=since,
        failed=kinds["failed"],
        rejected=kinds["rejected"],
        untold=kinds["untold"],
        reasons=top(_reason),
        callers=top(lambda one: one.scope),
        is_all=not trouble.after or len(found) < len(trouble.found),
    )


def _waiting(waits: Look, queues: Iterable[Queue]) -> _Waiting:
    retries = Counter(_reason(one) for one in waits.found if _kind(one) == "retry")
    return _Waiting(
        kinds=dict(
            Counter(
                one.why.kind for one in waits.found if one.why and one.why.kind != "owed"
            ).most_common()
        ),
        retries=dict(retries.most_common(_TOP)),
        is_all=not waits.after,
        queued=sum(
            one.waiting or 0 for one in queues if one.name in WORKING and one.name != "push_queue"
        ),
    )


async def _failing(storage: DurableStorage, owed: Sequence[Named]) -> tuple[_Failing, ...]:
    """Return the hosts at which webhooks fail; answers and next attempts are those of some."""
    keys = [
        Key(task_partition(one.scope, one.task_id), push_sort(one.incarnation, one.config_id))
        for one in owed[:_READ]
    ]
    items = await storage.table.load(keys) if keys else {}
    known: dict[str, list[Mapping[str, Any]]] = {}
    for one, key in zip(owed, keys, strict=False):
        if (item := items.get(key)) is not None:
            known.setdefault(_reason(one), []).append(item)
    found = []
    for host, number in Counter(map(_reason, owed)).most_common():
        own = sorted(known.get(host, []), key=lambda item: item.get("answered_at") or 0)
        due = [int(item["due_at"]) for item in own if "due_at" in item]
        since = min(one.at for one in owed if _reason(one) == host)
        found.append(
            _Failing(
                host=host,
                webhooks=number,
                since=since,
                next_at=min(due, default=None),
                answer=str(own[-1].get("answer", "")) if own else "",
            )
        )
    return tuple(found)


def _since(ends: Iterable[Ends], at_ms: int) -> list[Ends]:
    return [one for one in ends if one.at > at_ms - SPAN_MS]


def _grouped(ends: Iterable[Ends], name: str) -> Iterable[list[Ends]]:
    """Return ends by the value of an attribute, in the order of their times."""
    groups: dict[Any, list[Ends]] = {}
    for one in ends:
        groups.setdefault(getattr(one, name), []).append(one)
    return groups.values()


def _versions(ends: Iterable[Ends]) -> dict[str, Mapping[str, Any]]:
    """Return how tasks of the newest version ended, and of that with the most ends before it.

    The first task of a version may end long after its last was claimed, as one that has slept: so
    the newest is the one with the highest number, and not the last that was seen first.
    """
    groups = list(_grouped([one for one in ends if one.code_version], "code_version"))
    if not groups:
        return {}
    newest = max(groups, key=lambda of: (len(of[0].code_version), of[0].code_version))

    def before(of: Sequence[Ends]) -> tuple[int, int]:
        first = newest[0].at
        return sum(one.ended for one in of if one.at < first), sum(one.ended for one in of)

    others = sorted((of for of in groups if of is not newest), key=before)
    return {of[0].code_version: _times(summed(of)) for of in (*others[-1:], newest)}


def _took(of: Mapping[str, Any], name: str) -> Cell:
    return Cell("none" if of[name] is None else f"≤ {duration(of[name])}")


def _times(ends: Ends) -> Mapping[str, Any]:
    both = {"first_attempt": ends.waited, "end": ends.took}
    shares = {"p50": 0.5, "p95": 0.95}
    return {"at": ends.at, "ended": dict(ends.states)} | {
        f"{what}_{name}": percentile(counts, share)
        for what, counts in both.items()
        for name, share in shares.items()
    }


def _happened(one: Named, asked: Mapping[TaskKey, TaskRequest]) -> Mapping[str, Any]:
    said = asked[one.scope, one.task_id]
    return {
        "at": one.at,
        "what": _kind(one),
        "scope": one.scope,
        "task_id": one.task_id,
        "config_id": one.config_id,
        "reason": _reason(one),
        "caller": said.caller,
        "first_line": said.line,
    }


def depths(queues: Iterable[Queue], now_ms: int) -> Table:
    """Return how full queues are as a table."""
    rows = []
    for one in queues:
        oldest = "unknown" if one.waiting else ""
        if one.oldest_at is not None:
            oldest = age(max(0, now_ms - one.oldest_at))
        numbers = ["unknown" if n is None else f"{n:,}" for n in (one.waiting, one.received)]
        name = Cell(one.what, "", ((one.fault, "why"),))
        rows.append((name, *map(Cell, (*numbers, oldest))))
    columns = {"queue": "", "wait": NUMBER, "received": NUMBER, "oldest": NUMBER}
    return Table("Queues", columns, rows, "No queue is named here.", _QUEUES_NOTE)


def _counted(number: int, *, is_all: bool) -> str:
    return f"{number:,}{'' if is_all else '+'}"


def _off(queues: Iterable[Queue]) -> Iterator[str]:
    """Yield a sentence if Lambda does not take what waits."""
    for queue in queues:
        if queue.is_off:
            yield (
                f"{_count(queue.waiting or 0, 'message waits', 'messages wait')}, and the worker's"
                " event source is switched off: switch it on (aws lambda"
                " update-event-source-mapping --enabled --uuid …), or start other workers."
            )


def _wrong(
    queues: Iterable[Queue], hour: _Troubles, waits: Look, waiting: _Waiting, working: int
) -> Iterator[str]:
    """Yield a sentence for each number that needs a person."""
    turns = waiting.queued
    if turns and not working:
        yield (
            f"{_count(turns, 'message waits', 'messages wait')} for a worker, and none has reported"
            f" for {duration(SEEN_MS)}: check whether workers run."
        )
    again = sum(_kind(one) == "again" for one in waits.found)
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
        elif queue.has_dead_letters and (held := (queue.waiting or 0) + (queue.received or 0)):
            yield f"{_count(held, 'message is', 'messages are')} set aside: {queue.what}."


def _count(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"

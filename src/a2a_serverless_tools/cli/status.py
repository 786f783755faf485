"""`a2a-serverless status`: is it well, in numbers, each with what lists the tasks behind it."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from a2a_serverless_tools.cli.arguments import Adders, Parser
from a2a_serverless_tools.cli.text import printable

if TYPE_CHECKING:
    from a2a_serverless_tools.operate.queues import Queue
    from a2a_serverless_tools.operate.status import Status, Times, Troubles

EXIT_WRONG: Final = 1
"""The exit code if something needs a person: the output's first part says what."""


def _add(status: Parser) -> None:
    status.does(
        _show,
        "Shows how full the queues are, which workers have told of themselves, which "
        "open turns wait, what failed within 1 hour and 24, and how long tasks took. Exits with "
        "0 if nothing needs a person, with 1 if something does, with 2 if it is unknown.",
    )
    status.add_argument("--json", action="store_true", help="one JSON object instead of text")
    status.add_place()


async def _show(options: Namespace) -> int:
    """Print the status; return 0 if it is well, 1 if something needs a person."""
    from dataclasses import asdict

    from a2a_serverless_tools.cli.places import inspector_of
    from a2a_serverless_tools.operate.status import status_of

    status = await status_of(await inspector_of(options))
    if options.json:
        print(json.dumps({"is_well": not status.wrong, **asdict(status)}))
    else:
        print("\n".join(printable(line) for line in _lines(status)))
    return EXIT_WRONG if status.wrong else 0


def _lines(status: Status) -> Iterator[str]:
    from a2a_serverless_tools.operate.wording import UNCOUNTED, age, iso

    yield f"{status.place}, {iso(status.at)}"
    yield from status.wrong or ("Nothing needs a person, as far as these numbers say.",)
    yield ""
    yield "messages of queues; a turn has several if the sweeper has sent it again"
    queues = list(_queues(status.queues, status.at))
    yield from _table(
        ("queue", "wait", "received", "oldest"), queues, none="no queue is named here"
    )
    yield ""
    yield f"workers that have told of themselves within 3 minutes: {status.working}"
    seen = [
        (one.name, one.release, str(one.turns), f"{age(max(0, status.at - one.at))} ago")
        for one in status.processes
    ]
    yield from _table(("process", "release", "turns", "seen"), seen, none="none within the hour")
    yield ""
    yield "open turns that wait, or were sent again: tasks --attention KIND lists them"
    more = "" if status.waiting.is_all else ", at least"
    kinds = [(kind, f"{turns:,}") for kind, turns in status.waiting.kinds.items()]
    yield from _table(("kind", f"turns{more}"), kinds, none="none")
    yield from (f"  retry: {reason}: {n:,}" for reason, n in status.waiting.retries.items())
    yield ""
    yield from _table(("in the last", "1 hour", "24 hours"), _troubles(status.hour, status.day))
    yield "tasks --attention failed --since 1h lists them, and --reason NAME some of them"
    yield f"webhooks given up: {UNCOUNTED}"
    yield ""
    yield from _table(("tasks that ended", "1 hour", "24 hours"), _times(status))
    yield ""
    yield "the last that went wrong" + ("" if status.tail else ": nothing within 24 hours")
    for one in status.tail:
        said = f"{one.caller}  {one.first_line!r}" if one.first_line else one.caller
        hook = f"webhook {one.config_id}" if one.config_id else ""
        parts = (iso(one.at) or "", one.what, one.task_id, one.scope, hook, one.reason, said)
        yield "  ".join(filter(None, parts))


def _queues(queues: Sequence[Queue], now: int) -> Iterator[Sequence[str]]:
    from a2a_serverless_tools.operate.wording import age

    for one in queues:
        unknown = "unknown" if one.waiting else ""
        oldest = unknown if one.oldest_at is None else age(max(0, now - one.oldest_at))
        yield one.what, _number(one.waiting), _number(one.received), oldest


def _troubles(hour: Troubles, day: Troubles) -> Iterator[Sequence[str]]:
    def both(name: str, of_hour: int, of_day: int) -> Sequence[str]:
        marks = ("" if hour.is_all else "+"), ("" if day.is_all else "+")
        return name, f"{of_hour:,}{marks[0]}", f"{of_day:,}{marks[1]}"

    yield both("failed", hour.failed, day.failed)
    for reason, number in day.reasons.items():
        yield both(f"  {reason or 'said by the agent'}", hour.reasons.get(reason, 0), number)
    for caller in day.callers:
        name = f"{caller.name} ({caller.tenant})" if caller.tenant else caller.name
        yield both(f"  by {name or caller.scope}", hour.of(caller.scope), caller.tasks)
    yield both("rejected", hour.rejected, day.rejected)
    yield both("webhooks given up", hour.untold, day.untold)


def _times(status: Status) -> Iterator[Sequence[str]]:
    hour, day = status.last_hour, status.last_day
    for state in sorted({*hour.ended, *day.ended}):
        yield state, f"{hour.ended.get(state, 0):,}", f"{day.ended.get(state, 0):,}"
    yield from zip(_NAMES, _percentiles(hour), _percentiles(day), strict=True)


_NAMES: Final = ("first attempt, p50", "first attempt, p95", "end, p50", "end, p95")


def _percentiles(times: Times) -> list[str]:
    from a2a_serverless_tools.operate.wording import duration

    found = (times.first_attempt_p50, times.first_attempt_p95, times.end_p50, times.end_p95)
    return ["-" if ms is None else f"≤ {duration(ms)}" for ms in found]


def _number(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, none: str = ""
) -> Iterator[str]:
    """Yield the lines of a table, in which numbers are aligned; without rows it is `none`."""
    lines = [header, *rows]
    if none and len(lines) == 1:
        yield f"  {none}"
        return
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    for line in lines:
        rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        yield "  ".join((line[0].ljust(widths[0]), *rest)).rstrip()


ADDERS: Final[Adders] = {"status": _add}

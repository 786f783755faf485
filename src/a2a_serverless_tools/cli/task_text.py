"""Draws the rows of a task on the terminal, and writes what `task --json` and exports have.

Texts of clients and agents are escaped before they reach the terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from a2a_serverless.observability.spans import kept_trace_id
from a2a_serverless.tasks.entries import StepId
from a2a_serverless.tasks.turns import Attempt, Turn, Wait
from a2a_serverless_tools.cli.text import printable
from a2a_serverless_tools.operate.cost import Cost
from a2a_serverless_tools.operate.timeline import Timeline
from a2a_serverless_tools.operate.view import Line, facts, tree, why
from a2a_serverless_tools.operate.wording import iso
from a2a_serverless_tools.operate.words import step_text

if TYPE_CHECKING:
    from rich.tree import Tree

    from a2a_serverless_tools.operate.lines import LogLine
    from a2a_serverless_tools.operate.lists import TaskRow

_WIDE: Final = 100_000
"""Columns where stdout is no terminal: programs get each row as one line."""
_TIMES: Final = re.compile(r"(.+_)?(at|since|until)")
"""The names of fields that are times."""
_OF_HEAD: Final = ("expires_at", "size", "cancel", "usage")
_SHOWN: Final = (
    *("looked_at", "changed_at", "question", "progress", "holder", "given_back", "in_line"),
    *("asleep_until", "awaited", "steps", "files", "webhooks", "commits", "unreadable"),
)
_LEFT_OUT: Final = frozenset({"token", "behind"})
"""Fields that say nothing to others."""


def draw_task(shown: Timeline) -> None:
    """Print a line for each fact of a task, then the tree of what happened."""
    from rich.console import Console

    for fact in facts(shown):
        print(f"{fact.name:<10}{printable(fact.text)}")
    print()
    width = None if sys.stdout.isatty() else _WIDE
    console = Console(width=width, highlight=False, soft_wrap=True)
    for line in tree(shown):
        console.print(_drawn(line))


def _drawn(line: Line, under: Tree | None = None) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    has_time = under is not None and not line.below and line.look != "wait"
    time = f"{iso(line.at) or 'at an unknown time      '}  " if has_time else ""
    label = Text(printable(f"{time}{line.text}"))
    own = Tree(label) if under is None else under.add(label)
    for each in line.below:
        _drawn(each, own)
    return own


def row_json(row: TaskRow) -> dict[str, Any]:
    """Return what `tasks --json` prints of a task, with its times in UTC."""
    return {name: _field(name, value) for name, value in row.fields.items()}


def log_json(line: LogLine) -> dict[str, Any]:
    """Return the fields of a line of the log, with its time in UTC."""
    own = {"at": iso(line.at), "level": line.level, "action": line.action, "message": line.message}
    return {**line.fields, **own}


def as_json(shown: Timeline, cost: Cost) -> dict[str, Any]:
    """Return what `a2a-serverless task --json` prints."""
    head, now = shown.head, shown.looked_at
    return {
        **row_json(shown.row),
        **{name: _field(name, getattr(head, name)) for name in _OF_HEAD},
        "wakes": head.turn.requeued,
        "uncounted": _field("uncounted", head.turn.uncounted),
        **{name: _field(name, getattr(shown, name)) for name in _SHOWN},
        "why": why(shown),
        "took_ms": shown.row.took_ms(now),
        "turn": shown.turn.number if shown.turn else None,
        "turns": [
            _plain(turn, "attempts", "wait", "records") | worked(turn, now, shown.lines)
            for turn in shown.turns
        ],
        "write_units": shown.units,
        "cost": asdict(cost) | {"least": cost.least, "most": cost.most},
    }


def worked(
    turn: Turn, now_ms: int, lines: Mapping[int, Sequence[LogLine]] | None = None
) -> dict[str, Any]:
    """Return the attempts at a turn and its waits, as `task --json` and exports have them."""
    attempts = [_attempt(one, now_ms) for one in turn.attempts]
    for one, shown in zip(turn.attempts, attempts, strict=True):
        if lines:
            shown["logs"] = [log_json(line) for line in lines.get(one.first, ())]
    return {"attempts": attempts, "wait": _wait(turn.wait, now_ms)}


def _attempt(one: Attempt, now_ms: int) -> dict[str, Any]:
    return _plain(one, "after", "recorded", "recorded_at", "trace", "number") | {
        "attempt": one.number or None,
        "wait": _wait(one.wait, now_ms),
        "took_ms": one.took_ms,
        "trace_id": kept_trace_id(one.trace),
        "recorded": [
            {"step": step_text(step), "version": version} for step, version in one.recorded.items()
        ],
    }


def _wait(wait: Wait | None, now_ms: int) -> dict[str, Any] | None:
    """Return a wait with its length, which grows until now while it is open."""
    if wait is None:
        return None
    plain = _plain(wait, "what")
    return {"for": wait.what, **plain, "is_exact": wait.is_exact, "took_ms": wait.took_ms(now_ms)}


def _plain(one: Any, *left_out: str) -> dict[str, Any]:
    """Return the fields of a dataclass by their names, and those of what it has."""
    return {
        each.name: _field(each.name, getattr(one, each.name))
        for each in fields(one)
        if each.name not in _LEFT_OUT.union(left_out)
    }


def _field(name: str, value: Any) -> Any:
    """Return the value of a field as JSON has it; times are in UTC."""
    if _TIMES.fullmatch(name):
        return iso(value or None)
    if isinstance(value, StepId):
        return value._asdict()
    if is_dataclass(value):
        return _plain(value)
    if isinstance(value, tuple | list):
        return [_field("", each) for each in value]
    return value

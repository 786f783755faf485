"""A timeline as lines for the terminal: what the task is, and a tree of what happened.

Texts of clients and agents are escaped before they reach the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from a2a_serverless_tools.cli.text import printable
from a2a_serverless_tools.inspect.cost import WRITE_UNIT_DOLLARS
from a2a_serverless_tools.inspect.timeline import Timeline
from a2a_serverless_tools.inspect.turns import Attempt, Turn
from a2a_serverless_tools.inspect.webhooks import Webhook
from a2a_serverless_tools.inspect.wording import (
    UNREADABLE,
    changed,
    delivery,
    due,
    duration,
    iso,
    outcome,
    sentence,
    starts,
    times,
    webhook,
    what_holds,
)

if TYPE_CHECKING:
    from a2a_serverless_tools.console.lines import LogLine

View: TypeAlias = Literal["all", "story", "cost"]

_LABEL: Final = 10
_TOLD: Final = ("reason", "wait_s")
"""Fields of a line of the log that are shown after its message."""


@dataclass(slots=True)
class _Node:
    """One line of a tree, and the nodes below it."""

    text: str
    below: list[_Node] = field(default_factory=list)


def lines_of(shown: Timeline, view: View = "all") -> Iterator[str]:
    """Return the lines of a task: its state, turns, attempts and versions, or another view."""
    views = {"all": _all, "story": _story, "cost": _cost}
    return map(printable, views[view](shown))


def _all(shown: Timeline) -> Iterator[str]:
    for name, value in _fields(shown):
        yield f"{name:<{_LABEL}}{value}"
    yield ""
    for node in _tree(shown):
        yield node.text
        yield from _below(node.below, "")


def _below(nodes: Sequence[_Node], indent: str) -> Iterator[str]:
    for number, node in enumerate(nodes, 1):
        is_last = number == len(nodes)
        yield f"{indent}{'└─' if is_last else '├─'} {node.text}"
        yield from _below(node.below, indent + ("   " if is_last else "│  "))


def _story(shown: Timeline) -> Iterator[str]:
    return (f"{_time(one.at)}  {sentence(one)}" for one in shown.story)


def _cost(shown: Timeline) -> Iterator[str]:
    yield f"{'version':>9}{'bytes':>12}{'write units':>14}"
    for commit in shown.commits:
        yield f"{commit.version:>9}{commit.size:>12}{commit.units:>14}"
    size = sum(commit.size for commit in shown.commits)
    yield f"{'all':>9}{size:>12}{shown.units:>14}"
    yield (
        f"${shown.units * WRITE_UNIT_DOLLARS:.6f} for writing its commits, on demand in us-east-1:"
        " only a part of its cost. The time of the functions or workers, the model, requests,"
        " reads, leases, cancels and webhooks are not counted here: see docs/cost.md."
    )


def several(found: Sequence[Timeline], *, as_json: bool) -> str:
    """Return a line for each of several tasks with one id, or all of them as one JSON object."""
    if as_json:
        scopes = [
            {"scope": one.scope, "state": one.state, "created_at": iso(one.created_at)}
            for one in found
        ]
        return json.dumps({"task_id": found[0].task_id, "scopes": scopes})
    return "\n".join(
        printable(f"scope {one.scope}: {_known(one.state)}, created {_known(iso(one.created_at))}")
        for one in found
    )


def log_text(line: LogLine) -> str:
    """Return a line of the log, with the fields that say why and for how long."""
    named = [f"{name} {line.fields[name]}" for name in _TOLD if line.fields.get(name) is not None]
    said = "; ".join([f"{line.level:<8} {line.action:<20} {line.message}", *named])
    return printable(f"{iso(line.at)}  {said}")


def log_json(line: LogLine) -> dict[str, Any]:
    """Return the fields of a line of the log, with its time in UTC."""
    own = {"at": iso(line.at), "level": line.level, "action": line.action, "message": line.message}
    return {**line.fields, **own}


def _fields(shown: Timeline) -> Iterator[tuple[str, object]]:
    yield "task", shown.task_id
    yield "scope", shown.scope
    yield "context", _known(shown.context_id)
    yield "state", _known(shown.state)
    if shown.progress is not None:
        yield "progress", shown.progress
    yield "created", _known(iso(shown.created_at))
    yield "changed", _known(iso(shown.changed_at))
    yield "expires", _known(iso(shown.expires_at))
    turn = _known(shown.turn)
    sent = f", sent again {times(shown.sends)}" if shown.sends else ""
    yield "turn", f"{turn} ({'open' if shown.turn_is_open else 'over'}), {starts(shown)}{sent}"
    yield "worker", what_holds(shown)
    yield "due", due(shown)
    size, version = _known(shown.size), _known(shown.version)
    yield "size", f"{size} bytes, version {version}, {shown.units} write units"
    if shown.cancel is None:
        yield "cancel", "not asked for"
    else:
        by = shown.cancel.by or "an unnamed user"
        at = iso(shown.cancel.at or None) or "an unknown time"
        yield "cancel", f"asked for by {by} at {at}"
    for one in shown.webhooks:
        yield "webhook", webhook(one)


def _tree(shown: Timeline) -> list[_Node]:
    """Return a node for each turn, with its attempts and versions below."""
    turns = [(turn, _Node(_turn_text(turn))) for turn in shown.turns]
    of_attempt = {
        version: (node, attempt, own)
        for turn, node in turns
        for attempt in turn.attempts
        for own in [_Node(_attempt_text(attempt))]
        for version in attempt.versions
    }
    roots = [node for _, node in turns]
    for commit in shown.commits:
        changes = "; ".join(map(changed, commit.changes)) or "claim"
        line = _Node(f"{_time(commit.at)}  {commit.version}  {changes}")
        if commit.version in of_attempt:
            parent, attempt, own = of_attempt[commit.version]
            if not own.below:
                waited = attempt.waited_ms
                parent.below += [_Node(f"waited {duration(waited)}")] if waited is not None else []
                parent.below.append(own)
            own.below.append(line)
            continue
        under = [node for turn, node in turns if turn.number <= commit.version]
        (under[-1].below if under else roots).append(line)
    return roots + [_deliveries(hook) for hook in shown.webhooks if hook.deliveries]


def _deliveries(hook: Webhook) -> _Node:
    """Return a node for a webhook, with its delivery attempts below."""
    below = [_Node(f"{_time(one.at)}  {delivery(one)}") for one in hook.deliveries]
    return _Node(f"deliveries to {hook.receiver} (id {hook.config_id})", below)


def _turn_text(turn: Turn) -> str:
    by = f", from {turn.by}" if turn.by else ""
    if not turn.number:
        return "a turn whose message is not there"
    if turn.ended is None:
        return f"turn {turn.number}{by}: open"
    if turn.opened_at is None or turn.ended_at is None:
        return f"turn {turn.number}{by}: over"
    took = duration(max(0, turn.ended_at - turn.opened_at))
    return f"turn {turn.number}{by}: over after {took}"


def _attempt_text(attempt: Attempt) -> str:
    worker = f" on {attempt.worker}" if attempt.worker else ""
    took = "" if attempt.took_ms is None else f", {duration(attempt.took_ms)}"
    return f"attempt {attempt.number}{worker}{took}: {outcome(attempt)}"


def _time(at_ms: int | None) -> str:
    return iso(at_ms) or "at an unknown time      "


def _known(value: str | int | None) -> str | int:
    return UNREADABLE if value is None else value

"""A timeline as lines for the terminal: what the task is, and a tree of what happened.

Texts of clients and agents are escaped before they reach the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from a2a_serverless_tools.cli.text import printable
from a2a_serverless_tools.inspect.cost import WRITE_UNIT_DOLLARS
from a2a_serverless_tools.inspect.timeline import Committed, Timeline
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

_LABEL = 10


@dataclass(slots=True)
class _Node:
    """One line of a tree, and the nodes below it."""

    text: str
    below: list[_Node] = field(default_factory=list)


def lines_of(shown: Timeline) -> Iterator[str]:
    """Yield the lines of a task: its state, and below that its turns, attempts and versions."""
    for name, value in _fields(shown):
        yield printable(f"{name:<{_LABEL}}{value}")
    yield ""
    for node in _tree(shown):
        yield printable(node.text)
        yield from _below(node.below, "")


def _below(nodes: Sequence[_Node], indent: str) -> Iterator[str]:
    for number, node in enumerate(nodes, 1):
        is_last = number == len(nodes)
        yield printable(f"{indent}{'└─' if is_last else '├─'} {node.text}")
        yield from _below(node.below, indent + ("   " if is_last else "│  "))


def story_lines(shown: Timeline) -> Iterator[str]:
    """Yield one line for each thing that happened: its time and a sentence."""
    for one in shown.story:
        yield printable(f"{_time(one.at)}  {sentence(one)}")


def cost_lines(shown: Timeline) -> Iterator[str]:
    """Yield what each version has cost in DynamoDB, and the sum."""
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


def row_text(scope: str, task_id: str, state: str, created_at: int | None) -> str:
    """Return one line about a task in a list."""
    return printable(f"{iso(created_at) or UNREADABLE:<24}  {state:<15}  {task_id}  {scope}")


def summary(shown: Timeline) -> str:
    """Return one line about a task whose id other tasks have as well."""
    state, created = _or_unreadable(shown.state), _or_unreadable(iso(shown.created_at))
    return printable(f"scope {shown.scope}: {state}, created {created}")


def version_line(commit: Committed) -> str:
    """Return one line about a commit."""
    text = "; ".join(map(changed, commit.changes)) or "claim"
    return printable(f"{_time(commit.at)}  {commit.version}  {text}")


def _fields(shown: Timeline) -> Iterator[tuple[str, object]]:
    yield "task", shown.task_id
    yield "scope", shown.scope
    yield "context", _or_unreadable(shown.context_id)
    yield "state", _or_unreadable(shown.state)
    if shown.progress is not None:
        yield "progress", shown.progress
    yield "created", _or_unreadable(iso(shown.created_at))
    yield "changed", _or_unreadable(iso(shown.changed_at))
    yield "expires", _or_unreadable(iso(shown.expires_at))
    turn = _or_unreadable(shown.turn)
    sent = f", sent again {times(shown.sends)}" if shown.sends else ""
    yield "turn", f"{turn} ({'open' if shown.turn_is_open else 'over'}), {starts(shown)}{sent}"
    yield "worker", what_holds(shown)
    yield "due", due(shown)
    size, version = _or_unreadable(shown.size), _or_unreadable(shown.version)
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
    of_attempt: dict[int, tuple[_Node, _Node]] = {}
    waits: dict[int, list[_Node]] = {}
    for turn, node in turns:
        for attempt in turn.attempts:
            if attempt.waited_ms is not None:
                waits[attempt.first] = [_Node(f"waited {duration(attempt.waited_ms)}")]
            own = _Node(_attempt_text(attempt))
            of_attempt |= dict.fromkeys(attempt.versions, (node, own))
    roots = [node for _, node in turns]
    for commit in shown.commits:
        line = _Node(version_line(commit))
        if commit.version in of_attempt:
            parent, own = of_attempt[commit.version]
            if not own.below:
                parent.below += [*waits.get(commit.version, ()), own]
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
    start = turn.opened_at
    took = "" if start is None or turn.ended_at is None else f" after {_took(start, turn.ended_at)}"
    return f"turn {turn.number}{by}: over{took}"


def _attempt_text(attempt: Attempt) -> str:
    worker = f" on {attempt.worker}" if attempt.worker else ""
    took = "" if attempt.took_ms is None else f", {duration(attempt.took_ms)}"
    return f"attempt {attempt.number}{worker}{took}: {outcome(attempt)}"


def _took(start: int, end: int) -> str:
    return duration(max(0, end - start))


def _time(at_ms: int | None) -> str:
    return iso(at_ms) or "at an unknown time      "


def _or_unreadable(value: str | int | None) -> str | int:
    return UNREADABLE if value is None else value

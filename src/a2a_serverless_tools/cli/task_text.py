"""A timeline as `task` prints it: as lines, with a tree of what happened, or as JSON.

In lines, texts of clients and agents are escaped before they reach the terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from a2a_serverless.observability.spans import kept_trace_id
from a2a_serverless.tasks.head import AttemptEnd
from a2a_serverless.tasks.turns import Attempt, Turn, Wait
from a2a_serverless_tools.cli.plain_lines import WHY, named
from a2a_serverless_tools.cli.text import printable
from a2a_serverless_tools.operate.cost import Cost, dollars
from a2a_serverless_tools.operate.timeline import Change, Committed, Timeline
from a2a_serverless_tools.operate.webhooks import Webhook
from a2a_serverless_tools.operate.wording import (
    UNREADABLE,
    caller,
    changed,
    delivery,
    due,
    duration,
    iso,
    outcome,
    sentence,
    starts,
    times,
    took_text,
    wait_text,
    webhook,
    what_holds,
    why,
)
from a2a_serverless_tools.operate.words import step_text, usage_text

if TYPE_CHECKING:
    from a2a_serverless_tools.operate.lines import LogLine

View: TypeAlias = Literal["all", "story"]

_LABEL: Final = 10
_TIMES: Final = re.compile(r"(.+_)?(at|since|until)")
"""The names of fields that are times."""


@dataclass(slots=True)
class _Node:
    text: str
    below: list[_Node] = field(default_factory=list)


def lines_of(shown: Timeline, view: View = "all") -> Iterator[str]:
    """Return the lines of a task: its state, turns, attempts and versions, or what happened."""
    views = {"all": _all, "story": _story}
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


def cost_lines(shown: Timeline, cost: Cost) -> Iterator[str]:
    """Return what each version has cost in units, each part of the cost, and the sum in words."""
    return map(printable, _cost(shown, cost))


def _cost(shown: Timeline, cost: Cost) -> Iterator[str]:
    yield f"{'version':>9}{'bytes':>12}{'write units':>14}"
    for commit in shown.commits:
        yield f"{commit.version:>9}{commit.size:>12}{commit.units:>14}"
    size = sum(commit.size for commit in shown.commits)
    yield f"{'all':>9}{size:>12}{shown.units:>14}"
    yield ""
    for line in cost.lines:
        price = dollars(line.least, line.most) or "no price in dollars"
        yield f"{line.what}: {line.amount}, {price}; counted from {line.counted_from}"
    yield ""
    yield from cost.sentences()


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
    why = named(line.fields, WHY)
    said = "; ".join([f"{line.level:<8} {line.action:<20} {line.message}", *why])
    return printable(f"{iso(line.at)}  {said}")


def log_json(line: LogLine) -> dict[str, Any]:
    """Return the fields of a line of the log, with its time in UTC."""
    own = {"at": iso(line.at), "level": line.level, "action": line.action, "message": line.message}
    return {**line.fields, **own}


def _fields(shown: Timeline) -> Iterator[tuple[str, object]]:
    yield "task", shown.task_id
    took = "" if shown.took_ms is None else duration(shown.took_ms)
    after = f" after {took}" if shown.has_ended else f", for {took}"
    yield "state", f"{_known(shown.state)}{after if took else ''}"
    if reason := why(shown):
        yield "why", reason
    yield "caller", caller(shown)
    if shown.asked.line:
        yield "asked", repr(shown.asked.line)
    yield "scope", shown.scope
    yield "context", _known(shown.context_id)
    if shown.progress is not None:
        yield "progress", shown.progress
    yield "created", _known(iso(shown.created_at))
    yield "changed", _known(iso(shown.changed_at))
    yield "expires", _known(iso(shown.expires_at))
    turn = _known(shown.turn)
    sent = f", sent again {times(shown.sends)}" if shown.sends else ""
    yield "turn", f"{turn} ({'open' if shown.turn_is_open else 'over'}), {starts(shown)}{sent}"
    if shown.turn_is_open:
        yield "worker", what_holds(shown)
    if shown.due_at is not None:
        yield "due", due(shown)
    size, version = _known(shown.size), _known(shown.version)
    yield "size", f"{size} bytes, version {version}, {shown.units} write units"
    for used in shown.usage:
        yield "model", f"{used.model}: {usage_text((used,))}"
    if shown.cancel is not None:
        by = shown.cancel.by or "an unnamed user"
        at = iso(shown.cancel.at or None) or "an unknown time"
        yield "cancel", f"asked for by {by} at {at}"
    for one in shown.webhooks:
        yield "webhook", webhook(one)


def _tree(shown: Timeline) -> list[_Node]:
    turns = [(turn, _Node(_turn_text(turn))) for turn in shown.turns]
    of_attempt = {
        version: (node, attempt, own)
        for turn, node in turns
        for attempt in turn.attempts
        for own in [_Node(_attempt_text(attempt, shown.looked_at))]
        for version in attempt.versions
    }
    roots = [node for _, node in turns]
    for commit in shown.commits:
        same = ((text, len(list(all_))) for text, all_ in groupby(map(changed, commit.changes)))
        changes = "; ".join(f"{text}, {n} times" if n > 1 else text for text, n in same) or "claim"
        line = _Node(f"{_time(commit.at)}  {commit.version}  {changes}")
        if commit.version in of_attempt:
            parent, attempt, own = of_attempt[commit.version]
            if not own.below:
                parent.below += [*_wait(attempt.wait, shown), own]
            own.below.append(line)
            continue
        under = [node for turn, node in turns if turn.version <= commit.version]
        (under[-1].below if under else roots).append(line)
    for turn, node in turns:
        node.below += _wait(turn.wait, shown) if turn.wait is not None and turn.wait.is_open else []
        for attempt in turn.attempts:
            _, _, own = of_attempt[attempt.first]
            own.below += [_Node(log_text(line)) for line in shown.lines.get(attempt.first, ())]
    return roots + [_deliveries(hook) for hook in shown.webhooks if hook.deliveries]


def _wait(wait: Wait, shown: Timeline) -> list[_Node]:
    """Return a wait as a line; none if it took no time that is known."""
    return [_Node(wait_text(wait, shown.looked_at))] if wait.took_ms(shown.looked_at) else []


def _deliveries(hook: Webhook) -> _Node:
    below = [_Node(f"{_time(one.at)}  {delivery(one)}") for one in hook.deliveries]
    return _Node(f"deliveries to {hook.receiver} (id {hook.config_id})", below)


def _turn_text(turn: Turn) -> str:
    by = f", from {turn.by}" if turn.by else ""
    if not turn.version:
        return "a turn whose message is not there"
    if turn.ended is None:
        return f"turn {turn.number}{by}: open"
    if turn.opened_at is None or turn.ended_at is None:
        return f"turn {turn.number}{by}: over"
    took = duration(max(0, turn.ended_at - turn.opened_at))
    return f"turn {turn.number}{by}: over after {took}"


def _attempt_text(attempt: Attempt, now_ms: int) -> str:
    worker = f" on {attempt.worker}" if attempt.worker else ""
    took = took_text(attempt, now_ms)
    kept = f", went on after record {attempt.kept}" if attempt.kept else ""
    used = f", {usage_text(attempt.usage)}" if attempt.usage else ""
    trace_id = kept_trace_id(attempt.trace)
    trace = f", trace {trace_id}" if trace_id else ""
    took = f", {took}" if took else ""
    return f"attempt {attempt.number or '?'}{worker}{kept}{took}{used}{trace}: {outcome(attempt)}"


def _time(at_ms: int | None) -> str:
    return iso(at_ms) or "at an unknown time      "


def _known(value: str | int | None) -> str | int:
    return UNREADABLE if value is None else value


def as_json(shown: Timeline, cost: Cost) -> dict[str, Any]:
    """Return what `a2a-serverless task --json` prints."""
    return _plain(shown, "asked", "failure", "lines", "turn_version", units="write_units") | {
        "cost": asdict(cost) | {"least": cost.least, "most": cost.most},
        "why": why(shown),
        "took_ms": shown.took_ms,
        "caller": shown.asked.caller,
        "tenant": shown.asked.tenant,
        "first_line": shown.asked.line,
        "correlation_id": shown.failure.correlation_id,
        "progress": shown.progress and _plain(shown.progress),
        "spared": _plain(shown.spared, "waited"),
        "holder": shown.holder and _plain(shown.holder),
        "given_back": _end(shown.given_back),
        "in_line": shown.in_line and _plain(shown.in_line),
        "cancel": shown.cancel and _plain(shown.cancel),
        "usage": [asdict(each) for each in shown.usage],
        "story": [
            {
                "at": iso(one.at),
                "version": one.version or None,
                "what": one.what,
                "sentence": sentence(one),
            }
            for one in shown.story
        ],
        "turns": [
            _plain(turn, "records", number="turn") | worked(turn, shown.looked_at, shown.lines)
            for turn in shown.turns
        ],
        "webhooks": [_webhook(one) for one in shown.webhooks],
        "commits": [_commit(commit) for commit in shown.commits],
    }


def _plain(one: Any, *left_out: str, **named: str) -> dict[str, Any]:
    """Return the fields of a dataclass by their names, or by those that `named` gives them."""
    values = {field.name: getattr(one, field.name) for field in fields(one)}
    return {
        named.get(name, name): iso(value) if _TIMES.fullmatch(name) else value
        for name, value in values.items()
        if name not in left_out
    }


def worked(
    turn: Turn, now_ms: int, lines: Mapping[int, Sequence[LogLine]] | None = None
) -> dict[str, Any]:
    """Return the attempts at a turn and its waits, as `task --json` and exports have them."""
    attempts = [_attempt(one, now_ms) for one in turn.attempts]
    for one, shown in zip(turn.attempts, attempts, strict=True):
        if lines:
            shown["logs"] = [log_json(line) for line in lines.get(one.first, ())]
    return {"attempts": attempts, "wait": _wait_json(turn.wait, now_ms)}


def _attempt(one: Attempt, now_ms: int) -> dict[str, Any]:
    return _plain(one, "after", "recorded_at", "trace", "number") | {
        "attempt": one.number or None,
        "wait": _wait_json(one.wait, now_ms),
        "took_ms": one.took_ms,
        "trace_id": kept_trace_id(one.trace),
        "recorded": [
            {"step": step_text(step), "version": version} for step, version in one.recorded.items()
        ],
        "usage": [asdict(each) for each in one.usage],
    }


def _wait_json(wait: Wait | None, now_ms: int) -> dict[str, Any] | None:
    """Return a wait with its length, which grows until now while it is open."""
    if wait is None:
        return None
    exact = {"is_exact": wait.is_exact, "took_ms": wait.took_ms(now_ms)}
    return _plain(wait, what="for") | exact


def _webhook(one: Webhook) -> dict[str, Any]:
    plain = _plain(
        one, knows_told="told_is_known", is_given_up="receiver_given_up", is_gone="deleted"
    )
    return plain | {
        "told": one.told if one.knows_told else None,
        "given_up": one.given_up and _plain(one.given_up, "behind"),
        "answer": one.answer or None,
        "deliveries": [
            _plain(each, "config_id")
            | {"version": each.version or None, "attempt": each.attempt or None}
            for each in one.deliveries
        ],
    }


def _commit(commit: Committed) -> dict[str, Any]:
    changes = [_change(change) for change in commit.changes]
    return _plain(commit, units="write_units") | {"ended": _end(commit.ended), "changes": changes}


def _end(end: AttemptEnd | None) -> dict[str, str | None] | None:
    if end is None:
        return None
    return {
        "at": iso(end.at),
        "reason": end.reason,
        "correlation_id": end.correlation_id,
        "place": end.place,
        "message": end.message,
        "until": iso(end.until or None),
    }


def _change(change: Change) -> dict[str, Any]:
    """Return a change; fields that do not apply to it are left out."""
    values = _plain(change) | {"progress": change.progress and _plain(change.progress)}
    if change.name != "restart":
        del values["discards"]
    return {name: value for name, value in values.items() if value not in (None, "", False, 0)}

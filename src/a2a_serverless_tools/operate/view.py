"""One task as rows: facts, a tree of what happened, steps and cost, with all words. Pure.

The terminal and the pages draw these rows, and say nothing of a task that is not in them. The rows
have texts of clients and agents as they are: what draws them escapes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, Literal

from a2a_serverless.observability.spans import kept_trace_id
from a2a_serverless.tasks.head import (
    ASLEEP,
    HANDOVER,
    INTERRUPTED,
    LOST,
    NOT_STARTED,
    TERMINAL,
    AttemptEnd,
    plain_state,
)
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.tasks.push import NO_CONSENT, RECEIVER_FAILS, GivenUp
from a2a_serverless.tasks.turns import Attempt, Outcome, Turn, Wait, WaitsFor
from a2a_serverless.tasks.waits import CALLBACK
from a2a_serverless_tools.operate.cost import Cost, CostSum, dollars, merged
from a2a_serverless_tools.operate.lines import LogLine
from a2a_serverless_tools.operate.lists import LATE_MS
from a2a_serverless_tools.operate.log_fields import WHY, named
from a2a_serverless_tools.operate.steps import Awaited
from a2a_serverless_tools.operate.tables import NUMBER, Cell, Table
from a2a_serverless_tools.operate.timeline import Change, Committed, Timeline
from a2a_serverless_tools.operate.webhooks import DeliveryLine, Webhook
from a2a_serverless_tools.operate.wording import (
    age,
    duration,
    in_line,
    iso,
    left_at_record,
    number,
    times,
)
from a2a_serverless_tools.operate.words import MOST_OF_A_LINE, step_text, usage_text

_LONG_WAIT_MS: Final = 1_000
"""The wait for a worker from which on it is told."""
_MOST_FILES: Final = 20
"""Files that are named, the first ones."""
_ENDS: Final = frozenset(map(plain_state, TERMINAL | INTERRUPTED))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fact:
    """Something of a task in a line: a name, and what is so."""

    name: str
    text: str
    is_bad: bool = False
    """Something has gone wrong, and was not made good."""
    lists: Mapping[str, str] = field(default_factory=dict)
    """The fields of the list of tasks to which it leads; empty: it leads to none."""
    ends: Mapping[str, str] = field(default_factory=dict)
    """Name and key of the callback whose wait it is about: a signal ends that. Empty: of none."""


@dataclass(slots=True, kw_only=True)
class Line:
    """A line of the tree of what happened, with the lines below it."""

    text: str
    at: int | None = None
    """Milliseconds since the epoch; None: it has no time of its own."""
    look: str = ""
    """What it is, for colours: an outcome of an attempt, a state, `wait`, `told`, `log`, ..."""
    detail: str = ""
    """Text of several lines, such as a traceback."""
    below: list[Line] = field(default_factory=list)


def facts(shown: Timeline) -> Iterator[_Fact]:
    """Yield what is so of a task at the time of the look, the most important first."""
    head, now = shown.head, shown.looked_at
    yield _Fact(name="task", text=head.task_id)
    took = f"{'after' if head.is_terminal else 'for'} {duration(shown.row.took_ms(now))}"
    yield _Fact(name="state", text=f"{shown.state.replace('_', ' ')}, {took}")
    if reason := why(shown):
        yield _Fact(name="why", text=reason, is_bad=shown.state in ("failed", "rejected"))
    if shown.question:
        yield _Fact(name="asks", text=shown.question)
    yield from _waits(shown)
    yield _Fact(name="caller", text=_caller(shown))
    if shown.asked.line:
        yield _Fact(name="asked", text=shown.asked.line)
    if shown.progress is not None:
        yield _Fact(name="progress", text=str(shown.progress))
    yield _Fact(name="turn", text=_starts(shown))
    if head.turn.is_open:
        yield _Fact(name="worker", text=_what_holds(shown))
    if head.due_at is not None:
        yield _Fact(name="due", text=_due(shown, head.due_at))
    if head.cancel is not None:
        at, by = _ago(head.cancel.at or None, now), head.cancel.by or "an unnamed user"
        yield _Fact(name="cancel", text=f"asked for by {by} at {at}")
    for hook in shown.webhooks:
        yield _Fact(name="webhook", text=_webhook(hook, now), is_bad=hook.is_bad)
    for used in head.usage:
        yield _Fact(name="model", text=f"{used.model}: {usage_text((used,))}")
    for file in shown.files[:_MOST_FILES]:
        text = f"{file.name}, {file.size:,} bytes, of artifact {file.artifact_id[:MOST_OF_A_LINE]}"
        yield _Fact(name="file", text=text)
    yield _Fact(name="created", text=_ago(head.created_at, now))
    yield _Fact(name="changed", text=_ago(shown.changed_at, now))
    yield _Fact(name="expires", text=_ago(head.expires_at, now))
    size = f"{head.size:,} bytes, version {head.version}, {shown.units:,} write units"
    yield _Fact(name="size", text=size)
    context = {"scope": head.scope, "context": head.context_id}
    yield _Fact(name="context", text=head.context_id, lists=context)
    yield _Fact(name="scope", text=head.scope, lists={"scope": head.scope})


def tree(shown: Timeline) -> list[Line]:
    """Return what happened: turns with attempts and waits, and with each version and log line.

    Deliveries to webhooks come behind them.
    """
    gone = {v for commit in shown.commits for change in commit.changes for v in change.discards}
    roots = [Line(text=_turn(turn), at=turn.opened_at) for turn in shown.turns]
    turns = list(zip(shown.turns, roots, strict=True))
    of_attempt = {
        version: (root, attempt, own)
        for turn, root in turns
        for attempt in turn.attempts
        for own in [_attempt(attempt, shown.looked_at, gone)]
        for version in attempt.versions
    }
    for commit in shown.commits:
        if commit.version in of_attempt:
            root, attempt, own = of_attempt[commit.version]
            if not own.below:
                root.below += [*_waited(attempt.wait, shown), own]
            own.below.append(_commit(commit))
            continue
        under = [root for turn, root in turns if turn.version <= commit.version]
        (under[-1].below if under else roots).append(_commit(commit))
    for turn, root in turns:
        root.below += _waited(turn.wait, shown) if turn.wait and turn.wait.is_open else []
        for attempt in turn.attempts:
            own = of_attempt[attempt.first][2]
            own.below += map(_log_line, shown.lines.get(attempt.first, ()))
    if others := [_log_line(line) for line in shown.lines.get(0, ())]:
        roots.append(Line(text="lines of the log that are of no attempt", below=others))
    return roots + [_deliveries(hook) for hook in shown.webhooks if hook.deliveries]


def steps_table(shown: Timeline) -> Table:
    """Return a row for each step of a task."""
    columns = {"step": "", "key": "", "result": "", "took at most": NUMBER, "attempt": ""}
    rows = [
        (
            step.id.name + (f" {step.id.number}" if step.id.number > 1 else ""),
            step.id.key,
            step.result + (" (discarded)" if step.is_discarded else ""),
            "" if step.took_ms is None else duration(step.took_ms),
            (f"turn {step.turn}, " if len(shown.turns) > 1 else "") + f"{step.attempt or '?'}",
            f"{step.tokens:,}" if step.tokens else "",
        )
        for step in shown.steps
    ]
    note = (
        "A step's time counts from the record before it, else from the turn's message, or from the"
        " claim of an attempt that came after another."
        " Steps that one commit records share time and tokens."
    )
    cells = [tuple(map(Cell, row)) for row in rows]
    columns |= {"tokens": NUMBER}
    return Table("", columns, cells, none="It has no steps.", note=note if rows else "")


def sums_table(sums: Iterable[CostSum], by: Literal["day", "caller"]) -> Table:
    """Return a row for each day, or for each caller."""
    rows = [
        (
            Cell(getattr(one, by)),
            Cell(f"{one.tasks:,}"),
            Cell(dollars(one.least, one.most)),
            Cell(f"{one.tokens:,}"),
            Cell(f"{one.models:,.4f}"),
            Cell(f"{one.unpriced:,}"),
        )
        for one in merged(sums, by)
    ]
    numbers = ("tasks", "dollars", "tokens", "models", "in part without a price")
    columns = {by: "main-cell"} | dict.fromkeys(numbers, NUMBER)
    return Table(f"By {by}", columns, rows)


def cost_table(cost: Cost) -> Table:
    """Return a row for each part of a cost."""
    none = "no price in dollars"
    rows = [
        (one.what, one.amount, dollars(one.least, one.most) or none, one.counted_from)
        for one in cost.lines
    ]
    columns = {"what": "", "how much": "", "dollars": NUMBER, "counted from": ""}
    return Table("", columns, [tuple(map(Cell, row)) for row in rows])


def versions_table(commits: Sequence[Committed]) -> Table:
    """Return a row for each version: what it did, and what that has cost."""
    columns = {"version": NUMBER, "what it did": "", "bytes": NUMBER, "write units": NUMBER}
    rows = [
        (
            str(commit.version),
            ", ".join(dict.fromkeys(change.name for change in commit.changes)) or "claim",
            f"{commit.size:,}",
            f"{commit.units:,}",
        )
        for commit in commits
    ]
    return Table("", columns, [tuple(map(Cell, row)) for row in rows])


def _log_line(line: LogLine) -> Line:
    """Return a line of the log, with the fields that say why and for how long."""
    text = "; ".join(
        [f"{line.level:<8} {line.action:<20} {line.message}", *named(line.fields, WHY)]
    )
    exception = line.fields.get("exception")
    return Line(text=text, at=line.at, look="log", detail=str(exception or ""))


def _turn(turn: Turn) -> str:
    if not turn.version:
        return "a turn whose message is not there"
    by = f", from {turn.by}" if turn.by else ""
    if turn.ended is None:
        return f"turn {turn.number}{by}: open"
    if turn.opened_at is None or turn.ended_at is None:
        return f"turn {turn.number}{by}: over"
    took = duration(max(0, turn.ended_at - turn.opened_at))
    return f"turn {turn.number}{by}: over after {took}"


def _attempt(one: Attempt, now: int, gone: set[int]) -> Line:
    worker = f" on {one.worker}" if one.worker else ""
    after = "" if one.after is None else f" ({step_text(one.after)})"
    kept = f", went on after record {one.kept}{after}" if one.kept else ""
    took = _took_text(one, now)
    used = f", {usage_text(one.usage)}" if one.usage else ""
    trace_id = kept_trace_id(one.trace)
    trace = f", trace {trace_id}" if trace_id else ""
    text = f"attempt {one.number or '?'}{worker}{kept}{took and f', {took}'}{used}{trace}"
    lost = [version for version in one.versions if version in gone]
    versions = "version" if len(lost) == 1 else "versions"
    then = f"; {versions} {_ranges(lost)} discarded" if lost else ""
    text = f"{text}: {_outcome(one)}{then}"
    return Line(text=text, at=one.started_at, look=one.outcome.replace(" ", "-"))


def _commit(commit: Committed) -> Line:
    same = ((text, len(list(all_))) for text, all_ in groupby(map(_changed, commit.changes)))
    changes = "; ".join(f"{text}, {n} times" if n > 1 else text for text, n in same) or "claim"
    states = [one.subject for one in commit.changes if one.subject in _ENDS]
    return Line(text=f"{commit.version}  {changes}", at=commit.at, look="".join(states[-1:]))


def _waited(wait: Wait, shown: Timeline) -> list[Line]:
    """Return a wait as a line; none if it took no time that is known."""
    if not wait.took_ms(shown.looked_at):
        return []
    return [Line(text=_wait_text(wait, shown.looked_at), at=wait.since, look="wait")]


def _deliveries(hook: Webhook) -> Line:
    below = [
        Line(text=_delivery(one), at=one.at, look=one.result.replace(" ", "-"))
        for one in hook.deliveries
    ]
    return Line(text=f"deliveries to {hook.receiver} (id {hook.config_id})", below=below)


def _ago(at: int | None, now: int) -> str:
    """Return a time with its distance: `2026-11-22T02:14:12.250Z (35 s ago)`."""
    if at is None:
        return "an unknown time"
    return f"{iso(at)} ({f'{age(now - at)} ago' if at <= now else f'in {age(at - now)}'})"


def _starts(shown: Timeline) -> str:
    """Return how many starts the turn has had, those apart that use up no attempt."""
    head, turn = shown.head, shown.turn
    records, uncounted = len(turn.records) if turn else 0, head.turn.uncounted
    count = f"{turn.number if turn else '?'} ({'open' if head.turn.is_open else 'over'})"
    since = f" since its last record, {number(records, 'record')} in all" if records else ""
    said = [count, f"attempts {head.turn.attempts}{since}"]
    if uncounted.faults:
        said.append(f"{number(uncounted.faults, 'start')} met a fault that passes")
    if uncounted.interruptions:
        said.append(f"interrupted {times(uncounted.interruptions)}")
    said += [f"sent again {times(head.turn.resends)}"] if head.turn.resends else []
    said += [f"requeued {times(head.turn.requeued)}"] if head.turn.requeued else []
    return ", ".join(said)


def _waits(shown: Timeline) -> Iterator[_Fact]:
    """Yield what the agent's code waits for, beside sleeps."""
    if shown.head.turn.asks and not shown.head.is_terminal:
        yield _Fact(name="waits", text=_waits_for_answer(shown))
    for each in shown.awaited:
        name = each.id.name.removeprefix(CALLBACK)
        ends = {"name": name, "key": each.id.key} if each.kind == "callback" else {}
        yield _Fact(name="waits", text=_awaited(each, shown.looked_at), ends=ends)


def _waits_for_answer(shown: Timeline) -> str:
    """Return since when the agent's code waits for its client, until when, and what ends that."""
    head, now = shown.head, shown.looked_at
    text = (
        f"for an answer since {_ago(head.status_at, now)}; its code goes on with the next message"
    )
    if head.due_at is None or head.cancel is not None:
        return text
    return f"{text}, or without one at {_ago(head.due_at, now)}"


def _awaited(one: Awaited, now: int) -> str:
    """Return what an agent's code waits for, since when, until when, and what ends that."""
    until = _ago(one.until, now)
    match one.kind:
        case "callback":
            by = "a POST to its address ends that, or `a2a-serverless tasks signal`"
            text = f"for the callback {one.name} until {until}; {by}"
        case "poll":
            text = f"for the poll {one.name}, which looks again at {until}"
        case "agent" if one.task_id:
            of = f"for the task {one.task_id} of the agent {one.name}"
            text = f"{of}, which is looked at again at {until}, or when it notifies"
        case "agent":
            text = f"for the agent {one.name} to answer, which is asked again at {until}"
        case _:
            text = f"for the next try of the step {one.name} at {until}"
    text += f"; waits since {_ago(one.since, now)}" if one.since else ""
    return f"{text}; gives up at {_ago(one.gives_up_at, now)}" if one.gives_up_at else text


def _due(shown: Timeline, due_at: int) -> str:
    """Return when the sweeper looks at the task, and what that time is."""
    now, is_asleep = shown.looked_at, shown.asleep_until is not None
    is_swept = is_asleep or shown.head.turn.asks  # once a minute
    text = _ago(due_at, now)
    if shown.head.cancel is not None:
        text += ", the deadline of its cancel"
    elif is_asleep:
        text += ", the end of its sleep"
    elif shown.head.turn.asks:
        text += ", the end of the time for an answer"
    elif shown.holder is not None and shown.holder.lease_until is not None:
        text += ", the end of its worker's lease"
    is_late = due_at + (LATE_MS if is_swept else 0) < now
    return f"{text}: overdue, the sweeper was to look" if is_late else text


def _outcome(attempt: Attempt) -> str:
    """Return the outcome of an attempt so far, such as `gave back: TimeoutError`."""
    text = _OUTCOMES.get(attempt.outcome, attempt.outcome)
    if attempt.outcome in ("gave back", "failed"):
        return left_at_record(attempt.reason, attempt.until) or f"{text}: {_reason_text(attempt)}"
    return text


def discarded(attempt: Attempt | None, *, is_said: bool) -> str:
    """Return which attempt is over, and why, and whether a restart has taken back what it said."""
    number = (attempt.number if attempt else 0) or "?"
    why = _outcome(attempt) if attempt else "its end is not known"
    rest = "what it said is discarded" if is_said else "nothing was discarded"
    return f"attempt {number} is over ({why}): {rest}"


_OUTCOMES: Final[dict[Outcome, str]] = {
    "running": "has the claim",
    "cut short": "the task was ended without it",
    "unknown": "another attempt took over",
}
"""Outcomes that are told by other words than their names."""


def _took_text(attempt: Attempt, now_ms: int) -> str:
    """Return how long an attempt took, or has the turn so far; empty: it is not known."""
    if attempt.outcome == "running" and attempt.started_at is not None:
        return f"{duration(max(0, now_ms - attempt.started_at))} so far"
    return "" if attempt.took_ms is None else duration(attempt.took_ms)


def _wait_text(wait: Wait, now_ms: int) -> str:
    """Return how long a turn had no attempt until now, and for what it waited."""
    took, late = wait.took_ms(now_ms), wait.late_ms(now_ms)
    verbs = ("sleeps", "slept") if wait.what == ASLEEP else ("waits", "waited")
    verb = verbs[0] if wait.is_open else verbs[1]
    about = "" if wait.is_exact or took is None else "at most "
    length = "a time that is not known" if took is None else about + duration(took)
    so_far = " so far" if wait.is_open else ""
    until = f", not before {iso(wait.until)}" if wait.until and wait.what == "retry" else ""
    until = f", until {iso(wait.until)}" if wait.what == ASLEEP and wait.until else until
    is_late = wait.until and late >= _LONG_WAIT_MS
    then = f", of which {duration(late)} for a worker" if is_late else ""
    after = _FOR[wait.what].format(f" after {wait.reason}" if wait.reason else "")
    return f"{verb} {length}{so_far}{after}{until}{then}"


_FOR: Final[Mapping[WaitsFor, str]] = {
    "turn": " for the end of the turn before it",
    "line": " in line for a place of the workers or its conversation, and for a worker",
    "worker": " for a worker",
    "retry": " for the next try{}",
    "asleep": "",
    "handover": " for the process to which it was handed over",
    "shutdown": " for another worker, as its own was told to stop",
    "lost": " for its message to come again, as its attempt said nothing after its last commit",
    "unknown": ", as the record of the attempt before is damaged",
}


def _reason_text(one: Attempt | AttemptEnd) -> str:
    """Return why an attempt ended, where, and the id that leads to the line of the log."""
    text = one.reason or "no reason given"
    text += f" at {one.place}" if one.place else ""
    text += f": {one.message}" if one.message else ""
    return f"{text} (correlation id {one.correlation_id})" if one.correlation_id else text


def why(shown: Timeline) -> str:
    """Return in a sentence why a task has ended so, or what it waits for; empty: it needs none."""
    asked = "; a cancel was asked for" if shown.head.cancel is not None else ""
    if shown.head.is_terminal:
        return _why_over(shown)
    if not shown.head.turn.is_open:
        return f"it waits for an answer of its caller{asked}"
    if shown.in_line is not None:
        return in_line(shown.in_line) + asked
    if shown.wait is not None:
        wait, last, ended = shown.wait, shown.given_back, ""
        if last is not None and wait.what not in ("asleep", "handover", "shutdown"):
            ended = f"; the last attempt ended with {_reason_text(last)}"
            wait = replace(wait, reason="")
        return _wait_text(wait, shown.looked_at) + ended + asked
    running = shown.last
    if running is None or running.outcome != "running":
        return f"no attempt at it is known{asked}"
    took = _took_text(running, shown.looked_at)
    return f"attempt {running.number or '?'} has it{took and f', {took}'}{asked}"


def _caller(shown: Timeline) -> str:
    """Return who has asked for a task."""
    if not shown.asked.by and shown.head.scope == ANONYMOUS.digest:
        return "anyone: the endpoint has no authentication"
    return shown.asked.by or f"not named: owner {shown.head.scope}"


def _why_over(shown: Timeline) -> str:
    if shown.state == "canceled":
        return (
            f"asked for by {shown.head.cancel.by or 'an unnamed user'}" if shown.head.cancel else ""
        )
    if shown.state not in ("failed", "rejected"):
        return ""
    failure, last = shown.head.failure, shown.last
    if not failure.reason:
        return "its agent has ended it so"
    if failure.reason == NOT_STARTED or last is None:
        return "no attempt could start it"
    known = failure.correlation_id or last.correlation_id
    end = AttemptEnd(token="", reason=failure.reason, correlation_id=known)
    if failure.reason == LOST:
        end = replace(end, reason="no word: its process died or was cut off")
    elif last.reason.startswith(failure.reason):
        end = replace(end, place=last.place, message=last.message)
    return f"attempt {last.number or '?'} ended with {_reason_text(end)}"


def _what_holds(shown: Timeline) -> str:
    """Return which worker has claimed the open turn, and what is known of it since."""
    now = shown.looked_at
    if shown.in_line is not None:
        return f"no worker; {in_line(shown.in_line)}"
    if shown.asleep_until is not None:
        return f"no worker; {left_at_record(ASLEEP, shown.asleep_until)}"
    if shown.given_back is not None:
        end = shown.given_back
        if end.reason in (ASLEEP, HANDOVER):
            last = "woken from its sleep" if end.reason == ASLEEP else "handed over"
            return f"no worker; {last}, and waits for one"
        at = f" at {_ago(end.at, now)}" if end.at is not None else ""
        reason = f": {_reason_text(end)}" if shown.wait is None else ""  # else `why` has it
        text = f"no worker; given back{at}{reason}"
        return f"{text}; starts again at {_ago(end.until, now)}" if end.until else text
    if (holder := shown.holder) is None:
        return "no worker; the turn waits for one"
    text = holder.worker or "a worker without a name"
    if holder.since is not None:
        text += f", claimed it at {_ago(holder.since, now)}"
    if holder.seen_at is not None:
        text += f", last sign at {_ago(holder.seen_at, now)}"
    is_leased = holder.lease_until is not None and holder.lease_until > now
    return f"{text}, its lease ends at {_ago(holder.lease_until, now)}" if is_leased else text


def _changed(change: Change) -> str:
    """Return what one entry of a commit did."""
    match change.name:
        case "restart":
            text = f"restart from version {change.base}"
            return f"{text}, discards {_ranges(change.discards) or 'nothing'}"
        case "status":
            text = f"status {change.subject}"
            text += f", {change.progress}" if change.progress else ""
        case "turn ended":
            return "end of the turn"
        case "usage":
            return f"models: {change.subject}"
        case "record":
            text = f"record of {change.subject}, {change.size} bytes"
            return text + (", its value elsewhere" if change.references else "")
        case "chunk":
            text = f"chunk of artifact {change.subject}, {change.size} bytes"
        case "unknown":
            return f"unknown entry of kind {change.subject!r}, {change.size} bytes"
        case name:
            text = f"{name} {change.subject}".rstrip()
            text += f" from {change.by}" if change.by else ""
            text += f", {change.size} bytes"
    text += ", the last" if change.is_last else ""
    return text + (f", {change.references} parts elsewhere" if change.references else "")


def _webhook(one: Webhook, now: int) -> str:
    """Return how far a webhook has got and, if it was given up, what its client can do."""
    text = f"{one.receiver} (id {one.config_id}): "
    if one.is_gone:
        return f"{text}the logs alone tell of it"
    said = [_told(one)]
    if one.owed:
        said.append(f"owed {one.owed}")
    if one.given_up is not None:
        said.append(f"{_given_up(one.given_up)} at {_ago(one.given_up.at, now)}")
    if one.is_given_up:
        said.append(f"given up after {one.refusals} refusals of its own")
        return f"{text}{', '.join(said)}; redeliver it, or its client sets it again"
    if one.refusals:
        said.append(f"has refused {one.refusals}")
    if one.failures:
        tries = "one attempt" if one.failures == 1 else f"{one.failures} attempts"
        said.append(f"{tries} failed since {_ago(one.failing_since, now)}")
    if one.answer:
        said.append(f"{_answered(one.answer)} at {_ago(one.answered_at, now)}")
    if one.next_at is not None:
        said.append(f"next try at {_ago(one.next_at, now)}")
    return text + ", ".join(said)


def _answered(answer: str) -> str:
    """Return what came of the last attempt; an open breaker is no answer of the receiver."""
    is_held = answer.startswith((NO_CONSENT, RECEIVER_FAILS))
    return f"not called ({answer})" if is_held else f"last answer {answer}"


def _told(one: Webhook) -> str:
    """Return which events a receiver has taken."""
    if one.told is None:
        return "told of nothing so far"
    return f"told {one.told_count} up to version {one.told}"


def _given_up(lost: GivenUp) -> str:
    """Return how many events a receiver is not told of, and why."""
    if lost.count == 1:
        return f"the notification of version {lost.version} was given up ({lost.reason})"
    return (
        f"{lost.count} notifications were given up, the last of version {lost.version}"
        f" ({lost.reason})"
    )


def _delivery(one: DeliveryLine) -> str:
    """Return how an attempt to tell a receiver ended, and how long the next one waits."""
    of = [f"version {one.version}"] if one.version else []
    of += [f"attempt {one.attempt}"] if one.attempt else []
    answer = one.answer or "no reason given"
    text = answer if one.result == "failed" else f"{one.result}, {answer}"
    wait = "" if one.wait_ms is None else f", waits {duration(one.wait_ms)}"
    return (f"{', '.join(of)}: " if of else "") + text + wait


def _ranges(versions: Sequence[int]) -> str:
    """Return versions in rising order as `2-4, 7`."""
    spans: list[list[int]] = []
    for version in versions:
        if spans and spans[-1][-1] == version - 1:
            spans[-1][1:] = [version]
        else:
            spans.append([version])
    return ", ".join("-".join(map(str, span)) for span in spans)

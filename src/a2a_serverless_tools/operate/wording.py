"""What happened to a task in sentences, for the terminal and the console. Pure.

The sentences contain texts of clients and agents as they are: the caller has to escape them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from a2a_serverless.storage.deletion import Amounts
from a2a_serverless.tasks.entries import StepId
from a2a_serverless.tasks.head import ASLEEP, HANDOVER, LOST, NOT_STARTED, AttemptEnd, Trouble
from a2a_serverless.tasks.head import Wait as Reason
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.tasks.push import HOST_FAILS, NO_CONSENT, GivenUp
from a2a_serverless.tasks.turns import Attempt, Outcome, Wait, WaitsFor
from a2a_serverless_tools.operate.timeline import Change, Happening, InLine, Timeline
from a2a_serverless_tools.operate.webhooks import DeliveryLine, Webhook
from a2a_serverless_tools.operate.words import step_text

UNREADABLE: Final = "unreadable"
NO_REASON: Final = "none"
"""How a filter says that no reason is known: the agent has said so itself."""
UNCOUNTED: Final = "one that is still tried again is not counted; its task shows the next try"
"""What the number of webhooks given up leaves out: to count the others takes four more queries."""
IN_LINE: Final[Mapping[str, str]] = {
    "share": "in line for a place of the workers",
    "conversation": "waits for another turn of its conversation",
}
"""What a turn that is left waits for."""
ATTENTION: Final[Mapping[Trouble | Reason, str]] = {
    "failed": "failed",
    "rejected": "rejected",
    "untold": "webhook given up",
    "again": "sent again",
    "asleep": "asleep",
    "conversation": "behind its conversation",
    "retry": "the next try",
    "share": "a slot of the workers",
}
"""What a task needs attention for."""
_SECOND_MS: Final = 1_000
_LONG_WAIT_MS: Final = 1_000
"""The wait for a worker from which on it is told."""
_STEPS: Final = 4
"""The most names of steps in a sentence."""
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400


def sentence(one: Happening) -> str:
    """Return what happened as one sentence, without a time and without a full stop."""
    if one.attempt is not None:
        number = one.attempt.number or "?"
        return f"turn {one.turn}, attempt {number} {_of_attempt(one, one.attempt)}"
    if one.turn:
        return f"turn {one.turn}: {_of_turn(one)}"
    match one.what:
        case "cancel asked":
            return f"cancel asked for by {one.by or 'an unnamed user'}"
        case "reached":
            return f"the task is {one.state}"
        case "reached without an attempt":
            return f"the task is {one.state}, without its agent"
        case "given up" if one.given_up is not None:
            return f"{one.by} is not told: {given_up(one.given_up)}"
        case _:
            return f"an entry of kind {one.kind!r}, which this release does not know"


def _of_turn(one: Happening) -> str:
    match one.what:
        case "accepted":
            return "message accepted" + (f" from {one.by}" if one.by else "")
        case "waited for its turn":
            return "began when the turn before had ended"
        case "woken" if one.of:
            return f"woken, or sent again before its last record, {times(one.count)}"
        case "woken":
            waited = "waited for a place of the workers or for its conversation"
            return f"{waited}, and was woken {times(one.count)}"
        case _:
            return f"the sweeper has sent it again {times(one.count)} in all"


def _of_attempt(one: Happening, attempt: Attempt) -> str:
    worker = f" on {attempt.worker}" if attempt.worker else ""
    match one.what:
        case "started":
            is_long = one.after_ms is not None and one.after_ms >= _LONG_WAIT_MS
            waited = f", {duration(one.after_ms or 0)} after its message" if is_long else ""
            return f"started{worker}{waited}"
        case "recorded":
            return f"recorded {_steps(attempt.recorded)}"
        case "took over" | "went on":
            has_end = attempt.waited_ms is not None
            since = "the end of the one before" if has_end else "the last commit"
            is_known = one.after_ms is not None
            after = f", {duration(max(0, one.after_ms or 0))} after {since}" if is_known else ""
            discards = f", discarding {_ranges(one.discards)}" if one.discards else ""
            step = "" if attempt.after is None else step_text(attempt.after)
            behind = f" after record {attempt.kept} of {one.of} ({step})" if step else ""
            return f"{one.what}{behind}{worker}{after}{discards}"
        case "lost":
            return f"{worker} was lost: its process died or was cut off".lstrip()
        case _:
            left = left_at_record(attempt.reason, attempt.until)
            return left or f"ended: {reason_text(attempt)}"


def reason_text(one: Attempt | AttemptEnd) -> str:
    """Return why an attempt ended, where, and the id that leads to the line of the log."""
    text = one.reason or "no reason given"
    text += f" at {one.place}" if one.place else ""
    text += f": {one.message}" if one.message else ""
    return f"{text} (correlation id {one.correlation_id})" if one.correlation_id else text


def left_at_record(reason: str, until: int | None) -> str:
    """Return how an attempt has left its turn at a record; empty: it has not."""
    if reason == ASLEEP:
        return f"asleep until {iso(until) or 'an unknown time'}"
    return "handed over to the next process" if reason == HANDOVER else ""


def _steps(steps: Iterable[StepId]) -> str:
    """Return the names of steps; of many the first ones and the last."""
    names = [*map(step_text, steps)]
    if len(names) > _STEPS:
        names[_STEPS - 1 : -1] = [f"{len(names) - _STEPS} more"]
    return ", ".join(names)


def outcome(attempt: Attempt) -> str:
    """Return the outcome of an attempt so far, such as `gave back: TimeoutError`."""
    text = _OUTCOMES.get(attempt.outcome, attempt.outcome)
    if attempt.outcome in ("gave back", "failed"):
        return left_at_record(attempt.reason, attempt.until) or f"{text}: {reason_text(attempt)}"
    return text


def discarded(attempt: Attempt | None, *, is_said: bool) -> str:
    """Return which attempt is over, and why, and whether a restart has taken back what it said."""
    number = (attempt.number if attempt else 0) or "?"
    why = outcome(attempt) if attempt else "its end is not known"
    rest = "what it said is discarded" if is_said else "nothing was discarded"
    return f"attempt {number} is over ({why}): {rest}"


_OUTCOMES: Final[dict[Outcome, str]] = {
    "running": "has the claim",
    "cut short": "the task was ended without it",
    "unknown": "another attempt took over",
}
"""Outcomes that are told by other words than their names."""


def took_text(attempt: Attempt, now_ms: int) -> str:
    """Return how long an attempt took, or has the turn so far; empty: it is not known."""
    if attempt.outcome == "running" and attempt.started_at is not None:
        return f"{duration(max(0, now_ms - attempt.started_at))} so far"
    return "" if attempt.took_ms is None else duration(attempt.took_ms)


def wait_text(wait: Wait, now_ms: int) -> str:
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


def why(shown: Timeline) -> str:
    """Return in a sentence why a task has ended so, or what it waits for; empty: it needs none."""
    asked = "; a cancel was asked for" if shown.cancel is not None else ""
    if shown.has_ended:
        return _why_over(shown)
    if not shown.turn_is_open:
        return f"it waits for an answer of its caller{asked}"
    if shown.in_line is not None:
        return in_line(shown.in_line) + asked
    if shown.wait is not None:
        wait, last, ended = shown.wait, shown.given_back, ""
        if last is not None and wait.what not in ("asleep", "handover", "shutdown"):
            ended = f"; the last attempt ended with {reason_text(last)}"
            wait = replace(wait, reason="")
        return wait_text(wait, shown.looked_at) + ended + asked
    running = shown.last
    if running is None or running.outcome != "running":
        return f"no attempt at it is known{asked}"
    took = took_text(running, shown.looked_at)
    return f"attempt {running.number or '?'} has it{took and f', {took}'}{asked}"


def caller(shown: Timeline) -> str:
    """Return who has asked for a task."""
    if not shown.asked.by and shown.scope == ANONYMOUS.digest:
        return "anyone: the endpoint has no authentication"
    return shown.asked.by or f"not named: owner {shown.scope}"


def _why_over(shown: Timeline) -> str:
    if shown.state == "canceled":
        return f"asked for by {shown.cancel.by or 'an unnamed user'}" if shown.cancel else ""
    if shown.state not in ("failed", "rejected"):
        return ""
    failure, last = shown.failure, shown.last
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
    return f"attempt {last.number or '?'} ended with {reason_text(end)}"


def what_holds(shown: Timeline) -> str:
    """Return which worker has claimed the open turn, and what is known of it since."""
    if shown.in_line is not None:
        return f"no worker; {in_line(shown.in_line)}"
    if shown.asleep_until is not None:
        return f"no worker; {left_at_record(ASLEEP, shown.asleep_until)}"
    if shown.given_back is not None:
        end = shown.given_back
        if end.reason in (ASLEEP, HANDOVER):
            last = "woken from its sleep" if end.reason == ASLEEP else "handed over"
            return f"no worker; {last}, and waits for one"
        at = f" at {iso(end.at)}" if end.at is not None else ""
        reason = f": {reason_text(end)}" if shown.wait is None else ""  # else `why` has it
        text = f"no worker; given back{at}{reason}"
        return f"{text}; starts again at {iso(end.until)}" if end.until else text
    if shown.holder is None:
        return "no worker; the turn waits for one" if shown.turn_is_open else "none"
    holder = shown.holder
    text = holder.worker or "a worker without a name"
    if holder.since is not None:
        text += f", claimed it at {iso(holder.since)}"
    return text if holder.seen_at is None else f"{text}, last sign at {iso(holder.seen_at)}"


def in_line(waits: InLine) -> str:
    """Return what a turn stands in line for, and how many are before it, if that is known."""
    if waits.reason == "share":
        before = "" if waits.before is None else f": {number(waits.before, 'turn')}"
        return IN_LINE["share"] + (before and f"{before} of this caller before it")
    if waits.place == 1:
        return "the first of its conversation: about to be woken"
    if not waits.first:
        return IN_LINE["conversation"]
    ordinal = {2: "2nd", 3: "3rd"}.get(waits.place, f"{waits.place}th")
    of = f" ({ordinal} of {waits.places})" if waits.place else ""
    return f"waits until task {waits.first} of its conversation has ended{of}"


def starts(shown: Timeline) -> str:
    """Return how many starts the turn has had, those apart that use up no attempt."""
    spared = shown.spared
    said = [f"attempts {UNREADABLE if shown.attempts is None else shown.attempts}"]
    if shown.records:
        said[0] += f" since its last record, {number(shown.records, 'record')} in all"
    if spared.faults:
        said.append(f"{number(spared.faults, 'start')} met a fault that passes")
    if spared.interruptions:
        said.append(f"interrupted {times(spared.interruptions)}")
    return ", ".join(said)


def due(shown: Timeline) -> str:
    """Return when the sweeper looks at the task, and what that time is."""
    if shown.due_at is None:
        return "never"
    if shown.cancel is not None:
        return f"{iso(shown.due_at)}, the deadline of its cancel"
    if shown.asleep_until is not None:
        return f"{iso(shown.due_at)}, the end of its sleep"
    has_lease = shown.holder is not None and shown.holder.lease_until is not None
    renewed = ", the end of its worker's lease" if has_lease else ""
    return f"{iso(shown.due_at)}{renewed}"


def changed(change: Change) -> str:
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


def webhook(one: Webhook) -> str:
    """Return how far a webhook has got and, if it was given up, what its client can do."""
    if one.is_gone:
        return f"{one.receiver} (id {one.config_id}): the logs alone tell of it"
    settled = told(one)
    if one.given_up is not None:
        settled += f", {given_up(one.given_up)} at {iso(one.given_up.at)}"
    if one.is_given_up:
        return (
            f"{one.receiver} (id {one.config_id}): given up after {one.refusals} refusals of its"
            f" own, {settled}; redeliver it, or its client sets it again"
        )
    text = f"{one.receiver} (id {one.config_id}): {settled}"
    if one.owed:
        text += f", owed {one.owed}"
    if one.refusals:
        text += f", has refused {one.refusals}"
    if one.failures:
        tries = "one attempt" if one.failures == 1 else f"{one.failures} attempts"
        text += f", {tries} failed since {iso(one.failing_since) or 'an unknown time'}"
    if one.answer:
        text += f", {answered(one.answer)} at {iso(one.answered_at) or 'an unknown time'}"
    return text + (f", next try at {iso(one.next_at)}" if one.next_at is not None else "")


def answered(answer: str) -> str:
    """Return what came of the last attempt; a gate that was shut is no answer of the receiver."""
    is_held = answer.startswith((NO_CONSENT, HOST_FAILS))
    return f"not called ({answer})" if is_held else f"last answer {answer}"


def told(one: Webhook) -> str:
    """Return which events a receiver has taken."""
    if not one.knows_told:
        return f"told or given up to version {one.version}: which of both is not stored"
    if one.told is None:
        return "told of nothing so far"
    count = "" if one.told_count is None else f"{one.told_count} "
    return f"told {count}up to version {one.told}"


def given_up(lost: GivenUp) -> str:
    """Return how many events a receiver is not told of, and why."""
    if lost.count == 1:
        return f"the notification of version {lost.version} was given up ({lost.reason})"
    return (
        f"{lost.count} notifications were given up, the last of version {lost.version}"
        f" ({lost.reason})"
    )


def delivery(one: DeliveryLine) -> str:
    """Return how an attempt to tell a receiver ended, and how long the next one waits."""
    of = [f"version {one.version}"] if one.version else []
    of += [f"attempt {one.attempt}"] if one.attempt else []
    answer = one.answer or "no reason given"
    text = answer if one.result == "failed" else f"{one.result}, {answer}"
    wait = "" if one.wait_ms is None else f", waits {duration(one.wait_ms)}"
    return (f"{', '.join(of)}: " if of else "") + text + wait


def act_ended(outcome: str) -> str:
    """Return how an act of an operator has ended, in words."""
    return outcome or "its end was not noted: look at the task"


def amounts(of: Amounts) -> str:
    """Return how much data a caller has: `1 task, 2 contexts with a state, no webhooks and ...`."""
    return (
        f"{number(of.tasks, 'task')}, {number(of.contexts, 'context')} with a state,"
        f" {number(of.webhooks, 'webhook')} and {number(of.uploads, 'upload')}"
    )


def times(count: int) -> str:
    """Return how often something was done: `once`, `2 times`."""
    return "once" if count == 1 else f"{count} times"


def number(count: int, of: str) -> str:
    """Return a number of things: `1 task`, `2 tasks`, `no tasks`."""
    return f"1 {of}" if count == 1 else f"{format(count, ',') if count else 'no'} {of}s"


def _ranges(versions: Sequence[int]) -> str:
    """Return versions in rising order as `2-4, 7`."""
    spans: list[list[int]] = []
    for version in versions:
        if spans and spans[-1][-1] == version - 1:
            spans[-1][1:] = [version]
        else:
            spans.append([version])
    return ", ".join("-".join(map(str, span)) for span in spans)


def duration(ms: int) -> str:
    """Return a length of time in the two units that matter, such as `2.5 s` or `3 h 5 min`."""
    seconds = ms // _SECOND_MS
    if seconds < _MINUTE_S:
        return f"{ms} ms" if ms < _SECOND_MS else f"{ms / _SECOND_MS:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S} min {seconds % _MINUTE_S} s"
    if seconds < _DAY_S:
        return f"{seconds // _HOUR_S} h {seconds % _HOUR_S // _MINUTE_S} min"
    return f"{seconds // _DAY_S} d {seconds % _DAY_S // _HOUR_S} h"


def age(ms: int) -> str:
    """Return a length of time in the unit that matters, such as `35 min`."""
    if ms < _MINUTE_S * _SECOND_MS:
        return f"{ms // _SECOND_MS} s"
    return " ".join(duration(ms).split()[:2])


def iso(at_ms: int | None) -> str | None:
    """Return a time in UTC, as the stored number if no calendar has it; None if it is None."""
    if at_ms is None:
        return None
    try:
        at = datetime.fromtimestamp(at_ms // 1000, UTC).replace(microsecond=at_ms % 1000 * 1000)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

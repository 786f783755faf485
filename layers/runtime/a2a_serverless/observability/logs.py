"""Fields on log lines, the spans of attempts, the line of a turn's end.

A piece of work is a request, a delivery with its attempts, or the sweep of a task. Its correlation
id is on every line that is logged in it, and in the error or the sentence that its client reads.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from a2a.types import TaskState

from a2a_serverless import spent
from a2a_serverless.clock import Clock
from a2a_serverless.observability import metrics, spans
from a2a_serverless.observability.spans import Link, Span, TraceContext, loaded, span
from a2a_serverless.tasks.entries import ModelsUsed, Unknown
from a2a_serverless.tasks.fold import Log, Record
from a2a_serverless.tasks.head import AttemptEnd, Head, plain_state
from a2a_serverless.tasks.identity import caller_number
from a2a_serverless.tasks.rules import Commit, Step, Timing
from a2a_serverless.tasks.turns import ended_turn
from a2a_serverless.tasks.usage import MILLION, Used, total
from a2a_serverless.values import dataclass

logger = logging.getLogger(__name__)

_fields: ContextVar[Mapping[str, object]] = ContextVar(
    "a2a_serverless_log_fields", default=MappingProxyType({})
)


# -- fields ------------------------------------------------------------------------------------


@contextmanager
def log_context(**fields: object) -> Iterator[None]:
    """Put fields on every line that is logged in the block, also by the agent and its libraries.

    asyncio tasks and `aws.call` inherit them. A value that is None or empty is left out. A field in
    a line's own `extra` replaces the field here.
    """
    known = {name: value for name, value in fields.items() if value not in {None, ""}}
    token = _fields.set(MappingProxyType({**_fields.get(), **known}))
    try:
        yield
    finally:
        _fields.reset(token)


def with_context(record: logging.LogRecord) -> bool:
    """Give a record the fields of its context, and take the name of its asyncio task; a filter."""
    record.taskName = None
    if trace := spans.current_trace_id():
        record.trace_id = trace
    for name, value in _fields.get().items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True


@dataclass(slots=True, eq=False)
class _Work(spent.Spent):
    """What is known of a piece of work besides its fields."""

    log: Log | None = None
    """Of the task whose turn it works on, as it was read before; None: it was not read."""
    began_at: int | None = None
    """The time at which its attempt began; None: it makes none."""


@contextmanager
def begun(**fields: object) -> Iterator[None]:
    """Run the block as a piece of work of its own, under a new correlation id and these fields."""
    token = spent.current.set(_Work())
    try:
        with log_context(correlation_id=secrets.token_hex(8), **fields):
            yield
    finally:
        spent.current.reset(token)


def correlation_id() -> str:
    """Return the id of the piece of work; outside of all work a new one."""
    return str(_fields.get().get("correlation_id") or secrets.token_hex(8))


def works_on(log: Log, began_at: int | None = None) -> None:
    """Take note that the work is on the open turn of `log`, read from its beginning.

    `began_at`: the time at which an attempt begins, in milliseconds; None: none does.
    """
    work = spent.current.get()
    if isinstance(work, _Work):
        work.log, work.began_at = log, began_at


# -- attempts ----------------------------------------------------------------------------------


@contextmanager
def observed_attempt(log: Log, *, clock: Clock, timing: Timing) -> Iterator[Span]:
    """Observe the block as an attempt at the open turn, with the agent's own log lines.

    `log` is the task's log before the attempt, read from its beginning. The turn's first attempt
    ends its time in the queue. The span is GenAI's `invoke_agent`, and yielded: its parent is the
    delivery of the turn's own message, or else the request that opened the turn. It is linked to
    what has brought it, to the attempt and to the turn before it.

    The metrics are written before the agent starts, so that they show the attempt even if the agent
    kills its process.
    """
    head = log.head
    number = head.turn.starts + 1
    metrics.count("Attempts")
    works_on(log, clock.now_ms())
    is_started = head.turn.token is not None or head.state != TaskState.TASK_STATE_SUBMITTED
    if not is_started and not head.turn.requeued:  # which was not a worker's fault
        queued_ms = clock.now_ms() - head.status_at
        metrics.time("TimeQueued", queued_ms)
        if queued_ms >= timing.late_s * 1000:
            metrics.count("LateStarts")
            metrics.caller(caller_number(log.caller.user), whose="waited")
    metrics.flush()
    ids = _ids(head)
    within = spans.elsewhere(log.at(head.turn.number).trace)
    released = head.turn.released
    if released is not None and released.at is not None:
        reason = word_of(released)
        waited = {**ids, "a2a.wait.reason": reason}
        with span(f"wait {reason}", within, began_ms=released.at, attributes=waited):
            pass
    about = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": head.context_id,
        **ids,
        "a2a.attempt": number,
    }
    with (
        log_context(context_id=head.context_id, turn=head.turn.number, attempt=number),
        span("invoke_agent", within, links=_links(log, within), attributes=about) as attempt,
    ):
        logger.info("Attempt begins", extra={"action": "attempt"})
        yield attempt


@contextmanager
def observed_cancel(log: Log) -> Iterator[None]:
    """Observe the cancel of a task that no agent works on: a span of the trace that asked for it.

    `log` was read from its beginning; the span is linked to the turn that is canceled.
    """
    head = log.head
    opened = loaded(log.at(head.turn.number).trace)
    links: list[Link] = [(opened, "turn")] if opened else []
    with (
        log_context(context_id=head.context_id, turn=head.turn.number),
        span("cancel", links=links, attributes=_ids(head)),
    ):
        yield


def _ids(head: Head) -> dict[str, str | int]:
    return {
        "a2a.task.id": head.task_id,
        "a2a.context.id": head.context_id,
        "a2a.turn": head.turn.number,
    }


def _links(log: Log, within: TraceContext | None) -> Iterator[Link]:
    """Yield the links of an attempt's span, which continues `within`; None: its delivery.

    A copy of the operation from the sweeper, or from a process that has requeued the turn, belongs
    to another trace than the turn.
    """
    head, brought = log.head, spans.trace_context()
    if within is not None and brought:
        yield brought, "delivery"
    attempts = [record for record in log.between(head.turn.number, head.version) if record.token]
    turns = [record for record in log.between(0, head.turn.number - 1) if record.opens_turn]
    for records, what in ((attempts, "previous attempt"), (turns, "previous turn")):
        if records and (earlier := loaded(records[-1].trace)):
            yield earlier, what


def word_of(end: AttemptEnd) -> str:
    """Return why an attempt has ended, in a word: what follows may be text of its author."""
    return end.reason.partition(":")[0]


# -- ends --------------------------------------------------------------------------------------


def ended(before: Head, step: Step, commit: Commit) -> None:
    """Tell of a commit that has ended a turn, or a task: a line for the turn, and the metrics.

    Args:
        before: HEAD before the commit.
        step: the commit as it is stored.
        commit: the same as it was wanted: it says why the task has failed, if it has.
    """
    if step.head.is_terminal:
        metrics.count("TasksEnded", state=plain_state(step.head.state))
        if step.head.state == TaskState.TASK_STATE_FAILED:
            metrics.count("TasksFailed", reason=commit.failed_by)
        metrics.time("TimeToEnd", step.at - before.created_at)
    if not before.turn.is_open:
        return
    current = spent.current.get()
    work = current if isinstance(current, _Work) else _Work()
    reason = None
    if step.head.state == TaskState.TASK_STATE_FAILED:
        reason = str(commit.failed_by) if commit.failed is None else word_of(commit.failed)
    turn, log = (before.incarnation, before.turn.number), work.log
    told: dict[str, Any] = {
        "task_id": before.task_id,
        "context_id": before.context_id,
        "turn": before.turn.number,
        "state": plain_state(step.head.state),
        "reason": reason,
        "code_version": step.head.code or None,
        "commits": step.head.version - before.turn.base,
    }
    # What is not known is None: a number is never guessed.
    if log is not None and (log.head.incarnation, log.head.turn.number) == turn:
        told |= _by_log(log, step, work.began_at)
    else:
        told |= _by_head(before, step)
    if work.milliseconds is not None:
        told["storing_ms"] = round(work.milliseconds, 1)
        told |= {"read_units": work.units("read"), "write_units": work.units("write")}
    if told["running_ms"] is not None:
        metrics.time("TimeRunning", told["running_ms"])
    known = {name: value for name, value in told.items() if value is not None}
    logger.info("Turn ended", extra={"action": "turn_ended", **known})
    if current is not None and current.milliseconds is not None:
        current.clear()  # the delivery may go on with the next turn


def _by_log(log: Log, step: Step, began_at: int | None) -> dict[str, Any]:
    head, told = log.head, dict[str, Any]()
    is_own = step.token is not None and step.ended is None
    if began_at is not None and is_own and head.turn.token is None:
        # As most turns end: its first attempt has done so, and the log knows of no other one.
        opened_at = log.at(head.turn.number).at
        told["attempts"], told["waits"], told["waiting_ms"] = 1, {}, 0
        told["queued_ms"] = None if opened_at is None else max(0, began_at - opened_at)
        told["running_ms"] = max(0, step.at - began_at)
        told["caller"] = caller_number(log.caller.user)
    else:
        turn = ended_turn(log, Record.of(step), began_at)
        opened_at = turn.opened_at
        told["attempts"], told["waits"] = len(turn.attempts), turn.waits
        told["queued_ms"] = turn.queued_ms
        told["running_ms"] = turn.running_ms if turn.attempts else None
        told["waiting_ms"] = turn.paused_ms if turn.attempts else None
        told["caller"] = caller_number(turn.by) if turn.version else None
    if head.turn.requeued:
        told["waits"] |= _stood(head)
    if step.head.usage:
        told |= _spending(log, step.head.usage)
    return {
        **told,
        "attempt_ms": None if began_at is None else max(0, step.at - began_at),
        "total_ms": None if opened_at is None else max(0, step.at - opened_at),
    }


def _by_head(before: Head, step: Step) -> dict[str, Any]:
    """Return what HEAD alone knows: little of a turn with records, or after the task's first."""
    is_first = before.turn.number == 1
    starts = before.turn.starts
    return {
        "attempts": None if before.turn.checkpoint > 0 else starts,
        "running_ms": None,
        "total_ms": max(0, step.at - before.created_at) if is_first else None,
        **(_spending(None, step.head.usage) if is_first and step.head.usage else {}),
    }


def _spending(log: Log | None, stored: Used) -> dict[str, Any]:
    """Return tokens and money of a turn; nothing if no model was reported, or a commit is damaged.

    `stored` is the task's sum in HEAD. `log` was read before; None: the task has one turn.
    """
    entries = [entry for record in log.of_turn() for entry in record.entries] if log else []
    if any(isinstance(entry, Unknown) for entry in entries):
        return {}
    of_turn = [u for entry in entries if isinstance(entry, ModelsUsed) for u in entry.usage]
    now, read, earlier = total(stored), total(log.head.usage if log else ()), total((*of_turn,))
    tokens = now.tokens - read.tokens + earlier.tokens
    cost = now.cost - read.cost + earlier.cost
    is_priced = cost > 0 and now.unpriced == read.unpriced - earlier.unpriced
    return {"tokens": tokens or None, "cost": cost / MILLION if is_priced else None}


def _stood(head: Head) -> dict[str, int]:
    """Return how often a turn stood in line, as the HEAD says with which its first attempt began.

    Of later attempts it says too little; and if a turn with a position in its conversation's
    queue was requeued more than once, it does not say for what it waited.
    """
    # One copy began a turn that was behind another one.
    times = head.turn.requeued - (head.turn.number < head.turn.base)
    if head.turn.token is not None or not times or (head.is_serial and times > 1):
        return {}
    return {"conversation" if head.is_serial and not head.turn.has_share else "share": times}


def count_failed(log: Log, *, is_used_up: bool = False) -> None:
    """Count a task that has failed, by its caller: the alarm needs several callers to ring.

    `log` was read from its beginning. `is_used_up`: all attempts are used up, and the last one did
    not come to its end.
    """
    metrics.caller(caller_number(log.caller.user), whose="failed")
    if is_used_up:
        metrics.caller(caller_number(log.caller.user), whose="used_up")

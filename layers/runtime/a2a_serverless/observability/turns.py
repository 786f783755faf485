"""What is seen of the work on a turn: its spans, its ids on log lines, its first attempt's wait."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from a2a.types import TaskState

from a2a_serverless.clock import Clock
from a2a_serverless.observability import metrics, spans
from a2a_serverless.observability.logs import log_context
from a2a_serverless.observability.spans import Carried, Link, Piece, loaded, span, trace_id
from a2a_serverless.tasks.entries import TurnOpened
from a2a_serverless.tasks.fold import Log, Record
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.identity import caller_number
from a2a_serverless.tasks.rules import Timing

logger = logging.getLogger(__name__)


@contextmanager
def observed_attempt(log: Log, *, clock: Clock, timing: Timing) -> Iterator[Piece]:
    """Observe the block as an attempt at the open turn, with the agent's own log lines.

    `log` is the task's log before the attempt, read from its beginning. The turn's first attempt
    ends its time in the queue. The span is GenAI's `invoke_agent`, and yielded: its parent is the
    delivery of the turn's own message, or else the request that opened the turn. It is linked to
    what has brought it, to the attempt and to the turn before it.

    The metrics are written before the agent starts, so that they show the attempt even if the agent
    kills its process.
    """
    head = log.head
    number = head.attempts + head.spared.faults + head.spared.interruptions + 1
    metrics.count("Attempts")
    if number == 1 and head.state == TaskState.TASK_STATE_SUBMITTED:
        queued_ms = clock.now_ms() - head.status_at
        metrics.time("TimeQueued", queued_ms)
        if queued_ms >= timing.waiting_s * 1000:
            metrics.number("Callers", caller_number(log.caller.user), whose="waited")
    metrics.flush()
    within, links = _lineage(log)
    _record_wait(log, within)
    about = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": head.context_id,
        **_ids(head),
        "a2a.attempt": number,
    }
    with (
        log_context(context_id=head.context_id, turn=head.turn, attempt=number),
        span("invoke_agent", within, links=links, attributes=about) as piece,
    ):
        logger.info("Attempt begins", extra={"action": "attempt"})
        yield piece


@contextmanager
def observed_cancel(log: Log) -> Iterator[None]:
    """Observe the cancel of a task that no agent works on: a span of the trace that asked for it.

    `log` was read from its beginning; the span is linked to the turn that is canceled.
    """
    head = log.head
    opened = _trace_of(log.at(head.turn))
    with (
        log_context(context_id=head.context_id, turn=head.turn),
        span("cancel", links=[(opened, "turn")] if opened else [], attributes=_ids(head)),
    ):
        yield


def _ids(head: Head) -> dict[str, Any]:
    return {
        "a2a.task.id": head.task_id,
        "a2a.context.id": head.context_id,
        "a2a.turn": head.turn,
    }


def _lineage(log: Log) -> tuple[Carried | None, list[Link]]:
    """Return what an attempt's span continues, None for its delivery's, and its links.

    A copy of the operation from the sweeper, or from a process that has woken the turn, belongs to
    another trace than the turn.
    """
    head, brought = log.head, spans.carried()
    opened = _trace_of(log.at(head.turn))
    is_its_own = not opened or trace_id(opened) == trace_id(brought)
    links: list[Link] = [] if is_its_own or not brought else [(brought, "delivery")]
    attempts = [record for record in log.between(head.turn, head.version) if record.token]
    turns = [record for record in log.between(0, head.turn - 1) if _opens_turn(record)]
    for records, what in ((attempts, "previous attempt"), (turns, "previous turn")):
        if records and (earlier := _trace_of(records[-1])):
            links.append((earlier, what))
    return (None if is_its_own else opened), links


def _record_wait(log: Log, within: Carried | None) -> None:
    """Record the time since the attempt before, if its end is known, as a span with its reason."""
    head = log.head
    if head.released is not None and head.was_released and head.released.at is not None:
        reason = word_of(head.released)
        about = {**_ids(head), "a2a.wait.reason": reason}
        with span(f"wait {reason}", within, began_ms=head.released.at, attributes=about):
            pass


def word_of(end: AttemptEnd) -> str:
    """Return why an attempt has ended, in a word: what follows may be text of its author."""
    return end.reason.partition(":")[0]


def _opens_turn(record: Record) -> bool:
    return any(isinstance(entry, TurnOpened) for entry in record.entries)


def _trace_of(record: Record) -> dict[str, str]:
    return loaded(record.trace)

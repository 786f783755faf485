"""Observation of a delivery: fields of log lines, metrics, a piece of the trace."""

from __future__ import annotations

import functools
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from a2a.types import TaskState

from a2a_serverless.clock import Clock
from a2a_serverless.observability import metrics, tracing
from a2a_serverless.observability.tracing import log_context
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Operation
from a2a_serverless.tasks.identity import caller_number
from a2a_serverless.tasks.rules import Timing
from a2a_serverless.worker.turn import caller_of

logger = logging.getLogger(__name__)


@contextmanager
def observed_delivery(handle: Handle[Operation]) -> Iterator[None]:
    """Put the ids of the delivery on every line that is logged in the block."""
    with log_context(**ids_of(handle.message), receives=handle.attempt):
        yield


@functools.cache
def process_name() -> str:
    """Return the name of this process, as operators look for it.

    On Lambda these are the function's version and log stream, elsewhere host and process id.
    """
    if stream := os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME"):
        version = os.environ.get("AWS_LAMBDA_FUNCTION_VERSION", "")
        return f"{os.environ.get('AWS_LAMBDA_FUNCTION_NAME', '')}:{version} {stream}"
    return f"{socket.gethostname()} {os.getpid()}"


def ids_of(operation: Operation) -> dict[str, object]:
    """Return the fields that name an operation and its turn, for a line of the log."""
    params = operation.params
    return {"operation": operation.operation, "task_id": params.task_id, "turn": params.turn}


@contextmanager
def observed_attempt(
    log: Log, operation: Operation, *, clock: Clock, timing: Timing
) -> Iterator[None]:
    """Observe the block as an attempt at the open turn, with the agent's own log lines.

    `log` is the task's log before the attempt, read from its beginning. The turn's first attempt
    ends its time in the queue. A sampled trace gets the piece `attempt`.

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
            metrics.number("Callers", _caller(log), whose="waited")
    metrics.flush()
    trace = tracing.segment(
        "attempt",
        _trace(log, operation),
        task_id=head.task_id,
        turn=head.turn,
        attempt=number,
    )
    with log_context(context_id=head.context_id, turn=head.turn, attempt=number), trace:
        logger.info("Attempt begins", extra={"action": "attempt"})
        yield


@contextmanager
def observed_cancel(log: Log, operation: Operation) -> Iterator[None]:
    """Observe the cancel of a task that no agent works on: the piece `cancel` of a sampled trace.

    `log` was read from its beginning.
    """
    head = log.head
    trace = tracing.segment("cancel", _trace(log, operation), task_id=head.task_id, turn=head.turn)
    with log_context(context_id=head.context_id, turn=head.turn), trace:
        yield


def count_failed(log: Log, *, is_used_up: bool = False) -> None:
    """Count a task that has failed, by its caller: the alarm needs several callers to ring.

    `log` was read from its beginning. `is_used_up`: all attempts are used up, and the last one did
    not come to its end.
    """
    metrics.number("Callers", _caller(log), whose="failed")
    if is_used_up:
        metrics.number("Callers", _caller(log), whose="used_up")


def _caller(log: Log) -> int:
    return caller_number(caller_of(log).user)


def _trace(log: Log, operation: Operation) -> Mapping[str, str]:
    """Return the trace of the request behind this work: the cancel, or the current turn's send.

    The request's own operation brings its trace. A copy from the sweeper brings none, and the
    operation of a turn that waits behind the current one brings another request's. In these cases
    the X-Ray header in the commit that opened the current turn counts.
    """
    brought, turn = operation.request_context, log.head.turn
    is_its_own = operation.operation == "cancel" or operation.params.turn == turn
    if brought and is_its_own:
        return brought
    opened_in = log.records[turn - 1].trace
    return {tracing.HEADER: opened_in} if opened_in else {}

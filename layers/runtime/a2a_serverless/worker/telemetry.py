"""What an operator sees of a delivery: fields of log lines, metrics, a piece of the trace."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from a2a.types import TaskState

from a2a_serverless.broker.base import OperationHandle
from a2a_serverless.clock import Clock
from a2a_serverless.observability import metrics, tracing
from a2a_serverless.observability.logs import log_context
from a2a_serverless.storage.log import Log
from a2a_serverless.tasks.operations import Operation

logger = logging.getLogger(__name__)


@contextmanager
def observed_delivery(handle: OperationHandle) -> Iterator[None]:
    """Whatever is logged about a delivery says which one it is."""
    params, operation = handle.operation.params, handle.operation.operation
    with log_context(
        task_id=params.task_id, turn=params.turn, operation=operation, receives=handle.attempt
    ):
        yield


@contextmanager
def observed_attempt(log: Log, operation: Operation, clock: Clock) -> Iterator[None]:
    """An attempt at the open turn of `log`, as it was before; the agent's own lines belong to it.

    `log` was read from its beginning. The time in the queue ends with the turn's first attempt. A
    sampled trace gets the piece `attempt`.
    """
    head = log.head
    number = head.attempts + 1
    metrics.count("Attempts")
    if number == 1 and head.state == TaskState.TASK_STATE_SUBMITTED:
        metrics.time("TimeQueued", clock.now_ms() - head.status_at)
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
    """The cancel of a task that no agent works on; the piece `cancel` of a sampled trace.

    `log` was read from its beginning.
    """
    head = log.head
    trace = tracing.segment("cancel", _trace(log, operation), task_id=head.task_id, turn=head.turn)
    with log_context(context_id=head.context_id, turn=head.turn), trace:
        yield


def _trace(log: Log, operation: Operation) -> Mapping[str, str]:
    """The trace of the request that the work on the current turn is for.

    The request's own operation brings it. One that the sweeper has sent brings none, and one of a
    turn that waits behind the current one brings another: the commit that has opened the current
    turn knows X-Ray's header of its request.
    """
    brought, turn = operation.request_context, log.head.turn
    is_its_own = operation.operation == "cancel" or operation.params.turn == turn
    if brought and is_its_own:
        return brought
    opened_in = log.records[turn - 1].trace
    return {tracing.HEADER: opened_in} if opened_in else {}

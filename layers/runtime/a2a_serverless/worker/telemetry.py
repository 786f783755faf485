"""What an operator sees of a delivery: fields of log lines, metrics, a piece of the trace."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from a2a.types import TaskState

from a2a_serverless.broker.base import OperationHandle
from a2a_serverless.clock import Clock
from a2a_serverless.observability import metrics, tracing
from a2a_serverless.observability.logs import log_context
from a2a_serverless.tasks.head import Head
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
def observed_attempt(head: Head, operation: Operation, clock: Clock) -> Iterator[None]:
    """An attempt at the open turn of `head`, as it was before; the agent's own lines belong to it.

    The time in the queue ends with the turn's first attempt. A sampled trace gets the piece
    `attempt`.
    """
    number = head.attempts + 1
    metrics.count("Attempts")
    if number == 1 and head.state == TaskState.TASK_STATE_SUBMITTED:
        metrics.time("TimeQueued", clock.now_ms() - head.status_at)
    trace = tracing.segment(
        "attempt",
        operation.request_context,
        task_id=head.task_id,
        turn=head.turn,
        attempt=number,
    )
    with log_context(context_id=head.context_id, turn=head.turn, attempt=number), trace:
        logger.info("Attempt begins", extra={"action": "attempt"})
        yield


@contextmanager
def observed_cancel(head: Head, operation: Operation) -> Iterator[None]:
    """The cancel of a task that no agent works on; the piece `cancel` of a sampled trace."""
    trace = tracing.segment(
        "cancel", operation.request_context, task_id=head.task_id, turn=head.turn
    )
    with log_context(context_id=head.context_id, turn=head.turn), trace:
        yield

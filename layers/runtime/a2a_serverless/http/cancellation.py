"""Canceling a task: ask its agent, wait for the end, and end it without the agent if need be."""

from __future__ import annotations

import logging
import secrets

from a2a_serverless import faults
from a2a_serverless.errors import (
    TaskNotCancelableError,
    TaskNotFoundError,
    TaskTerminalStateError,
)
from a2a_serverless.http.intake import try_send
from a2a_serverless.observability import metrics, tracing
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import cancel_task
from a2a_serverless.storage.tail import Tail, settle
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.operations import Operation, OperationParams
from a2a_serverless.wiring import Backends

_MANY = 2**31

logger = logging.getLogger(__name__)


async def cancel(
    backends: Backends, scope: Scope, task_id: str, *, timeout_s: float, by: str = ""
) -> Tail:
    """Cancel a task and return a tail that stands at its end (A2A 1.0.1, section 3.1.5).

    The agent has `timeout_s` seconds to end the task. After that the task is canceled without it,
    and what the agent still writes is refused. A task that has come to another end stays as it is.
    A repeated cancel joins the one that is under way. `by` is the user who asks.

    Raises:
        TaskNotFoundError: there is no such task.
        TaskNotCancelableError: the task has ended, also if it was canceled: 3.1.5 and the
            conformance kit name every terminal state. The cancel is still "idempotent", as 3.3.1
            demands, because nothing changes.
    """
    storage = backends.storage.for_scope(scope)
    try:
        head = await storage.request_cancel(task_id, by=by)
    except TaskTerminalStateError as error:
        raise TaskNotCancelableError(f"{error} It cannot be canceled.") from error
    faults.point("after-cancel-request")
    # A number of its own: the queue must not drop this operation as a repetition of an earlier
    # one, which a worker may have dropped meanwhile.
    params = OperationParams.of(head, head.turn, secrets.randbelow(_MANY))
    operation = Operation.to_cancel(params, request_context=tracing.carried())
    await try_send(backends.operations.send(operation), "cancel", head, head.turn)
    faults.point("after-cancel-send")
    tail = await Tail.open(storage, task_id)
    if tail.head.incarnation != head.incarnation:
        raise TaskNotFoundError  # deleted meanwhile, and made again: that one was not canceled
    deadline = storage.clock.monotonic() + timeout_s
    if not await settle(tail, until=lambda head: head.is_terminal, deadline=deadline):
        await _end(storage, tail)
    return tail


async def _end(storage: DurableStorage, tail: Tail) -> None:
    """Cancel the task without its agent, and bring the tail to its end."""
    seen = tail.head
    if await cancel_task(storage, seen):
        metrics.count("ForcedCancels")
        ids = {"task_id": seen.task_id, "context_id": seen.context_id, "turn": seen.turn}
        extra = {"action": "cancel_forced", "attempts": seen.attempts, **ids}
        logger.warning("canceled without the agent", extra=extra)
    await tail.poll()

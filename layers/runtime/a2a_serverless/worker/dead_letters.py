"""Dead letters: operations that were delivered too often end their task instead of hanging it."""

from __future__ import annotations

import logging
import secrets
from typing import Literal

from a2a.types import TaskState

from a2a_serverless import faults
from a2a_serverless.broker.base import Broker, decode_operation
from a2a_serverless.cancel.base import CancelRegistry
from a2a_serverless.errors import ConfigurationError, UndecodableOperationError
from a2a_serverless.observability import metrics, tracing
from a2a_serverless.storage.log import TaskLog
from a2a_serverless.tasks.deliveries import Delivered, on_delivery
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.endings import CANCELED, FAILED, end_task, ending

Outcome = Literal["failed", "canceled", "dropped", "undecodable"]

_log = logging.getLogger(__name__)


class DeadLetters:
    """Gives every message of the dead letter queue its end.

    Args:
        log: the tasks.
        registry: the cancel flags.
        broker: sets aside what cannot be read.
    """

    def __init__(self, log: TaskLog, registry: CancelRegistry, broker: Broker) -> None:
        self._tasks = log
        self._registry = registry
        self._broker = broker

    async def handle(self, body: str) -> Outcome:
        """End the task of the operation in `body`, or set `body` aside; then it can be deleted.

        Handling a message twice does no more than once.

        Raises:
            ConfigurationError: there is no queue for an undecodable message.
            ConcurrencyError, UnavailableError: the task could not be written; keep the message.
        """
        try:
            operation = decode_operation(body)
        except UndecodableOperationError as error:
            await self._set_aside(body, str(error))
            return "undecodable"
        params = operation.params
        with tracing.segment(
            "dead letter", operation.request_context, task_id=params.task_id, turn=params.turn
        ):
            return await self.end(operation)

    async def end(self, operation: Operation) -> Outcome:
        """Commit failed, or canceled where that was asked for; "dropped" where all is over."""
        scope, task_id = Scope(operation.params.scope), operation.params.task_id
        log, registry = self._tasks.for_scope(scope), self._registry.for_scope(scope)
        is_cancelled = await registry.is_cancelled(task_id)
        correlation_id = secrets.token_hex(8)
        outcome: Outcome = "dropped"
        seen: Head | None = None

        def decide(head: Head) -> Commit | None:
            nonlocal outcome, seen
            seen = head
            match on_delivery(head, operation, receives=1, is_cancelled=is_cancelled):
                case Delivered.DROP:
                    outcome = "dropped"
                    return None
                case Delivered.CANCEL:
                    outcome = "canceled"
                    return ending(head, TaskState.TASK_STATE_CANCELED, CANCELED)
                case _:
                    outcome = "failed"
                    text = FAILED.format(correlation_id=correlation_id)
                    return ending(head, TaskState.TASK_STATE_FAILED, text)

        if await end_task(log, task_id, decide):
            # At once: if what follows fails, the next delivery finds nothing to tell.
            self._report(operation, outcome, seen, correlation_id)
        else:
            outcome = "dropped"
        faults.point("after-dead-letter")
        head = await log.head(task_id)
        if head is None or head.is_terminal:
            await registry.cleanup(task_id, incarnation=operation.params.incarnation)
        if outcome == "dropped":
            self._report(operation, outcome, head, correlation_id)
        return outcome

    async def _set_aside(self, body: str, reason: str) -> None:
        if not await self._broker.set_aside(body, reason=reason):
            msg = "A2A_UNDECODABLE_QUEUE is not set: it names the queue for unreadable messages."
            raise ConfigurationError(msg)
        metrics.count("DeadLetters", outcome="undecodable")
        extra = {"action": "dead_letter_undecodable", "reason": reason}
        _log.error("An unreadable dead letter was set aside", extra=extra)

    def _report(
        self, operation: Operation, outcome: Outcome, head: Head | None, correlation_id: str
    ) -> None:
        metrics.count("DeadLetters", outcome=outcome)
        level = logging.INFO if outcome == "dropped" else logging.ERROR
        known: dict[str, object] = {}
        if head is not None and head.incarnation == operation.params.incarnation:
            known = {"context_id": head.context_id, "attempts": head.attempts}
        _log.log(
            level,
            "Dead letter: %s",
            outcome,
            extra={
                "action": f"dead_letter_{outcome}",
                "correlation_id": correlation_id,
                **_ids(operation),
                **known,
            },
        )


def ids_in(body: str) -> dict[str, object]:
    """Which task and turn a dead letter is about, for a line of the log."""
    try:
        return _ids(decode_operation(body))
    except UndecodableOperationError:
        return {}


def _ids(operation: Operation) -> dict[str, object]:
    params = operation.params
    return {
        "operation": operation.operation,
        "task_id": params.task_id,
        "turn": params.turn,
    }

"""Dead letters: operations that were delivered too often.

A task whose turn has used up its attempts is ended. A turn with attempts left is sent again,
because deliveries also run out in an outage.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Final, Literal

from a2a_serverless import faults
from a2a_serverless.errors import (
    ConcurrencyError,
    ConfigurationError,
    UndecodableMessageError,
    UnreadableTaskError,
)
from a2a_serverless.observability import metrics, tracing
from a2a_serverless.queues.fifo import FifoQueue, decode_message
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import REBASES, canceled, end_task, gave_up
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.tasks.repairs import DeadLettered, on_dead_letter
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.telemetry import count_failed, ids_of

Settled = Literal["failed", "canceled", "resent", "left", "dropped", "undecodable"]

_LEVELS: Final[Mapping[Settled, int]] = {
    "failed": logging.ERROR,
    "canceled": logging.ERROR,
    "resent": logging.WARNING,
    "left": logging.WARNING,
    "dropped": logging.INFO,
}

logger = logging.getLogger(__name__)


class DeadLetters:
    """Settles every message of the dead letter queue.

    Args:
        storage: the tasks.
        queue: keeps what cannot be read.
        retry: how many attempts a turn has.
    """

    def __init__(
        self, storage: DurableStorage, queue: FifoQueue[Operation], *, retry: RetryPolicy
    ) -> None:
        self._storage = storage
        self._queue = queue
        self._retry = retry

    async def handle(self, body: str) -> Settled:
        """Settle the operation in `body`, see `end`; copy an unreadable `body` to its own queue.

        After that the message can be deleted. Idempotent.

        Raises:
            ConfigurationError: there is no queue for the unreadable message.
            ConcurrencyError, UnavailableError: the task could not be written; keep the message.
        """
        try:
            operation = decode_message(Operation, body)
        except UndecodableMessageError as error:
            await self._keep_undecodable(body, str(error))
            return "undecodable"
        params = operation.params
        with tracing.segment(
            "dead letter", operation.request_context, task_id=params.task_id, turn=params.turn
        ):
            try:
                return await self.end(operation)
            except UnreadableTaskError as error:
                extra = {"action": "unreadable_task", **ids_of(operation)}
                logger.error("Dead letter dropped: %s", error, extra=extra)  # noqa: TRY400 - its sentence says all
                return "dropped"

    async def end(self, operation: Operation) -> Settled:
        """Apply the decision of `on_dead_letter` to the operation's task as it is now.

        Return what was done. "failed", "canceled": the task was ended. "resent": its turn was made
        due, so that the next sweep sends it again. "left": no worker of this release can run it,
        and the sweeper sends it again after its own wait. "dropped": nothing was left to do.
        """
        scope, task_id = Scope(operation.params.scope), operation.params.task_id
        storage = self._storage.for_scope(scope)
        log = await storage.read(task_id, incarnation=operation.params.incarnation)
        letter = _Letter(operation, self._retry, log)
        settled = await _settle(storage, letter)
        self._report(letter, settled, letter.seen or (log.head if log else None))
        if settled == "failed" and log is not None:
            count_failed(log, is_used_up=True)
        faults.point("after-dead-letter")
        return settled

    async def _keep_undecodable(self, body: str, reason: str) -> None:
        if not await self._queue.keep_undecodable(body, reason=reason):
            msg = "A2A_UNDECODABLE_QUEUE is not set: it names the queue for unreadable messages."
            raise ConfigurationError(msg)
        metrics.count("DeadLetters", outcome="undecodable")
        extra = {"action": "dead_letter_undecodable", "reason": reason}
        logger.error("An unreadable dead letter was kept for a person", extra=extra)

    def _report(self, letter: _Letter, settled: Settled, head: Head | None) -> None:
        metrics.count("DeadLetters", outcome=settled)
        known: dict[str, object] = {}
        if head is not None and head.incarnation == letter.operation.params.incarnation:
            known = {"context_id": head.context_id, "attempts": head.attempts}
        logger.log(
            _LEVELS[settled],
            "Dead letter: %s",
            settled,
            extra={
                "action": f"dead_letter_{settled}",
                "correlation_id": letter.correlation_id,
                **ids_of(letter.operation),
                **known,
            },
        )


class _Letter:
    """A dead letter, and the decision about it on the HEAD that was read last."""

    def __init__(self, operation: Operation, retry: RetryPolicy, log: Log | None) -> None:
        self.operation = operation
        self.correlation_id = secrets.token_hex(8)
        self.wanted = DeadLettered.DROP
        self.seen: Head | None = None
        self._retry = retry
        self._cannot_run = log is not None and log.cannot_run

    def decide(self, head: Head) -> Commit | None:
        """Return the commit that ends the task; None if it is not to be ended."""
        self.seen = head
        self.wanted = on_dead_letter(
            head,
            self.operation,
            retry=self._retry,
            cannot_run=self._cannot_run,
        )
        if self.wanted is DeadLettered.CANCEL:
            return canceled(head)
        if self.wanted is DeadLettered.FAIL:
            return gave_up(head, self.correlation_id)
        return None


async def _settle(log: DurableStorage, letter: _Letter) -> Settled:
    """Apply the decision to HEAD as it is; decide again if HEAD has moved meanwhile.

    Raises:
        ConcurrencyError: others changed the task too often.
    """
    for _ in range(REBASES):
        if await end_task(log, letter.operation.task_id, letter.decide):
            return "canceled" if letter.wanted is DeadLettered.CANCEL else "failed"
        if letter.wanted is DeadLettered.LEAVE:
            return "left"
        if letter.wanted is not DeadLettered.RESEND or letter.seen is None:
            return "dropped"
        if await _make_due(log, letter.seen):
            return "resent"
        letter.wanted = DeadLettered.DROP  # unless the next HEAD says otherwise
    msg = f"The turn was changed by others {REBASES} times while it was to be made due."
    raise ConcurrencyError(msg)


async def _make_due(log: DurableStorage, head: Head) -> bool:
    """Make the open turn due now, unless it is already; return False if HEAD has moved."""
    now_ms = log.clock.now_ms()
    if head.due_at is not None and head.due_at <= now_ms:
        return True
    return await log.postpone(head, due_at=now_ms, sends=head.sends)


def ids_in(body: str) -> dict[str, object]:
    """Return the task and turn that a dead letter is about, for a line of the log."""
    try:
        return ids_of(decode_message(Operation, body))
    except UndecodableMessageError:
        return {}

"""The work of SweeperFunction as a loop: overdue tasks, and the dead letters."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from a2a_serverless import aws
from a2a_serverless.clock import SystemClock, now_s
from a2a_serverless.errors import A2AServerlessError, ConfigurationError
from a2a_serverless.observability import metrics
from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.queues.sqs import SqsRequests
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.sweeper import DeadLetters, Sweeper, SweepReport, ids_in
from a2a_serverless_tools.local.background import repeat

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
"""Seconds between two rounds; a deployment sweeps every minute, and gets dead letters at once."""

MOST_FORGOTTEN = 1000
"""Expired items that a round deletes, where the database does not do so by itself."""
SPARED_S = 3600
"""Seconds that an expired item is kept."""


@dataclass(frozen=True, slots=True)
class _Round:
    """The counts of one round."""

    swept: SweepReport
    dead_letters: int

    @property
    def did_something(self) -> bool:
        swept = self.swept
        repaired = (swept.sent, swept.given_up, swept.canceled, swept.failed)
        return any((*repaired, self.dead_letters))

    def __str__(self) -> str:
        swept = self.swept
        return (
            f"sent {swept.sent}, passed {swept.passed}, given up {swept.given_up}, "
            f"canceled {swept.canceled}, failed {swept.failed}, requeued {swept.requeued}, "
            f"parked {swept.parked}, skipped {swept.skipped}, dead letters {self.dead_letters}"
        )


class DeadLetterSource(Protocol):
    """A dead letter queue, of AWS or on a table."""

    async def receive(self) -> EventRecord | None:
        """Return the next visible dead letter; None if there is none."""

    async def delete(self, record: EventRecord) -> None:
        """Remove a received dead letter."""


class SqsDeadLetterSource:
    """The dead letter queue of AWS.

    Args:
        queue: the queue's URL or name.
        wait_s: seconds of a long poll, at most 20.
    """

    def __init__(self, queue: str, *, wait_s: int = 1) -> None:
        self._requests = SqsRequests(queue, None, SystemClock())
        self._wait_s = wait_s

    async def receive(self) -> EventRecord | None:
        """Return the body and the receipt of the next dead letter; None if none came.

        Raises:
            UnavailableError, ConfigurationError: the queue did not answer when it was looked up.
            ClientError, BotoCoreError: the queue does not answer the request.
        """
        url = await self._requests.url()
        receive = self._requests.polling_client.receive_message
        answer = await aws.call(
            receive, QueueUrl=url, MaxNumberOfMessages=1, WaitTimeSeconds=self._wait_s
        )
        for message in answer.get("Messages", ()):
            return {"body": message["Body"], "receiptHandle": message["ReceiptHandle"]}
        return None

    async def delete(self, record: EventRecord) -> None:
        """Remove a received dead letter."""
        await self._requests.delete(record["receiptHandle"])


class SweepRounds:
    """Runs rounds over one deployment's backends.

    Args:
        backends: the storage that is swept, and the queue of operations.
        settings: the attempts of a turn, and the time after which it is given up.
        dead_letters: the dead letter queue; None: there is none to consume.
    """

    def __init__(
        self, backends: Backends, settings: Settings, dead_letters: DeadLetterSource | None
    ) -> None:
        self._storage = backends.storage
        self._sweeper = Sweeper(
            backends.storage,
            backends.operations,
            wake_webhooks=backends.waking(),
            clock=backends.storage.clock,
            give_up_s=settings.give_up_s,
            retry_s=settings.retry_minutes * 60,
        )
        self._dead_letters = DeadLetters(
            backends.storage, backends.operations, retry=settings.retry()
        )
        self._source = dead_letters

    async def once(self) -> _Round:
        """Run one round: overdue turns and cancels, then every visible dead letter.

        Raises:
            UnavailableError, ConfigurationError, ClientError, BotoCoreError: the table or the
                queue did not answer.
        """
        swept = await self._sweeper.sweep()
        done = _Round(swept, await self._consume())
        before_s = now_s(self._storage.clock) - SPARED_S
        await self._storage.table.forget(before_s=before_s, limit=MOST_FORGOTTEN)
        return done

    async def forever(self) -> None:
        """Run a round every `PERIOD_S`; errors are logged, and the next round follows."""
        await repeat(
            self._log_round, pause_s=PERIOD_S, failure="A sweep failed.", action="sweep_failed"
        )

    async def _log_round(self) -> None:
        try:
            done = await self.once()
        finally:
            metrics.flush()
        logger.log(logging.WARNING if done.did_something else logging.INFO, "Swept: %s", done)

    async def _consume(self) -> int:
        count = 0
        while self._source is not None and (record := await self._source.receive()) is not None:
            count += 1
            try:
                await self._dead_letters.handle(record["body"])
                await self._source.delete(record)
            except ConfigurationError:
                raise
            except A2AServerlessError:
                # The dead letter comes again after its visibility, which may have ended meanwhile.
                extra = {"action": "dead_letter_error", **ids_in(record["body"])}
                logger.exception("A dead letter stays.", extra=extra)
        return count

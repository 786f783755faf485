"""The sweeper as a Lambda function behind a schedule and the dead letter queue."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.queues.batch import EventFunction, process_batch
from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.dead_letters import DeadLetters, ids_in
from a2a_serverless.worker.sweeper import Sweeper

logger = logging.getLogger(__name__)


class SweeperFunction(EventFunction):
    """Sweeps on a schedule event, and handles dead letters on an SQS event.

    Args:
        backends: the storage that is swept, and the queue of operations.
        settings: the attempts of a turn, and the time after which it is given up.
    """

    def __init__(self, backends: Backends, settings: Settings) -> None:
        self._backends = backends
        self._give_up_s = settings.give_up_s
        self._dead_letters = DeadLetters(
            backends.storage, backends.operations, retry=settings.retry()
        )
        super().__init__()

    async def _answer(
        self,
        event: Mapping[str, Any],
        context: Any,  # noqa: ARG002 - the sweeper's budget is its own
    ) -> dict[str, Any]:
        """Return the counts of the run, or the batch response: the letters that stay queued."""
        if event.get("detail-type") == "Scheduled Event":
            return await self._sweep()
        if "Records" in event:
            return await process_batch(event["Records"], self._succeeds)
        raise InvalidArgumentError("The sweeper handles schedule events and SQS events.")

    async def _sweep(self) -> dict[str, Any]:
        storage = self._backends.storage
        sweeper = Sweeper(
            storage,
            self._backends.operations,
            clock=storage.clock,
            give_up_s=self._give_up_s,
        )
        return asdict(await sweeper.sweep())

    async def _succeeds(self, record: EventRecord) -> bool:
        try:
            await self._dead_letters.handle(record["body"])
        except Exception:
            # An invocation's edge: the record is reported failed.
            logger.exception(
                "A dead letter was not handled",
                extra={
                    "action": "dead_letter_error",
                    "message_id": record["messageId"],
                    **ids_in(record["body"]),
                },
            )
            return False
        return True

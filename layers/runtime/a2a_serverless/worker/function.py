"""The worker as a Lambda function behind an SQS event source."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from a2a.server.agent_execution import AgentExecutor

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import InvalidArgumentError, UndecodableOperationError
from a2a_serverless.observability import metrics
from a2a_serverless.observability.logs import log_context
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.exits import run_to_end

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]


class WorkerFunction:
    """Handles batches of operations, one invocation at a time.

    Groups run at the same time, the records of one group in their order. After a failure the rest
    of its group is returned unprocessed, as FIFO order demands. The event loop lives as long as
    the function: what is bound to it survives from one invocation to the next.
    """

    def __init__(
        self,
        backends: Backends,
        agent: AgentExecutor,
        settings: Settings,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._broker = backends.broker
        self._clock = clock or SystemClock()
        self._adapter = WorkerAdapter(backends, agent, settings, clock=self._clock)
        self._loop = asyncio.new_event_loop()

    def handle(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Process an SQS event; a partial batch response names the records to deliver again.

        `context` is Lambda's; without one (None) there is no deadline.

        Raises:
            InvalidArgumentError: the event is not one of SQS.
        """
        records = event.get("Records")
        if not isinstance(records, list):
            msg = "The event has no list of Records: it is not one of SQS."
            raise InvalidArgumentError(msg)
        deadline = None
        if context is not None:
            left_s = context.get_remaining_time_in_millis() / 1000
            deadline = self._clock.monotonic() + left_s
        try:
            with log_context(request_id=getattr(context, "aws_request_id", None)):
                failed = run_to_end(self._loop, self._process(records, deadline))
        finally:
            metrics.flush()
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}

    def close(self) -> None:
        """Give the event loop back."""
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _process(self, records: list[Record], deadline: float | None) -> list[str]:
        groups = _groups(records)
        failed = await asyncio.gather(*(self._in_order(group, deadline) for group in groups))
        return [message_id for group in failed for message_id in group]

    async def _in_order(self, group: list[Record], deadline: float | None) -> list[str]:
        """The ids of the first record that failed and of those behind it."""
        for position, record in enumerate(group):
            if not await self._succeeds(record, deadline):
                return [failed["messageId"] for failed in group[position:]]
        return []

    async def _succeeds(self, record: Record, deadline: float | None) -> bool:
        try:
            handle = self._broker.decode_record(record)
        except UndecodableOperationError as error:
            extra = {"action": "undecodable", "message_id": record["messageId"]}
            logger.error("Record not processed: %s", error, extra=extra)  # noqa: TRY400 - expected
            return False
        return await self._adapter.process(handle, deadline=deadline)


def _groups(records: Iterable[Record]) -> list[list[Record]]:
    """Records by their message group, in order."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        group = record.get("attributes", {}).get("MessageGroupId") or record["messageId"]
        groups.setdefault(group, []).append(record)
    return list(groups.values())

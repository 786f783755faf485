"""The worker as a Lambda function behind an SQS event source."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from a2a.server.agent_execution import AgentExecutor

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import InvalidArgumentError, UndecodableMessageError
from a2a_serverless.queues.batch import EventFunction, left_s, process_batch
from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.loops import run_to_end

T = TypeVar("T")

logger = logging.getLogger(__name__)


class WorkerFunction(EventFunction):
    """Runs batches of operations: tasks at the same time, the operations of one in their order."""

    def __init__(
        self,
        backends: Backends,
        agent: AgentExecutor,
        settings: Settings,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._operations = backends.operations
        self._clock = clock or SystemClock()
        self._adapter = WorkerAdapter(backends, agent, settings, clock=self._clock)
        super().__init__()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, even if a callback of the agent calls `sys.exit()`."""
        return run_to_end(self._loop, work)

    async def _answer(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        records = event.get("Records")
        if not isinstance(records, list):
            raise InvalidArgumentError("The event has no list of Records: it is not one of SQS.")
        return await process_batch(records, partial(self._succeeds, self._deadline(context)))

    def _deadline(self, context: Any) -> float | None:
        seconds = left_s(context)
        return None if seconds is None else self._clock.monotonic() + seconds

    async def _succeeds(self, deadline: float | None, record: EventRecord) -> bool:
        try:
            handle = self._operations.decode_record(record)
        except UndecodableMessageError as error:
            extra = {"action": "undecodable", "message_id": record["messageId"]}
            logger.error("Record not processed: %s", error, extra=extra)  # noqa: TRY400 - expected
            return False
        return await self._adapter.process(handle, deadline=deadline)

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
from a2a_serverless.queues.fifo import EventRecord, FifoQueue
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.agents import TurnAgents
from a2a_serverless.worker.loops import have_threads, run_to_end
from a2a_serverless.worker.sharing import Process, Sharing

T = TypeVar("T")

logger = logging.getLogger(__name__)


class WorkerFunction(EventFunction):
    """Runs batches of operations: several tasks at a time, each task's operations in their order.

    With `worker_turns` above 1 it pulls further operations while its turns run (`worker.sharing`).
    What it must not run beside others it sends to the quarantine queue, and an invocation whose
    event comes from there runs its turn alone.

    Raises:
        ConfigurationError: the settings of shared turns do not fit one another, or there is no
            quarantine queue.
    """

    def __init__(
        self,
        backends: Backends,
        agent: AgentExecutor | TurnAgents,
        settings: Settings,
        *,
        clock: Clock | None = None,
    ) -> None:
        settings.check_sharing()
        self._operations = backends.operations
        shares = settings.worker_turns > 1
        self._quarantine = backends.quarantining() if shares else None
        self._settings = settings
        self._clock = clock or SystemClock()
        self._adapter = WorkerAdapter(backends, agent, settings, clock=self._clock)
        super().__init__()
        have_threads(self._loop, settings.worker_turns)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, even if a callback of the agent calls `sys.exit()`."""
        return run_to_end(self._loop, work)

    async def _answer(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        records = event.get("Records")
        if not isinstance(records, list):
            raise InvalidArgumentError("The event has no list of Records: it is not one of SQS.")
        deadline = self._deadline(context)
        process = partial(self._adapter.process, deadline=deadline)
        quarantine = self._quarantine
        if quarantine is None:
            return await self._batch(records, self._operations, process)
        if any(
            record.get("eventSourceARN", "").endswith(f":{quarantine.name}") for record in records
        ):
            process = partial(process, is_quarantined=True)
            return await self._batch(records, quarantine, process)
        sharing = self._sharing(partial(process, quarantine=quarantine), deadline)
        # Acknowledged at once, as other turns may run on: its group's next message waits for it.
        batch = self._batch(records, self._operations, sharing.run, removes=True)
        return await sharing.beside(batch)

    async def _batch(
        self,
        records: list[EventRecord],
        queue: FifoQueue[Operation],
        process: Process,
        *,
        removes: bool = False,
    ) -> dict[str, Any]:
        """Process the records of `queue`; `removes` is as for `FifoQueue.decode_record`."""

        async def succeeds(record: EventRecord) -> bool:
            try:
                handle = queue.decode_record(record, removes=removes)
            except UndecodableMessageError as error:
                extra = {"action": "undecodable", "message_id": record["messageId"]}
                logger.error("Record not processed: %s", error, extra=extra)  # noqa: TRY400 - expected
                return False
            return await process(handle)

        return await process_batch(records, succeeds)

    def _sharing(self, process: Process, deadline: float | None) -> Sharing:
        return Sharing(
            operations=self._operations,
            process=process,
            clock=self._clock,
            turns=self._settings.worker_turns,
            turn_limit_s=self._settings.turn_limit_s,
            deadline=deadline,
            lag_s=lambda: self._adapter.keeper.lag_s,
        )

    def _deadline(self, context: Any) -> float | None:
        seconds = left_s(context)
        return None if seconds is None else self._clock.monotonic() + seconds

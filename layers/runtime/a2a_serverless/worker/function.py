"""The worker as a Lambda function behind an SQS event source, and turns that share an invocation.

A turn that waits for its model occupies the whole process. So while a turn runs, the process asks
the queue for others. It pulls only while it has time to finish what it gets, and only once a turn
has run for a second, so that quick agents pay for no poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import field
from functools import partial
from typing import Any, Final, TypeVar

from a2a.server.agent_execution import AgentExecutor

from a2a_serverless.clock import Clock, first_of
from a2a_serverless.errors import A2AServerlessError, InvalidArgumentError, UndecodableMessageError
from a2a_serverless.observability import metrics
from a2a_serverless.queues.batch import EventFunction, left_s, process_batch
from a2a_serverless.queues.fifo import EventRecord, FifoQueue, Handle
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.head import Operation
from a2a_serverless.values import dataclass
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.adapter import MOST_AT_ONCE, WorkerAdapter
from a2a_serverless.worker.loops import have_threads, run_to_end

T = TypeVar("T")

logger = logging.getLogger(__name__)

POLL_S: Final = 2.0
"""Seconds of one poll: an invocation may have to wait that long before it returns."""
LONG_TURN_S: Final = 1.0
"""Seconds that a turn must have run before others are pulled."""
SPARE_S: Final = 15.0
"""Seconds between the limit of a turn that is pulled now and the deadline of its process."""
LAG_S: Final = 0.25
"""Seconds of lag above which a loop has no time for more turns."""
LOOK_S: Final = 0.25
"""Seconds between two checks whether a poll may begin."""
FLUSH_EVERY_S: Final = 60.0
"""Seconds between two lines of metrics of a long invocation."""


_Process = Callable[[Handle[Operation]], Awaitable[bool]]
"""Works on one delivery to its end; returns True if it is done and acknowledged."""


@dataclass(kw_only=True, eq=False)
class _Sharing:
    """The deliveries that one process works on at the same time, from its first to its last.

    Args:
        operations: is pulled from.
        process: works on each delivery.
        clock: the source of time.
        turns: the most deliveries at a time.
        turn_limit_s: the longest run of one turn, in seconds.
        deadline: the monotonic second by which all has to be over; None without one.
        lag_s: returns how many seconds late the loop last answered.
    """

    operations: FifoQueue[Operation]
    process: _Process
    clock: Clock
    turns: int
    turn_limit_s: float
    deadline: float | None = None
    lag_s: Callable[[], float] = lambda: 0.0
    _begun: dict[object, float] = field(default_factory=dict, init=False)
    """When the deliveries that are worked on have begun, in monotonic seconds, by their place."""
    _has_queue: bool = field(default=True, init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`, whose deliveries go through `run`, and pull other deliveries meanwhile.

        Return what `work` returns, once no delivery is worked on and no poll is under way: if the
        process were frozen during a poll, the deliveries would wait until their visibility ends.
        """
        own = asyncio.create_task(work)
        own.add_done_callback(lambda _: self._changed.set())
        flushing = asyncio.create_task(flush_now_and_then(self.clock))
        try:
            async with asyncio.TaskGroup() as pulled:
                while self._begun or not own.done():
                    self._changed.clear()
                    if self._may_poll():
                        for handle in await self._poll():
                            pulled.create_task(self.run(handle, self._take()))
                    else:
                        await first_of(self.clock.sleep(LOOK_S), self._changed.wait())
            return await own
        finally:
            for task in (own, flushing):
                task.cancel()
            await asyncio.gather(own, flushing, return_exceptions=True)

    async def run(self, handle: Handle[Operation], place: object = None) -> bool:
        """Work on one delivery; return True if it is done and acknowledged."""
        place = place or self._take()
        try:
            return await self.process(handle)
        finally:
            del self._begun[place]
            self._changed.set()

    def idle(self) -> int:
        """Return how many places may get a delivery before all that is worked on has ended."""
        ends_at = self.clock.monotonic() + POLL_S + self.turn_limit_s + SPARE_S
        is_in_time = self.deadline is None or ends_at <= self.deadline
        is_free = self.lag_s() < LAG_S
        is_open = bool(self._begun) and is_in_time and is_free and self._has_queue
        return self.turns - len(self._begun) if is_open else 0

    def _may_poll(self) -> bool:
        now = self.clock.monotonic()
        return self.idle() > 0 and any(now - at >= LONG_TURN_S for at in self._begun.values())

    async def _poll(self) -> list[Handle[Operation]]:
        """Return what one poll brings; if it fails, return nothing and end all polling."""
        free = self.turns - len(self._begun)
        try:
            return await self.operations.pull(min(MOST_AT_ONCE, free), POLL_S)
        except A2AServerlessError as error:
            self._has_queue = False
            extra = {"action": "pull_failed"}
            logger.error("No more turns are pulled: %s", error, extra=extra)  # noqa: TRY400 - its sentence says all
            return []

    def _take(self) -> object:
        place = object()
        self._begun[place] = self.clock.monotonic()
        return place


async def flush_now_and_then(clock: Clock) -> None:
    """Write the metrics of a process each minute, until cancelled."""
    while True:
        await clock.sleep(FLUSH_EVERY_S)
        metrics.flush()


class WorkerFunction(EventFunction):
    """Runs batches of operations: several tasks at a time, each task's operations in their order.

    With `worker_turns` above 1 it pulls further operations while its turns run.
    What it must not run beside others it sends to the quarantine queue, and an invocation whose
    event comes from there runs its turn alone.

    Raises:
        ConfigurationError: the settings of shared turns do not fit one another, or there is no
            quarantine queue.
    """

    def __init__(self, backends: Backends, agent: AgentExecutor, settings: Settings) -> None:
        settings.check_sharing()
        self._operations = backends.operations
        shares = settings.worker_turns > 1
        self._quarantine = backends.quarantining() if shares else None
        self._settings = settings
        self._clock = backends.storage.clock
        self._adapter = WorkerAdapter(backends, agent, settings)
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
        self._adapter.shares.idle = sharing.idle
        # Acknowledged at once, as other turns may run on: its group's next message waits for it.
        batch = self._batch(records, self._operations, sharing.run, removes=True)
        return await sharing.beside(batch)

    async def _batch(
        self,
        records: list[EventRecord],
        queue: FifoQueue[Operation],
        process: _Process,
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
                # Not acknowledged: received too often, it becomes a dead letter, which the sweeper
                # keeps.
                return False
            return await process(handle)

        return await process_batch(records, succeeds)

    def _sharing(self, process: _Process, deadline: float | None) -> _Sharing:
        return _Sharing(
            operations=self._operations,
            process=process,
            clock=self._clock,
            turns=self._settings.worker_turns,
            turn_limit_s=self._settings.turn_limit_s,
            deadline=deadline,
            lag_s=lambda: self._adapter.heartbeat.lag_s,
        )

    def _deadline(self, context: Any) -> float | None:
        seconds = left_s(context)
        return None if seconds is None else self._clock.monotonic() + seconds

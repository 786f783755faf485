"""Running operations: the worker that takes deliveries of a queue and runs one agent on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from a2a.server.agent_execution import AgentExecutor

from a2a_serverless import faults
from a2a_serverless.clock import Clock
from a2a_serverless.errors import A2AServerlessError, ConfigurationError
from a2a_serverless.observability import metrics
from a2a_serverless.propagated import propagated_variables
from a2a_serverless.queues.fifo import FifoQueue, Handle
from a2a_serverless.settings import Settings
from a2a_serverless.storage.activity import TELL_MS, tell_of_process
from a2a_serverless.storage.allowance import Sleepers
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.fold import Log
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.delivery import Delivery
from a2a_serverless.worker.heartbeat import Heartbeat
from a2a_serverless.worker.lease import HeadPoller
from a2a_serverless.worker.loops import have_threads, prepare_loop
from a2a_serverless.worker.meter import Budgets
from a2a_serverless.worker.shares import Shares

logger = logging.getLogger(__name__)

DEADLINE_MARGIN_S = 10.0
LONG_POLL_S = 20.0
"""Seconds of one poll in pull mode."""
MOST_AT_ONCE = 10
"""Deliveries that one poll brings at most."""
PULL_LIMIT_S = 11.5 * 3600
"""The longest turn in pull mode: SQS lets a message be invisible for 12 hours at most."""


class Presence:
    """Tells once a minute that this process works, while it does.

    Args:
        table: where that is stored.
        clock: tells the minutes.
    """

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._told_at = -TELL_MS
        self.turns = 0
        """The turns that it runs now."""

    @asynccontextmanager
    async def over_turn(self) -> AsyncIterator[None]:
        """Count a turn for the block, and tell of the process beside it if that is due."""
        self.turns += 1
        is_due = not 0 <= self._clock.now_ms() - self._told_at < TELL_MS
        telling = asyncio.create_task(self.tell()) if is_due else None
        try:
            yield
        finally:
            self.turns -= 1
            if telling is not None:
                await telling

    async def tell(self) -> None:
        """Tell that the process works, at most once a minute; an error is logged."""
        now_ms = self._clock.now_ms()
        if 0 <= now_ms - self._told_at < TELL_MS:
            return
        self._told_at = now_ms
        try:
            await tell_of_process(self._table, turns=self.turns, now_ms=now_ms)
        except A2AServerlessError as error:
            extra = {"action": "presence_failed"}
            logger.warning("This process is not seen as working: %s", error, extra=extra)


class Watch:
    """Hears of a worker's attempts, with what the log does not say: the content of their tasks."""

    def began(self, log: Log) -> None:
        """Take note of an attempt that begins; `log` was read from its beginning."""

    def ended(self, log: Log, head: Head) -> None:
        """Take note that this attempt has ended its turn; `head` is as it has left the task."""


class WorkerAdapter:
    """Runs one agent on the operations of a queue.

    Args:
        backends: storage and queue, seen through any scope.
        agent: runs all turns, several at a time.
        settings: retries, visibility and the time a cancel may take.
        deadline_margin_s: how long before its deadline a turn is given back.
        has_heartbeat: False where the queue keeps a delivery for as long as a turn can take.
        heartbeat: runs what goes on while the agent blocks its event loop.
        watch: hears of the attempts.
        presence: that of the process, if it has several adapters.

    Raises:
        ConfigurationError: A2A_CONTEXT_VARIABLES names something that is no context variable; or
            the price list cannot be used.
    """

    def __init__(
        self,
        backends: Backends,
        agent: AgentExecutor,
        settings: Settings,
        *,
        deadline_margin_s: float = DEADLINE_MARGIN_S,
        has_heartbeat: bool = True,
        heartbeat: Heartbeat | None = None,
        watch: Watch | None = None,
        presence: Presence | None = None,
    ) -> None:
        self.watch = watch
        self.backends = backends
        self.agent = agent
        self.propagated = propagated_variables(settings.context_variables)
        self.settings = settings
        self.clock = backends.storage.clock
        self.retry = settings.retry()
        self.budgets = Budgets.of(settings)
        self.inline = settings.inline(settings.public_url or settings.push_issuer)
        self.heartbeat = heartbeat or Heartbeat()
        self.presence = presence or Presence(backends.storage.table, self.clock)
        self.poller = HeadPoller(backends.storage, self.clock, beside=self.presence.tell)
        self.since = self.clock.now_ms()
        """A message that waited for the process to start is no sign of a backlog."""
        self.shares = Shares(
            backends.storage,
            backends.operations,
            self.clock,
            # Without shared turns nothing consumes that queue.
            quarantine=backends.quarantine if settings.worker_turns > 1 else None,
            since=self.since,
        )
        self.sleepers = Sleepers(backends.storage, settings.sleeping_turns_per_caller)
        self.deadline_margin_s = deadline_margin_s
        self.has_heartbeat = has_heartbeat

    async def process(
        self,
        handle: Handle[Operation],
        *,
        deadline: float | None = None,
        quarantine: FifoQueue[Operation] | None = None,
        is_quarantined: bool = False,
    ) -> bool:
        """Run one delivery to its end; nothing runs on afterwards.

        Return True if it is done and acknowledged. Return False if it will be delivered again: then
        an event source has to be told that it failed. `deadline` is in the clock's monotonic
        seconds; the turn is given back some time before it. `quarantine` takes the operation if its
        turn must have no neighbours; None if the process has no other turns, or they are no danger
        to one another. `is_quarantined`: the operation comes from there.
        """
        faults.point("after-receive")
        prepare_loop(asyncio.get_running_loop())
        delivery = Delivery(
            self, handle, deadline, quarantine=quarantine, is_quarantined=is_quarantined
        )
        async with self.presence.over_turn():
            is_done = await delivery.process()
            if delivery.instead is not None:
                await self.process(delivery.instead, deadline=deadline, quarantine=quarantine)
            return is_done

    async def serve(self, *, concurrency: int) -> None:
        """Pull operations, `concurrency` at a time, until the queue is shut down.

        One poll at a time asks for as many as find a place. Cancelled after the queue's shutdown,
        it gives back what it works on.

        Raises:
            ConfigurationError: there is no such queue any more; the turns that ran have ended.
        """
        operations, running = self.backends.operations, set[asyncio.Task[None]]()
        missing: ConfigurationError | None = None
        have_threads(asyncio.get_running_loop(), concurrency)
        self.shares.idle = lambda: concurrency - len(running)
        async with self.heartbeat.over(), asyncio.TaskGroup() as deliveries:
            while not operations.is_closed:
                if len(running) >= concurrency:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    continue  # the callback has removed what is done
                free = concurrency - len(running)
                try:
                    handles = await operations.pull(min(MOST_AT_ONCE, free), LONG_POLL_S)
                except ConfigurationError as error:  # raised in the group, it would end the turns
                    missing = error
                    break
                if not handles:
                    await self.presence.tell()
                for handle in handles:
                    task = deliveries.create_task(self._work(handle))
                    running.add(task)
                    task.add_done_callback(running.discard)
        if missing is not None:
            raise missing

    async def _work(self, handle: Handle[Operation]) -> None:
        try:
            await self.process(handle, deadline=self.clock.monotonic() + PULL_LIMIT_S)
        finally:
            # No invocation ends here: what is not written yet is lost if the process is killed.
            metrics.flush()

"""Canceling a task that no agent works on: one that is paused, or that waits for a worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.types import TaskState

from a2a_serverless.clock import Clock
from a2a_serverless.errors import TurnFinishedError
from a2a_serverless.observability import tracing
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.endings import cancel_task, canceled
from a2a_serverless.storage.log import Log
from a2a_serverless.tasks.attempts import Canceled, RetryPolicy, on_cancel, on_current_turn
from a2a_serverless.tasks.head import is_terminal
from a2a_serverless.tasks.identity import new_token
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.worker.claims import Ownership, claim
from a2a_serverless.worker.executor import TurnQueue
from a2a_serverless.worker.failures import StaleStateError
from a2a_serverless.worker.loops import StartedTasks, called, contained, end_started, limited
from a2a_serverless.worker.translation import TurnView
from a2a_serverless.worker.turn import cancel_context_of
from a2a_serverless.worker.writer import TurnWriter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canceling:
    """Ends a task as canceled, after its agent was told."""

    agent: AgentExecutor
    storage: DurableStorage
    retry: RetryPolicy
    timeout_s: float
    flush_after_s: float
    clock: Clock

    async def run(
        self, log: Log, operation: Operation, may_write: Callable[[], bool] = lambda: True
    ) -> None:
        """Cancel the task of `log`, which was read from its beginning.

        The agent's `cancel()` is called unless no agent has seen the turn. The task is canceled
        even if that raises, unless the agent gives it another end. `may_write` returns True while
        the delivery is this worker's: `cancel()` may take longer than its visibility.

        Raises:
            ConcurrencyError: another worker has the turn, or the delivery is lost; it has to
                come again.
        """
        head = log.head
        way = on_cancel(head, operation)
        try:
            if way is Canceled.ALONE:
                await cancel_task(self.storage, head)
            else:
                await self._with_agent(log, operation, way, may_write)
        except TurnFinishedError:
            pass  # the task was ended elsewhere
        extra = {"action": "canceled", "task_id": head.task_id, "turn": head.turn}
        logger.info("Task canceled", extra=extra)

    async def _with_agent(
        self, log: Log, operation: Operation, way: Canceled, may_write: Callable[[], bool]
    ) -> None:
        head = log.head
        params = on_current_turn(operation.params, head)
        # A paused task has no turn to claim: its last attempt is over, and no other one follows.
        own = Ownership(params=params, token=None if way is Canceled.PAUSED else new_token())
        if way is Canceled.CLAIMED:
            head = await claim(self.storage, log, own, self.retry)
        context = cancel_context_of(log, tracing.carried())
        async with TurnWriter(
            log=self.storage,
            head=head,
            own=own,
            clock=self.clock,
            may_write=may_write,
            flush_after_s=self.flush_after_s,
        ) as writer:
            queue = TurnQueue(writer, TurnView(log.fold(), context.current_task), self.storage)
            await self._ask(context, queue)
            queue.shut()
            await writer.drain()  # the agent's own end may not be committed yet
            state = queue.state or TaskState.TASK_STATE_UNSPECIFIED
            has_ended = is_terminal(state) and queue.fault is None
            if isinstance(writer.failure, StaleStateError):  # so the agent's own end is not stored
                writer.discard()
                has_ended = False
            if not has_ended:
                writer.put(*canceled(writer.head).entries)
            await writer.flush()

    async def _ask(self, context: RequestContext, queue: TurnQueue) -> None:
        queue.is_cancelled = True
        started = StartedTasks()
        asking = contained(called(self.agent.cancel, context, queue), started)
        try:
            error = await limited(asking, clock=self.clock, seconds=self.timeout_s)
        finally:
            fields = {"task_id": context.task_id}
            await end_started(started, clock=self.clock, fields=fields)
        if error is not None:
            extra = {"action": "cancel_raised", "task_id": context.task_id}
            logger.warning("Agent's cancel() raised", extra=extra, exc_info=error)

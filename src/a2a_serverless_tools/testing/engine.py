"""The worker of production over backends in memory, and messages for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from a2a.server.agent_execution import AgentExecutor
from a2a.types import SendMessageRequest, Task

from a2a_serverless.clock import Clock
from a2a_serverless.errors import TaskNotFoundError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import Caller, TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.operations import Operation, OperationParams
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.agents import TurnAgents
from a2a_serverless.worker.keeper import Duty, Keeper, OnBlocked

T = TypeVar("T")


class InlineKeeper(Keeper):
    """A keeper without a thread: its duties follow the clock of the test's own loop."""

    @asynccontextmanager
    async def over(
        self,
        *duties: Duty,
        on_blocked: OnBlocked | None = None,  # noqa: ARG002 - without a thread nothing is noticed
    ) -> AsyncIterator[None]:
        stop = asyncio.Event()
        running = [asyncio.create_task(duty(stop)) for duty in duties]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*running)


class Engine:
    """Storage, queue and one worker: `open` and `go_on` accept messages, `adapter` runs turns.

    Args:
        agent: the agent that the worker runs; or a `TurnAgents`, which gives each turn its own.
        settings: settings as of a deployment.
        backends: by default new ones in memory.
        clock: by default the machine's.
        keeper: None: heartbeats and claims in a thread, as in production.
        has_heartbeat: as for `WorkerAdapter`.
    """

    def __init__(
        self,
        agent: AgentExecutor | TurnAgents,
        settings: Settings,
        *,
        backends: Backends | None = None,
        clock: Clock | None = None,
        keeper: Keeper | None = None,
        has_heartbeat: bool = True,
    ) -> None:
        self.settings = settings
        self.backends = backends or memory_backends(settings, clock)
        self.storage = self.backends.storage
        self.operations = self.backends.operations
        self.adapter = WorkerAdapter(
            self.backends, agent, settings, clock=clock, has_heartbeat=has_heartbeat, keeper=keeper
        )
        self.clock = self.adapter.clock

    async def open(
        self,
        request: SendMessageRequest,
        *,
        context_id: str,
        caller: Caller,
        scope: Scope | None = None,
    ) -> Head:
        """Create a task and enqueue its first turn; return HEAD as it is then.

        Without `scope` the task is in the storage's own scope.
        """
        storage = self._seen_by(scope)
        opened = await storage.open_task(context_id, request, caller=caller)
        await self.enqueue(opened.head)
        return opened.head

    async def go_on(
        self, task: Head, request: SendMessageRequest, *, caller: Caller, scope: Scope | None = None
    ) -> Head:
        """Accept a message for a task that waits for one, and enqueue its turn.

        Raises:
            TaskNotFoundError: the task is gone, or belongs to another scope.
            TaskTerminalStateError, TaskNotAcceptingMessagesError: the task takes no message.
        """
        storage = self._seen_by(scope)
        now = _found(await storage.head(task.task_id))
        head = await storage.commit(now, Commit(entries=(TurnOpened(request, caller),)))
        await self.enqueue(head, turn=head.next_turn or head.turn)
        return head

    async def enqueue(self, head: Head, *, turn: int | None = None, copy_number: int = 0) -> None:
        """Send the operation that runs a turn; by default the current one."""
        params = OperationParams.of(head, turn or head.turn, copy_number)
        await self.operations.send(Operation.to_run(params))

    async def cancel(self, head: Head) -> None:
        """Ask to cancel a task: mark HEAD and send the operation.

        Raises:
            TaskTerminalStateError: the task has ended.
        """
        await self.storage_of(head).request_cancel(head.task_id)
        await self.operations.send(Operation.to_cancel(OperationParams.of(head, head.turn)))

    async def head(self, task: Head) -> Head:
        """Return the task's newest HEAD.

        Raises:
            TaskNotFoundError: the task is gone.
        """
        return _found(await self.storage_of(task).head(task.task_id))

    async def task(self, task: Head) -> Task:
        """Return the Task as a client sees it; raise what `head` raises."""
        return _found(await self.storage_of(task).load_task(task.task_id))

    def storage_of(self, task: Head) -> DurableStorage:
        """Return the storage in the scope of a task."""
        is_own = task.scope == self.storage.scope.digest
        return self._seen_by(None if is_own else Scope(task.scope))

    def _seen_by(self, scope: Scope | None) -> DurableStorage:
        return self.storage if scope is None else self.storage.for_scope(scope)


def _found(value: T | None) -> T:
    if value is None:
        raise TaskNotFoundError
    return value

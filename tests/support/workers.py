"""A worker over memory backends, driven delivery by delivery, and a clock that stands still."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from a2a_serverless.clock import Clock
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.entries import Caller, TurnOpened
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.operations import Operation, OperationParams
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.agents import TurnAgents
from a2a_serverless.worker.keeper import Duty, Keeper, OnBlocked
from tests.support.messages import request

S = TaskState
Execute = Callable[[RequestContext, EventQueue], Awaitable[None]]

_ROUNDS = 100


class PacedClock:
    """A Clock that stands still until a test moves it; who sleeps wakes when the time has come."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._now = 0.0
        self._sleepers: set[tuple[float, asyncio.Future[None]]] = set()
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._start_ms + int(self._now * 1000)

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        sleeper = (self._now + seconds, asyncio.get_running_loop().create_future())
        self._sleepers.add(sleeper)
        try:
            await sleeper[1]
        finally:
            self._sleepers.discard(sleeper)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, one sleeper after the other, and everybody do what follows."""
        await idle()
        until = self._now + seconds
        while due := [at for at, woken in self._sleepers if at <= until and not woken.done()]:
            self._now = max(self._now, min(due))
            for at, woken in tuple(self._sleepers):
                if at <= self._now and not woken.done():
                    woken.set_result(None)
            await idle()
        self._now = until
        await idle()


async def idle() -> None:
    """Let every task of the loop go as far as it can."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


class Agent(AgentExecutor):
    """An executor made of a function; it remembers its starts and its cancels."""

    def __init__(self, execute: Execute, cancel: Execute | None = None) -> None:
        self._execute = execute
        self._cancel = cancel
        self.started: list[RequestContext] = []
        self.cancelled: list[RequestContext] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.started.append(context)
        await self._execute(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.cancelled.append(context)
        if self._cancel is not None:
            await self._cancel(context, event_queue)


def status(context: RequestContext, state: TaskState, text: str = "") -> TaskStatusUpdateEvent:
    """A status update of the context's task."""
    message = Message(message_id="s", role=Role.ROLE_AGENT, parts=[Part(text=text)])
    return TaskStatusUpdateEvent(
        task_id=context.task_id,
        context_id=context.context_id,
        status=TaskStatus(state=state, message=message if text else None),
    )


def chunk(
    context: RequestContext, text: str, *, artifact_id: str = "a", append: bool = True
) -> TaskArtifactUpdateEvent:
    """A chunk of an artifact of the context's task."""
    return TaskArtifactUpdateEvent(
        task_id=context.task_id,
        context_id=context.context_id,
        artifact=Artifact(artifact_id=artifact_id, parts=[Part(text=text)]),
        append=append,
    )


async def complete(context: RequestContext, queue: EventQueue) -> None:
    """An agent that completes at once."""
    await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))


class InlineKeeper(Keeper):
    """A keeper without a thread: its duties follow the clock of the test's own loop."""

    @asynccontextmanager
    async def over(self, *duties: Duty, on_blocked: OnBlocked | None = None) -> AsyncIterator[None]:
        stop = asyncio.Event()
        running = [asyncio.create_task(duty(stop)) for duty in duties]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*running)


class Bench:
    """Memory backends and one worker; `deliver` takes the next operation, `work` runs it."""

    def __init__(
        self,
        agent: AgentExecutor | TurnAgents,
        *,
        clock: Clock | None = None,
        backends: Backends | None = None,
        has_heartbeat: bool = False,
        **settings: Any,
    ) -> None:
        self.settings = Settings().model_copy(update=settings)
        self.backends = backends or memory_backends(self.settings, clock)
        self.storage = self.backends.storage
        self.operations = self.backends.operations
        self.adapter = WorkerAdapter(
            self.backends,
            agent,
            self.settings,
            clock=clock,
            has_heartbeat=has_heartbeat,
            keeper=None if has_heartbeat else InlineKeeper(),
        )
        self.clock = self.adapter.clock

    async def send(self, text: str = "hello", *, caller: Caller | None = None) -> Head:
        """Create a task and enqueue its first turn."""
        opened = await self.storage.open_task("ctx", request(text), caller=caller or Caller())
        await self.enqueue(opened.head)
        return opened.head

    async def follow_up(self, task: Head, text: str, *, message_id: str | None = None) -> Head:
        """Accept a message for a task that waits for one, and enqueue its turn."""
        opened = TurnOpened(request(text, message_id=message_id))
        head = await self.storage.commit(await self.head(task), Commit(entries=(opened,)))
        await self.enqueue(head, turn=head.next_turn or head.turn)
        return head

    async def enqueue(self, head: Head, *, turn: int | None = None, copy_number: int = 0) -> None:
        """Send the operation that runs a turn."""
        await self.operations.send(
            Operation.to_run(params_of(head, turn=turn, copy_number=copy_number))
        )

    async def cancel(self, head: Head) -> None:
        """Ask to cancel a task: raise the flag and send the operation."""
        await self.storage.request_cancel(head.task_id)
        await self.operations.send(Operation.to_cancel(params_of(head)))

    async def deliver(self) -> Handle[Operation]:
        """The next delivery of the queue."""
        return await anext(self.operations.deliveries())

    async def work(self, *, deadline: float | None = None) -> bool:
        """Take the next delivery and run it."""
        return await self.adapter.process(await self.deliver(), deadline=deadline)

    async def head(self, task: Head) -> Head:
        head = await self.storage.head(task.task_id)
        assert head is not None
        return head

    async def task(self, task: Head) -> Task:
        loaded = await self.storage.load_task(task.task_id)
        assert loaded is not None
        return loaded

    async def records(self, task: Head) -> Sequence[Record]:
        """The commits of a task."""
        log = await self.storage.read(task.task_id)
        assert log is not None
        return log.records


def params_of(head: Head, *, turn: int | None = None, copy_number: int = 0) -> OperationParams:
    """The ids of an operation on the task of `head`."""
    return OperationParams(
        scope=head.scope,
        task_id=head.task_id,
        incarnation=head.incarnation,
        turn=turn or head.turn,
        copy_number=copy_number,
    )


def status_text(task: Task) -> str:
    """The text of a task's status message."""
    return "".join(part.text for part in task.status.message.parts)


def artifact_texts(task: Task) -> dict[str, list[str]]:
    """The text parts of each artifact."""
    return {a.artifact_id: [part.text for part in a.parts] for a in task.artifacts}


def user_request(*parts: Part, **fields: Any) -> SendMessageRequest:
    """A send with these parts."""
    message = Message(message_id="u", role=Role.ROLE_USER, parts=parts, **fields)
    return SendMessageRequest(message=message)

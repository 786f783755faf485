"""A worker over memory backends, driven delivery by delivery, and a clock that stands still."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from a2a import types
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_serverless import aws
from a2a_serverless.clock import Clock
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.heartbeat import Heartbeat
from a2a_serverless.worker.lease import HeadPoller, Lease
from a2a_serverless_tools.testing.clock import PacedClock, idle
from a2a_serverless_tools.testing.process import _Engine, _InlineHeartbeat
from tests.support.messages import request
from tests.support.present import present

__all__ = ["Agent", "Bench", "Execute", "PacedClock", "S", "_InlineHeartbeat", "answered", "idle"]
__all__ += ["artifact_texts", "chunk", "complete", "lease_of", "params_of", "status", "status_text"]
__all__ += ["user_request"]

S = types.TaskState
Execute = Callable[[RequestContext, EventQueue], Awaitable[None]]


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


def _ids(context: RequestContext) -> dict[str, Any]:
    return {"task_id": context.task_id, "context_id": context.context_id}


def status(
    context: RequestContext, state: types.TaskState, text: str = ""
) -> types.TaskStatusUpdateEvent:
    parts = [types.Part(text=text)]
    message = types.Message(message_id="s", role=types.Role.ROLE_AGENT, parts=parts)
    said = types.TaskStatus(state=state, message=message if text else None)
    return types.TaskStatusUpdateEvent(**_ids(context), status=said)


def chunk(
    context: RequestContext, text: str, *, artifact_id: str = "a", append: bool = True
) -> types.TaskArtifactUpdateEvent:
    """A chunk of an artifact of the context's task."""
    artifact = types.Artifact(artifact_id=artifact_id, parts=[types.Part(text=text)])
    return types.TaskArtifactUpdateEvent(**_ids(context), artifact=artifact, append=append)


async def complete(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(status(context, S.TASK_STATE_COMPLETED, "done"))


class Bench(_Engine):
    """An engine on texts: `deliver` takes the next operation, `work` runs it."""

    def __init__(
        self,
        agent: AgentExecutor,
        *,
        clock: Clock | None = None,
        backends: Backends | None = None,
        has_heartbeat: bool = False,
        **settings: Any,
    ) -> None:
        self.settings = Settings().model_copy(update=settings)
        self.backends = backends or memory_backends(self.settings, clock)
        own = None if has_heartbeat else _InlineHeartbeat()
        adapter = WorkerAdapter(
            self.backends, agent, self.settings, heartbeat=own, has_heartbeat=has_heartbeat
        )
        super().__init__(self.backends, adapter)
        self.clock = adapter.clock

    async def send(self, text: str = "hello", *, caller: Caller | None = None) -> Head:
        """Create a task and enqueue its first turn."""
        by, scope = caller or Caller(), self.storage.scope
        return await self.open(request(text), context_id="ctx", caller=by, scope=scope)

    async def follow_up(self, task: Head, text: str, *, message_id: str | None = None) -> Head:
        """Accept a message for a task that waits for one, and enqueue its turn."""
        said = request(text, message_id=message_id)
        return await self.go_on(task, said, caller=Caller(), scope=self.storage.scope)

    async def deliver(self) -> Handle[Operation]:
        return await anext(self.operations.deliveries())

    async def work(self, *, deadline: float | None = None) -> bool:
        """Take the next delivery and run it; return True if it is done and acknowledged."""
        return await self.adapter.process(await self.deliver(), deadline=deadline)

    async def records(self, task: Head) -> Sequence[Record]:
        return present(await self.storage_of(task).read(task.task_id)).records


@contextmanager
def answered(clock: PacedClock) -> Iterator[Callable[[Awaitable[Any]], Awaitable[Any]]]:
    """Yield a function that does some work while time passes, from the end of a sleep to the next.

    Time stands still until AWS has answered, so that it is the same with a slow answer.
    """
    asked = set[asyncio.Future[Any]]()
    ask = aws.call

    async def call(method: Callable[..., Any], /, **kwargs: Any) -> Any:
        answer = asyncio.ensure_future(ask(method, **kwargs))
        asked.add(answer)
        try:
            return await answer
        finally:
            asked.discard(answer)

    async def during(work: Awaitable[Any]) -> Any:
        working = asyncio.ensure_future(work)
        while not working.done():
            await idle()
            if asked:
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            elif clock._sleepers and not working.done():
                at = min(at for at, _ in clock._sleepers)
                await clock.pass_time(max(0.0, at - clock.monotonic()))
        return await working

    with mock.patch.object(aws, "call", call):
        yield during


def params_of(head: Head, *, copy_number: int = 0) -> OperationParams:
    """The ids of an operation on the task of `head`."""
    return OperationParams.of(head, head.turn.number, copy_number)


def lease_of(log: DurableStorage, head: Head, *, token: str | None = "own", **more: Any) -> Lease:
    """A lease of the turn of `head`, with a heartbeat of its own."""
    clock = more.pop("clock", log.clock)
    more |= {"heartbeat": Heartbeat(), "poller": HeadPoller(log, clock), "clock": clock}
    return Lease(storage=log, params=params_of(head), head=head, token=token, **more)


def status_text(task: types.Task) -> str:
    return "".join(part.text for part in task.status.message.parts)


def artifact_texts(task: types.Task) -> dict[str, list[str]]:
    return {a.artifact_id: [part.text for part in a.parts] for a in task.artifacts}


def user_request(*parts: types.Part, **fields: Any) -> types.SendMessageRequest:
    message = types.Message(message_id="u", role=types.Role.ROLE_USER, parts=parts, **fields)
    return types.SendMessageRequest(message=message)

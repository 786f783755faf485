"""The same executor behind two servers, the SDK's own and ours, and what a client sees of each."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.types import ASGIApp

from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.states import state_name
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from tests.conformance.request_variables import CARRIED, RequestVariables

CARD = AgentCard(
    name="Compared",
    description="Runs on two servers.",
    version="1.0.0",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="any", name="Any", description="Anything.", tags=["test"])],
    supported_interfaces=[
        AgentInterface(url="http://test/", protocol_binding="JSONRPC", protocol_version="1.0")
    ],
)
ANSWER_S = 20.0

Side = Callable[[AgentExecutor], AbstractAsyncContextManager[ASGIApp]]


@asynccontextmanager
async def stock(executor: AgentExecutor) -> AsyncIterator[ASGIApp]:
    """The SDK's own handler, in this process."""
    handler = DefaultRequestHandler(executor, InMemoryTaskStore(), CARD)
    try:
        yield Starlette(routes=create_jsonrpc_routes(handler, "/"))
    finally:
        await handler.aclose()


@asynccontextmanager
async def durable(executor: AgentExecutor) -> AsyncIterator[ASGIApp]:
    """Our application and our worker, on memory backends."""
    settings = Settings(
        auth="none",
        retry_base_s=0.01,
        cancel_timeout_s=5,
        blocking_limit_s=20,
        context_variables=CARRIED,
    )
    backends = memory_backends(settings)
    worker = WorkerAdapter(backends, executor, settings, has_heartbeat=False)
    serving = asyncio.create_task(worker.serve(concurrency=2))
    try:
        yield create_app(settings, backends, CARD, door="stream")
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


@dataclass(kw_only=True)
class Play:
    """A client that talks to one of the sides, and notes what it was answered."""

    client: Client
    executor: Any
    answers: list[str] = field(default_factory=list)
    _message_ids: int = 0

    async def send(
        self,
        text: str,
        *,
        in_context: bool = True,
        message_id: str | None = None,
        tenant: str = "",
        extension: str = "",
        headers: Mapping[str, str] | None = None,
        immediately: bool = False,
        waits_s: float = ANSWER_S,
    ) -> None:
        """Send a message: the first one opens the task, the others belong to it."""
        self._message_ids += 1
        message = Message(
            message_id=message_id or f"message-{self._message_ids}",
            role=Role.ROLE_USER,
            parts=[Part(text=text)],
        )
        task = await self.task()
        if task is not None:
            message.task_id = task.id
            message.context_id = task.context_id if in_context else ""
        request = SendMessageRequest(
            message=message,
            tenant=tenant,
            configuration=SendMessageConfiguration(return_immediately=immediately),
        )
        parameters = ServiceParametersFactory.create_from(
            dict(headers or {}), [with_a2a_extensions([extension] if extension else [])]
        )
        context = ClientCallContext(service_parameters=parameters)
        try:
            async with asyncio.timeout(waits_s):
                sending = self.client.send_message(request, context=context)
                (answer,) = [event async for event in sending]
        except TimeoutError:
            self.answers.append("none")
        except A2AError as error:
            self.answers.append(type(error).__name__)
        else:
            self.answers.append(_described(answer))

    async def cancel(self, *, headers: Mapping[str, str] | None = None) -> None:
        """Cancel the task."""
        task = await self.task()
        assert task is not None
        context = ClientCallContext(service_parameters=dict(headers or {}))
        try:
            canceled = await self.client.cancel_task(CancelTaskRequest(id=task.id), context=context)
        except A2AError as error:
            self.answers.append(type(error).__name__)
        else:
            self.answers.append(f"task {_state(canceled)}")

    async def reaches(self, *states: TaskState) -> None:
        """Wait until the task is in one of `states`."""
        async with asyncio.timeout(ANSWER_S):
            task = await self.task()
            while task is None or task.status.state not in states:
                await asyncio.sleep(0.01)
                task = await self.task()

    async def task(self) -> Task | None:
        """The one task there is."""
        for tenant in ("", "acme"):
            listed = await self.client.list_tasks(ListTasksRequest(tenant=tenant))
            if listed.tasks:
                request = GetTaskRequest(id=listed.tasks[0].id, tenant=tenant)
                return await self.client.get_task(request)
        return None


Script = Callable[[Play], Awaitable[None]]


async def outcome(side: Side, executor: Any, script: Script) -> dict[str, Any]:
    """What a client has seen when the script is over, and the task that is left."""
    async with (
        side(executor) as app,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(RequestVariables(app)), base_url="http://test"
        ) as http,
    ):
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(CARD)
        play = Play(client=client, executor=executor)
        await script(play)
        task = await play.task()
    seen = {"answers": play.answers, "seen": executor.seen}
    return seen if task is None else seen | _task(task)


def _task(task: Task) -> dict[str, Any]:
    return {
        "state": _state(task),
        "message": re.sub("[0-9a-f]{16}", "<id>", _text(task.status.message)),
        "history": [f"{_role(message)}: {_text(message)}" for message in task.history],
        "artifacts": {a.artifact_id: [a.name, *map(_part, a.parts)] for a in task.artifacts},
        "metadata": MessageToDict(task.metadata),
        "artifact metadata": [MessageToDict(a.metadata) for a in task.artifacts],
    }


def _described(answer: StreamResponse) -> str:
    if answer.HasField("message"):
        return f"message {_text(answer.message)!r}"
    return f"task {_state(answer.task)}"


def _state(task: Task) -> str:
    return state_name(task.status.state).removeprefix("TASK_STATE_")


def _text(message: Message) -> str:
    return "".join(map(_part, message.parts))


def _part(part: Part) -> str:
    return part.text or part.url or str(MessageToDict(part.data))


def _role(message: Message) -> str:
    return "user" if message.role == Role.ROLE_USER else "agent"

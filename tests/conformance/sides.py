"""The same executor behind two servers, the SDK's own and ours, and what a client sees of each."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from a2a import types
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.types import ASGIApp

from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.head import state_name
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.lease import HeadPoller
from tests.support.present import present

CARD = types.AgentCard(
    name="Compared",
    description="Runs on two servers.",
    version="1.0.0",
    capabilities=types.AgentCapabilities(streaming=True),
    default_input_modes=["text/plain", "application/octet-stream", "application/pdf"],
    default_output_modes=["text/plain"],
    skills=[types.AgentSkill(id="any", name="Any", description="Anything.", tags=["test"])],
    supported_interfaces=[
        types.AgentInterface(url="http://test/", protocol_binding="JSONRPC", protocol_version="1.0")
    ],
)
ANSWER_S = 20.0
_UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MESSAGE_ID = re.compile(f"message-[0-9]+|m|{_UUID.pattern}")
"""The client's, and an agent's."""
_CORRELATION_ID = re.compile("(?<=id: )[0-9a-f]{16}")

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
    settings = Settings(auth="none", retry_base_s=0.01, cancel_timeout_s=5, blocking_limit_s=20)
    backends = memory_backends(settings)
    worker = WorkerAdapter(backends, executor, settings, has_heartbeat=False)
    worker.poller = HeadPoller(backends.storage, worker.clock, interval_s=0.05)
    serving = asyncio.create_task(worker.serve(concurrency=2))
    try:
        yield create_app(settings, backends, CARD, entrypoint="stream")
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


@dataclass(kw_only=True)
class Play:
    """A client that talks to one of the sides, and notes what it was answered."""

    client: Client
    executor: Any
    answers: list[Any] = field(default_factory=list)
    _message_ids: int = 0

    async def send(
        self,
        text: str,
        *more: types.Part,
        in_context: bool = True,
        message_id: str | None = None,
        tenant: str = "",
        extension: str = "",
        immediately: bool = False,
        waits_s: float = ANSWER_S,
        **fields: Any,
    ) -> None:
        """Send a message: the first one opens the task, the others belong to it.

        It has the parts `more` and the message's `fields` beside its text, if there is one.
        """
        self._message_ids += 1
        message = types.Message(
            message_id=message_id or f"message-{self._message_ids}",
            role=types.Role.ROLE_USER,
            parts=[*([types.Part(text=text)] if text else []), *more],
            **fields,
        )
        task = await self.task()
        if task is not None:
            message.task_id = task.id
            message.context_id = task.context_id if in_context else ""
        request = types.SendMessageRequest(
            message=message,
            tenant=tenant,
            configuration=types.SendMessageConfiguration(return_immediately=immediately),
        )
        extensions = [with_a2a_extensions([extension] if extension else [])]
        parameters = ServiceParametersFactory.create(extensions)
        context = ClientCallContext(service_parameters=parameters)
        try:
            async with asyncio.timeout(waits_s):
                sending = self.client.send_message(request, context=context)
                answers = [event async for event in sending]
        except TimeoutError:
            self.answers.append("none")
        except A2AError as error:
            self.answers.append(type(error).__name__)
        else:
            self.answers += map(_answer, answers)

    async def cancel(self) -> None:
        """Cancel the task."""
        task = present(await self.task())
        try:
            canceled = await self.client.cancel_task(types.CancelTaskRequest(id=task.id))
        except A2AError as error:
            self.answers.append(type(error).__name__)
        else:
            self.answers.append(f"task {_state(canceled)}")

    async def reaches(self, *states: types.TaskState) -> None:
        """Wait until the task is in one of `states`."""
        async with asyncio.timeout(ANSWER_S):
            task = await self.task()
            while task is None or task.status.state not in states:
                await asyncio.sleep(0.01)
                task = await self.task()

    async def task(self) -> types.Task | None:
        """The one task there is."""
        for tenant in ("", "acme"):
            listed = await self.client.list_tasks(types.ListTasksRequest(tenant=tenant))
            if listed.tasks:
                request = types.GetTaskRequest(id=listed.tasks[0].id, tenant=tenant)
                return await self.client.get_task(request)
        return None


Script = Callable[[Play], Awaitable[None]]
Case = tuple[Callable[[], AgentExecutor], Script]
"""The agent that is compared, made anew for each side, and what is done to it."""


def says(*texts: str, **options: Any) -> Script:
    """One message after the other, each when the one before was answered."""

    async def script(play: Play) -> None:
        for text in texts:
            await play.send(text, **options)

    return script


async def cancels(play: Play, *, text: str = "go", **options: Any) -> None:
    """Cancel an agent at its work."""
    await play.send(text, immediately=True, **options)
    await play.reaches(types.TaskState.TASK_STATE_WORKING)
    await play.cancel()
    await play.reaches(types.TaskState.TASK_STATE_CANCELED, types.TaskState.TASK_STATE_FAILED)


async def outcome(
    side: Side, executor: Any, script: Script, *, streaming: bool = False
) -> dict[str, Any]:
    """What a client has seen when the script is over, and the task that is left.

    With `streaming` its answers are all events of its streams.
    """
    async with (
        side(executor) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http,
    ):
        client = ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(CARD)
        play = Play(client=client, executor=executor)
        await script(play)
        task = await play.task()
    seen = {"answers": play.answers, "seen": getattr(executor, "seen", [])}
    return seen if task is None else seen | _task(task)


def _task(task: types.Task) -> dict[str, Any]:
    whole = _normalised(task)
    status = whole.pop("status")
    status.pop("timestamp", None)  # the storage's own: see the page `sdk-executors`
    shown = {
        "state": status.pop("state", "").removeprefix("TASK_STATE_"),
        "message": _said(status.pop("message", None)),
        "history": [_short(message) for message in whole.pop("history", [])],
        "artifacts": _artifacts(whole.pop("artifacts", [])),
        "metadata": whole.pop("metadata", {}),
    }
    assert (whole, status) == ({"id": "<task>", "contextId": "<context>"}, {})
    return shown


def _answer(answer: types.StreamResponse) -> Any:
    """A Message in full, a Task by its state, and an event of a stream by what it changes."""
    match answer.WhichOneof("payload"):
        case "message":
            return ["message", _short(_normalised(answer.message))]
        case "task":
            return f"task {_state(answer.task)}"
        case "status_update":
            whole = _normalised(answer.status_update)
            status = whole.pop("status")
            message = _said(status.get("message"))
            state = status["state"].removeprefix("TASK_STATE_")
            return ["status", state, message, _but(whole, "taskId", "contextId")]
        case _:
            whole = _normalised(answer.artifact_update)
            artifact = whole.pop("artifact")
            rest = _but(whole, "taskId", "contextId")
            return [artifact.pop("artifactId"), _artifact(artifact), rest]


def _said(message: dict[str, Any] | None) -> Any:
    """A status message, of which it goes without saying that it is the agent's."""
    short = None if message is None else _short(message)
    return short.removeprefix("agent: ") if isinstance(short, str) else short


def _short(message: dict[str, Any]) -> Any:
    """A message: in a line where it is text alone, else whatever is in it."""
    whole = dict(message)
    role = "user" if whole.pop("role", None) == "ROLE_USER" else "agent"
    parts = _parts(whole.pop("parts", []))
    rest = _but(whole, "taskId", "contextId", "messageId")
    if rest or not all(isinstance(part, str) for part in parts):
        return {role: parts} | rest
    return f"{role}: {''.join(parts)}"


def _artifacts(artifacts: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return artifacts by id; those that were renamed to the same id are numbered."""
    shown: dict[str, list[Any]] = {}
    for artifact in artifacts:
        name = artifact.pop("artifactId")
        shown[f"{name} {len(shown) + 1}" if name in shown else name] = _artifact(artifact)
    return shown


def _artifact(artifact: dict[str, Any]) -> list[Any]:
    """Name, parts, and whatever else is in it."""
    whole = dict(artifact)
    shown = [whole.pop("name", ""), *_parts(whole.pop("parts", []))]
    return [*shown, whole] if whole else shown


def _parts(parts: list[dict[str, Any]]) -> list[Any]:
    return [part["text"] if set(part) == {"text"} else part for part in parts]


def _but(whole: dict[str, Any], *ids: str) -> dict[str, Any]:
    """Return what there is beside these ids, and those of them that are missing or wrong."""
    right = {name: f"<{name.removesuffix('Id')}>" for name in ids}
    names = sorted({*whole, *right})
    return {name: whole.get(name) for name in names if whole.get(name) != right.get(name)}


def _normalised(message: Any) -> Any:
    """Return JSON with names in place of the ids that differ from run to run."""
    whole = MessageToDict(message)
    ids = {
        (message.id if isinstance(message, types.Task) else message.task_id): "<task>",
        message.context_id: "<context>",
    }
    return _renamed(whole, {own: name for own, name in ids.items() if own})


def _renamed(value: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        is_message = _MESSAGE_ID.fullmatch(value.get("messageId", ""))
        named = {"messageId": "<message>"} if is_message else {}
        return {name: _renamed(v, ids) for name, v in value.items()} | named
    if isinstance(value, list):
        return [_renamed(v, ids) for v in value]
    if isinstance(value, str):
        for own, name in ids.items():
            value = value.replace(own, name)
        return _CORRELATION_ID.sub("<id>", _UUID.sub("<another>", value))
    return value


def _state(task: types.Task) -> str:
    return state_name(task.status.state).removeprefix("TASK_STATE_")

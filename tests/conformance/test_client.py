"""The official SDK's client against the application, unchanged: a conversation from start to end.

Over both bindings and both dialects, through a real server and each of the functions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from a2a import types
from a2a.client import Client
from a2a.helpers import get_artifact_text

from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from tests.conformance.conftest import official_client
from tests.support.gateway import deployed
from tests.support.messages import storyteller
from tests.support.peers import served
from tests.support.scripted_worker import ScriptedWorker, Turn

CARD = storyteller()


@dataclass(frozen=True)
class World:
    """A running agent."""

    url: str
    worker: ScriptedWorker
    http: httpx.AsyncClient

    async def client(self, binding: str, version: str, *, streaming: bool = True) -> Client:
        return await official_client(self.http, self.url, binding, version, streaming=streaming)


IN_EACH_VERSION = pytest.mark.parametrize(
    ("world", "binding", "version"),
    [
        ("stream", "JSONRPC", "1.0"),
        ("api", "HTTP+JSON", "1.0"),
        ("api", "JSONRPC", "0.3"),
        ("stream", "HTTP+JSON", "0.3"),
    ],
    indirect=["world"],
)


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    settings = Settings(auth="none", cancel_timeout_s=5)
    backends = memory_backends(settings)
    with deployed(request.param, settings, backends, CARD) as app:
        async with (
            ScriptedWorker(backends).running() as worker,
            served(app) as url,
            httpx.AsyncClient(timeout=30) as http,
        ):
            yield World(url, worker, http)


def request(text: str, **fields: Any) -> types.SendMessageRequest:
    message = types.Message(
        message_id=f"m-{text}", role=types.Role.ROLE_USER, parts=[types.Part(text=text)], **fields
    )
    return types.SendMessageRequest(message=message)


async def collect(stream: AsyncIterator[types.StreamResponse]) -> list[types.StreamResponse]:
    return [event async for event in stream]


def text(events: list[types.StreamResponse]) -> str:
    """What the events have written into the artifact."""
    updates = [e.artifact_update for e in events if e.HasField("artifact_update")]
    return "".join(part.text for update in updates for part in update.artifact.parts)


@IN_EACH_VERSION
async def test_a_conversation(world: World, binding: str, version: str) -> None:
    """Send, pause, resume with a stream, read, wait for another task, and cancel a third."""
    client = await world.client(binding, version)

    asked = await collect(client.send_message(request("ask")))
    assert asked[0].HasField("task")
    assert asked[-1].status_update.status.state == types.TaskState.TASK_STATE_INPUT_REQUIRED
    task = asked[0].task
    more = request("go", task_id=task.id, context_id=task.context_id)
    told = await collect(client.send_message(more))
    assert told[0].task.id == task.id
    assert text(told) == "Once upon a time."
    assert told[-1].status_update.status.state == types.TaskState.TASK_STATE_COMPLETED
    stored = await client.get_task(types.GetTaskRequest(id=task.id))
    assert get_artifact_text(stored.artifacts[0]) == "Once upon a time."
    assert [m.parts[0].text for m in stored.history] == ["ask", "Which one?", "go"]
    blocking = await world.client(binding, version, streaming=False)
    (waited_for,) = await collect(blocking.send_message(request("go", context_id="another")))
    assert waited_for.task.status.state == types.TaskState.TASK_STATE_COMPLETED
    assert get_artifact_text(waited_for.task.artifacts[0]) == "Once upon a time."
    hanging = request("obey")
    hanging.configuration.return_immediately = True
    (sent,) = await collect(blocking.send_message(hanging))
    canceled = await client.cancel_task(types.CancelTaskRequest(id=sent.task.id))
    assert canceled.status.state == types.TaskState.TASK_STATE_CANCELED


async def answers(turn: Turn, _: ScriptedWorker) -> None:
    """Say `an answer`, and ` and more` in the next turn; without a last chunk."""
    is_first = turn.text == "first"
    for number, each in enumerate(("an", " answer") if is_first else (" and", " more")):
        await turn.chunk(each, append=number > 0 or not is_first)
    await turn.status(types.TaskState.TASK_STATE_INPUT_REQUIRED, "Go on?")


@IN_EACH_VERSION
async def test_streamed_text_is_one_text(world: World, binding: str, version: str) -> None:
    """The SDK's helper gives `an answer` for `an` and ` answer`, whoever has asked for the task."""
    world.worker.script = answers
    client = await world.client(binding, version)
    task = (told := await collect(client.send_message(request("first"))))[0].task
    more = request("more", task_id=task.id, context_id=task.context_id)
    then = await collect(client.send_message(more))
    updates = [e.artifact_update for e in told + then if e.HasField("artifact_update")]
    chunks = [get_artifact_text(update.artifact) for update in updates]
    assert chunks == ["an", " answer", " and", " more"]
    assert [get_artifact_text(each) for each in then[0].task.artifacts] == ["an answer"]
    read = [await client.get_task(types.GetTaskRequest(id=task.id))]
    if version == "1.0":
        read += (await client.list_tasks(types.ListTasksRequest(include_artifacts=True))).tasks
    blocking = await world.client(binding, version, streaming=False)
    more.message.message_id = "again"
    (answer,) = await collect(blocking.send_message(more))
    longer = [get_artifact_text(each) for each in answer.task.artifacts]
    shown = {get_artifact_text(each) for one in read for each in one.artifacts}
    assert shown == {"an answer and more"}
    assert longer == ["an answer and more and more"]

"""The official SDK's client against the application, unchanged: a conversation from start to end.

Over both bindings and both dialects, through a real server and each of the functions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import get_artifact_text
from a2a.types import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
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

    async def client(self, binding: str, version: str = "1.0", *, streaming: bool = True) -> Client:
        """The official client, as it makes itself from the served card."""
        card = await A2ACardResolver(self.http, self.url).get_agent_card()
        spoken = [i for i in card.supported_interfaces if i.protocol_version == version]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(spoken)
        config = ClientConfig(
            streaming=streaming,
            httpx_client=self.http,
            supported_protocol_bindings=[binding],
        )
        return ClientFactory(config).create(card)


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
IN_EACH_BINDING = pytest.mark.parametrize(
    ("world", "binding"), [("stream", "HTTP+JSON"), ("api", "JSONRPC")], indirect=["world"]
)


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    settings = Settings(auth="none", cancel_timeout_s=5, push_queue="pushes.fifo")
    backends = memory_backends(settings)
    with deployed(request.param, settings, backends, CARD) as app:
        async with (
            ScriptedWorker(backends).running() as worker,
            served(app) as url,
            httpx.AsyncClient(timeout=30) as http,
        ):
            yield World(url, worker, http)


def request(text: str, **fields: Any) -> SendMessageRequest:
    message = Message(
        message_id=f"m-{text}", role=Role.ROLE_USER, parts=[Part(text=text)], **fields
    )
    return SendMessageRequest(message=message)


async def collect(stream: AsyncIterator[StreamResponse]) -> list[StreamResponse]:
    return [event async for event in stream]


def text(events: list[StreamResponse]) -> str:
    """What the events have written into the artifact."""
    updates = [e.artifact_update for e in events if e.HasField("artifact_update")]
    return "".join(part.text for update in updates for part in update.artifact.parts)


@IN_EACH_VERSION
async def test_a_conversation(world: World, binding: str, version: str) -> None:
    """Send, pause, resume with a stream, read, and cancel another task."""
    client = await world.client(binding, version)

    asked = await collect(client.send_message(request("ask")))
    assert asked[0].HasField("task")
    assert asked[-1].status_update.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    task = asked[0].task

    told = await collect(
        client.send_message(request("go", task_id=task.id, context_id=task.context_id))
    )
    assert told[0].task.id == task.id
    assert text(told) == "Once upon a time."
    assert told[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED

    stored = await client.get_task(GetTaskRequest(id=task.id))
    assert get_artifact_text(stored.artifacts[0]) == "Once upon a time."
    assert [m.parts[0].text for m in stored.history] == ["ask", "Which one?", "go"]

    blocking = await world.client(binding, version, streaming=False)
    hanging = request("obey")
    hanging.configuration.return_immediately = True
    (sent,) = await collect(blocking.send_message(hanging))
    canceled = await client.cancel_task(CancelTaskRequest(id=sent.task.id))
    assert canceled.status.state == TaskState.TASK_STATE_CANCELED


async def answers(turn: Turn, _: ScriptedWorker) -> None:
    """Say `an answer`, and ` and more` in the next turn; without a last chunk."""
    is_first = turn.text == "first"
    for number, each in enumerate(("an", " answer") if is_first else (" and", " more")):
        await turn.chunk(each, append=number > 0 or not is_first)
    await turn.status(TaskState.TASK_STATE_INPUT_REQUIRED, "Go on?")


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
    read = [await client.get_task(GetTaskRequest(id=task.id))]
    if version == "1.0":
        read += (await client.list_tasks(ListTasksRequest(include_artifacts=True))).tasks
    blocking = await world.client(binding, version, streaming=False)
    more.message.message_id = "again"
    (answer,) = await collect(blocking.send_message(more))
    longer = [get_artifact_text(each) for each in answer.task.artifacts]
    assert [get_artifact_text(each) for one in read for each in one.artifacts] == [
        "an answer and more"
    ] * len(read)
    assert longer == ["an answer and more and more"]


@pytest.mark.parametrize(
    ("world", "binding"), [("stream", "JSONRPC"), ("stream", "HTTP+JSON")], indirect=["world"]
)
async def test_a_subscription(world: World, binding: str) -> None:
    """A subscriber gets the Task first, stays through the pause, and sees the end."""
    client = await world.client(binding)
    asked = await collect(client.send_message(request("ask")))
    task_id = asked[0].task.id
    subscription = aiter(client.subscribe(SubscribeToTaskRequest(id=task_id)))
    opening = await anext(subscription)
    assert opening.task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    await collect(client.send_message(request("go", task_id=task_id)))
    followed = await collect(subscription)
    assert text(followed) == "Once upon a time."
    assert followed[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


@IN_EACH_BINDING
async def test_listing(world: World, binding: str) -> None:
    """The client lists the caller's tasks in pages, newest first."""
    client = await world.client(binding, streaming=False)
    ids = []
    for number in range(3):
        (answer,) = await collect(client.send_message(request(f"go {number}", context_id="ours")))
        ids.append(answer.task.id)
    first = await client.list_tasks(ListTasksRequest(context_id="ours", page_size=2))
    rest = await client.list_tasks(
        ListTasksRequest(context_id="ours", page_size=2, page_token=first.next_page_token)
    )
    assert [t.id for t in [*first.tasks, *rest.tasks]] == ids[::-1]
    assert first.total_size == 3
    assert rest.next_page_token == ""


@IN_EACH_VERSION
async def test_push_configurations(world: World, binding: str, version: str) -> None:
    """One comes with the message, one later; both are found, without secrets, and deleted."""
    client = await world.client(binding, version, streaming=False)
    inline = request("ask")
    url = "https://93.184.216.34/hook"
    secrets = AuthenticationInfo(scheme="Bearer", credentials="secret")
    first = TaskPushNotificationConfig(id="a", url=url, token="secret", authentication=secrets)
    inline.configuration.task_push_notification_config.CopyFrom(first)
    (asked,) = await collect(client.send_message(inline))
    task_id = asked.task.id
    second = TaskPushNotificationConfig(task_id=task_id, id="b", url=url, authentication=secrets)
    made = await client.create_task_push_notification_config(second)
    second.authentication.ClearField("credentials")
    assert made == second
    for name in ("a", "b"):
        wanted = GetTaskPushNotificationConfigRequest(task_id=task_id, id=name)
        found = await client.get_task_push_notification_config(wanted)
        assert (found.id, found.token, found.authentication.credentials) == (name, "", "")

    if (binding, version) == ("HTTP+JSON", "0.3"):
        return
    everything = ListTaskPushNotificationConfigsRequest(task_id=task_id)
    listed = await client.list_task_push_notification_configs(everything)
    assert [config.id for config in listed.configs] == ["a", "b"]
    for _ in range(2):
        await client.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="a")
        )
    listed = await client.list_task_push_notification_configs(everything)
    assert [config.id for config in listed.configs] == ["b"]


@IN_EACH_BINDING
async def test_errors_arrive_as_the_clients_own(world: World, binding: str) -> None:
    """The client raises the protocol's error types from what the server answers."""
    client = await world.client(binding, streaming=False)
    (done,) = await collect(client.send_message(request("go")))
    unsupported = SendMessageRequest()
    unsupported.CopyFrom(request("go"))
    unsupported.message.parts[0].media_type = "video/mp4"
    streaming = await world.client(binding)
    ended = SubscribeToTaskRequest(id=done.task.id)
    expected: list[tuple[type[A2AError], Callable[[], Awaitable[Any]]]] = [
        (TaskNotFoundError, lambda: client.get_task(GetTaskRequest(id="nobody"))),
        (TaskNotCancelableError, lambda: client.cancel_task(CancelTaskRequest(id=done.task.id))),
        (
            UnsupportedOperationError,
            lambda: collect(client.send_message(request("more", task_id=done.task.id))),
        ),
        (UnsupportedOperationError, lambda: collect(streaming.subscribe(ended))),
        (ContentTypeNotSupportedError, lambda: collect(client.send_message(unsupported))),
        (InvalidParamsError, lambda: client.list_tasks(ListTasksRequest(page_size=101))),
    ]
    for error, call in expected:
        with pytest.raises(error):
            await call()

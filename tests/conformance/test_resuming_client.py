"""The resuming client at the application: behind each of the functions, over both bindings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from a2a.types import (
    StreamResponse,
    SubscribeToTaskRequest,
    TaskState,
)

from a2a_serverless.client import ResumingClient, Retries, resuming
from a2a_serverless.clock import SystemClock
from a2a_serverless.settings import Settings
from tests.conformance.conftest import ServedAgent, official_client
from tests.support.a2a_calls import JSONRPC
from tests.support.messages import request
from tests.support.scripted_worker import ScriptedWorker

COMPLETED = TaskState.TASK_STATE_COMPLETED
LIMIT_S = 0.1
STREAMS = 3
"""Streams that a waiting task outlasts."""

Making = Callable[..., Awaitable[ResumingClient]]


@pytest.fixture
def limit_s() -> float:
    """Streams and blocking sends end long before a task that waits."""
    return LIMIT_S


@pytest.fixture
def settings(limit_s: float) -> Settings:
    return Settings(auth="none", blocking_limit_s=limit_s, stream_limit_s=limit_s)


@pytest.fixture
def making(agent: ServedAgent) -> Making:
    """Make a client as its user does, from the served card."""

    async def make(version: str = "1.0") -> ResumingClient:
        binding = "JSONRPC" if agent.binding == JSONRPC else "HTTP+JSON"
        official = await official_client(agent.client, "http://test", binding, version)
        return resuming(official, agent.client, Retries(clock=QuickClock()))

    return make


class QuickClock(SystemClock):
    """The machine's clock, on which waits are a tenth as long."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 10)


class Requests:
    """Counts what is asked for. After some requests it opens the gate of a waiting agent."""

    def __init__(self, agent: ServedAgent, worker: ScriptedWorker) -> None:
        self.last_ids: list[str | None] = []
        self.were_enough = asyncio.Event()
        self._worker = worker
        agent.client.event_hooks["request"].append(self.note)

    async def note(self, asked: httpx.Request) -> None:
        if "agent-card" in asked.url.path:
            return
        self.last_ids.append(asked.headers.get("last-event-id"))
        if len(self.last_ids) > STREAMS:
            self._worker.gate.set()
            self.were_enough.set()


@pytest.fixture
def requests(agent: ServedAgent, worker: ScriptedWorker) -> Requests:
    return Requests(agent, worker)


def shown(events: list[StreamResponse]) -> list[str]:
    """What a stream shows, in short: states and chunks."""
    words = []
    for event in events:
        if event.HasField("artifact_update"):
            words.append(event.artifact_update.artifact.parts[0].text)
        else:
            status = event.task.status if event.HasField("task") else event.status_update.status
            words.append(TaskState.Name(status.state).removeprefix("TASK_STATE_"))
    return words


async def collect(events: AsyncIterator[StreamResponse]) -> list[StreamResponse]:
    return [event async for event in events]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_streams_that_the_server_ends(
    making: Making, requests: Requests, version: str
) -> None:
    """A task that outlasts several streams is shown once, from its first event to its last."""
    client = await making(version)
    events = await collect(client.send_message(request("wait")))
    assert shown(events) == ["SUBMITTED", "WORKING", "Once upon ", "a time.", "COMPLETED"]
    assert len(requests.last_ids) > STREAMS
    assert requests.last_ids[0] is None
    assert all(requests.last_ids[1:])


class Cut(httpx.AsyncByteStream):
    """A body whose connection breaks after its last byte."""

    def __init__(self, body: httpx.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            yield piece
        raise httpx.ReadError("connection reset")


@pytest.mark.parametrize("limit_s", [20.0])
async def test_credentials_that_end_the_turn(
    making: Making, agent: ServedAgent, requests: Requests
) -> None:
    """If the stream of such a turn is cut at its end, the next ends at once, and is the last."""

    async def cut(response: httpx.Response) -> None:
        if response.request.headers.get("idempotency-key"):
            assert isinstance(response.stream, httpx.AsyncByteStream)
            response.stream = Cut(response.stream)

    agent.client.event_hooks["response"].append(cut)
    client = await making()
    async with asyncio.timeout(10):
        events = await collect(client.send_message(request("login")))
    assert shown(events) == ["SUBMITTED", "AUTH_REQUIRED"]
    assert len(requests.last_ids) == 2


async def test_a_subscription_through_a_pause(making: Making, requests: Requests) -> None:
    """A subscription is continued past the server's limits and a pause, to the task's end."""
    client = await making()
    asked = await collect(client.send_message(request("ask")))
    answer = request("go")
    answer.message.task_id = task_id = asked[0].task.id

    async def later() -> None:
        await requests.were_enough.wait()
        await collect(client.send_message(answer))

    following = collect(client.subscribe(SubscribeToTaskRequest(id=task_id)))
    events, _ = await asyncio.gather(following, later())
    assert shown(events)[0] == "INPUT_REQUIRED"
    assert shown(events)[-4:] == ["WORKING", "Once upon ", "a time.", "COMPLETED"]
    assert shown(events).count("INPUT_REQUIRED") == 1

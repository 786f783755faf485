"""An agent behind each of its doors, spoken to in each binding.

`asgi` is the application as the streaming function runs it, `mangum` the one behind API Gateway,
which answers in one piece.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.types import AgentCapabilities, AgentCard, AgentExtension, AgentSkill

from a2a_serverless.http.app import create_app
from a2a_serverless.http.function import lambda_handler
from a2a_serverless.local.environments import Environments
from a2a_serverless.local.front_door import FrontDoor
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends, memory_backends
from tests.support.a2a_calls import JSONRPC, REST, Agent, target
from tests.support.asgi_streams import ServerEvent, live
from tests.support.scripted_worker import ScriptedWorker

DOORS = [f"{binding}-{front}" for binding in (JSONRPC, REST) for front in ("asgi", "mangum")]


class Door(Agent):
    """An agent behind one door, in one binding."""

    def __init__(
        self, app: Any, client: httpx.AsyncClient, binding: str, *, is_buffered: bool
    ) -> None:
        super().__init__(client, binding)
        self.app = app
        self.is_buffered = is_buffered

    @asynccontextmanager
    async def stream(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of a stream, each with exactly one of the members of a StreamResponse."""
        verb, path, body = target(self.binding, method, params)
        async with live(self.app, verb, path, body=body, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            yield self._payloads(response.events())

    async def events(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        async with self.stream(method, params, headers) as events:
            return [event async for event in events]

    async def _payloads(self, events: AsyncIterator[ServerEvent]) -> AsyncIterator[dict[str, Any]]:
        async for event in events:
            payload = event.data["result"] if self.binding == JSONRPC else event.data
            assert len(payload) == 1
            yield payload


def states(events: list[dict[str, Any]]) -> list[str]:
    """The task's states in the order in which a stream has shown them."""
    shown = [e["task"] if "task" in e else e.get("statusUpdate") for e in events]
    return [s["status"]["state"].removeprefix("TASK_STATE_") for s in shown if s is not None]


@pytest.fixture
def settings() -> Settings:
    return Settings(auth="none", cancel_timeout_s=5, blocking_limit_s=20)


@pytest.fixture
def backends(settings: Settings) -> Backends:
    return memory_backends(settings)


@pytest.fixture
def card() -> AgentCard:
    return AgentCard(
        name="Storyteller",
        description="Tells one story.",
        version="1.0.0",
        capabilities=AgentCapabilities(
            streaming=True, extensions=[AgentExtension(uri="urn:test:extension")]
        ),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="tell", name="Tell", description="A story.", tags=["story"])],
    )


@pytest.fixture
async def worker(backends: Backends) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(backends).running() as worker:
        yield worker


@asynccontextmanager
async def opened(
    name: str, settings: Settings, backends: Backends, card: AgentCard
) -> AsyncIterator[Door]:
    """The door called `<binding>-<front>`."""
    binding, _, front = name.partition("-")
    async with AsyncExitStack() as stack:
        app: Any
        if front == "asgi":
            app = create_app(settings, backends, card, entrypoint="stream")
        else:
            inner = create_app(settings, backends, card, entrypoint="api")
            function = Environments("api", lambda _: lambda_handler(inner), limit=8, timeout_s=30)
            stack.callback(function.close)
            app = FrontDoor(function)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=30)
        await stack.enter_async_context(client)
        yield Door(app, client, binding, is_buffered=front == "mangum")


@pytest.fixture(params=DOORS)
async def door(
    request: pytest.FixtureRequest, settings: Settings, backends: Backends, card: AgentCard
) -> AsyncIterator[Door]:
    async with opened(request.param, settings, backends, card) as door:
        yield door

"""An agent behind each of the two functions that the REST API reaches, and in each binding.

`api` is ApiFunction, which answers in one piece, `stream` StreamFunction. Which of them a request
comes to in a deployment, its path and method decide (`tests/infrastructure/test_routes.py`); both
hold every rule. A binding knows nothing of its function: each is spoken at one of them, and a
stream and its errors in every way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import AgentCard
from starlette.types import ASGIApp

from a2a_serverless.http.operations import Entrypoint
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends, memory_backends
from tests.support.a2a_calls import JSONRPC, REST, Agent, client_of, target
from tests.support.asgi_streams import ServerEvent, live
from tests.support.gateway import deployed
from tests.support.messages import storyteller
from tests.support.scripted_worker import ScriptedWorker

FUNCTIONS: tuple[Entrypoint, ...] = ("api", "stream")
WAYS: list[tuple[str, Entrypoint]] = [(JSONRPC, "stream"), (REST, "api")]
EVERY_WAY = pytest.mark.parametrize(
    "agent",
    [(binding, function) for binding in (JSONRPC, REST) for function in FUNCTIONS],
    ids="-".join,
    indirect=True,
)


class ServedAgent(Agent):
    """An agent behind one of the functions, spoken to in one binding."""

    def __init__(
        self, app: ASGIApp, client: httpx.AsyncClient, binding: str, function: Entrypoint
    ) -> None:
        super().__init__(client, binding)
        self.app = app
        self.function = function

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


async def official_client(
    http: httpx.AsyncClient, url: str, binding: str, version: str = "1.0", *, streaming: bool = True
) -> Client:
    """The official client, as it makes itself from the served card, in one binding and version."""
    card = await A2ACardResolver(http, url).get_agent_card()
    spoken = [i for i in card.supported_interfaces if i.protocol_version == version]
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(spoken)
    config = ClientConfig(
        streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding]
    )
    return ClientFactory(config).create(card)


@pytest.fixture
def settings() -> Settings:
    return Settings(auth="none", cancel_timeout_s=5, blocking_limit_s=20)


@pytest.fixture
def backends(settings: Settings) -> Backends:
    return memory_backends(settings)


@pytest.fixture
def card() -> AgentCard:
    return storyteller("urn:test:extension")


@pytest.fixture
async def worker(backends: Backends) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(backends).running() as worker:
        yield worker


@asynccontextmanager
async def serving(
    binding: str, function: Entrypoint, settings: Settings, backends: Backends, card: AgentCard
) -> AsyncIterator[ServedAgent]:
    with deployed(function, settings, backends, card) as app:
        yield ServedAgent(app, client_of(app), binding, function)


@pytest.fixture(params=WAYS, ids="-".join)
async def agent(
    request: pytest.FixtureRequest, settings: Settings, backends: Backends, card: AgentCard
) -> AsyncIterator[ServedAgent]:
    binding, function = request.param
    async with serving(binding, function, settings, backends, card) as agent:
        yield agent

"""An application on memory backends, and a worker that does what messages say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from a2a.types import AgentCard
from fastapi import FastAPI

from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends, memory_backends
from tests.support.a2a_calls import REST, Agent
from tests.support.messages import storyteller
from tests.support.scripted_worker import ScriptedWorker


@pytest.fixture
def settings() -> Settings:
    return Settings(auth="none", cancel_timeout_s=5, blocking_limit_s=20)


@pytest.fixture
def backends(settings: Settings) -> Backends:
    return memory_backends(settings)


@pytest.fixture
def card() -> AgentCard:
    return storyteller("urn:test:extension", inputs=("text/plain", "image/*"))


@pytest.fixture
def app(settings: Settings, backends: Backends, card: AgentCard) -> FastAPI:
    return create_app(settings, backends, card, entrypoint="stream")


@pytest.fixture
async def worker(backends: Backends) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(backends).running() as worker:
        yield worker


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture
def binding() -> str:
    """The binding of what differs in none: a test of both has it as its parameter."""
    return REST


@pytest.fixture
def agent(client: httpx.AsyncClient, binding: str) -> Agent:
    return Agent(client, binding)


@pytest.fixture
async def agent_with(
    backends: Backends, card: AgentCard
) -> AsyncIterator[Callable[[Settings], Agent]]:
    """Agents with settings of their own on the same backends; over REST."""
    clients: list[httpx.AsyncClient] = []

    def make(settings: Settings) -> Agent:
        app = create_app(settings, backends, card, entrypoint="api")
        transport = httpx.ASGITransport(app)
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://test"))
        return Agent(clients[-1])

    yield make
    for client in clients:
        await client.aclose()

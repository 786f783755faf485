"""An application on memory backends, and a worker that does what messages say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from a2a.types import AgentCard
from fastapi import FastAPI

from a2a_serverless.http.app import create_app
from a2a_serverless.http.operations import Entrypoint
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends, memory_backends
from tests.support.a2a_calls import LATER, REST, Agent, Serve, client_of
from tests.support.issuers import Issuer, running_issuer
from tests.support.messages import storyteller
from tests.support.scripted_worker import ScriptedWorker


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> Settings:
    """With what the module has in `SETTINGS`."""
    usual = {"auth": "none", "cancel_timeout_s": 5, "blocking_limit_s": 20}
    return Settings(**usual | getattr(request.module, "SETTINGS", {}))


@pytest.fixture
def backends(settings: Settings) -> Backends:
    return memory_backends(settings)


@pytest.fixture
def card() -> AgentCard:
    return storyteller("urn:test:extension", inputs=("text/plain", "image/*"))


@pytest.fixture
def entrypoint() -> Entrypoint:
    """The function whose application it is: a test of both has it as its parameter."""
    return "stream"


@pytest.fixture
def app(settings: Settings, backends: Backends, card: Any, entrypoint: Entrypoint) -> FastAPI:
    return create_app(settings, backends, card, entrypoint=entrypoint)


@pytest.fixture
async def worker(backends: Backends) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(backends).running() as worker:
        yield worker


@pytest.fixture
def client(app: FastAPI) -> httpx.AsyncClient:
    return client_of(app)


@pytest.fixture
def binding() -> str:
    """The binding of what differs in none: a test of both has it as its parameter."""
    return REST


@pytest.fixture
def agent(client: httpx.AsyncClient, binding: str) -> Agent:
    return Agent(client, binding)


@pytest.fixture
def serve(settings: Settings, backends: Backends, card: AgentCard) -> Serve:
    """Serves the agent once more on the same backends, with settings that differ."""

    def serving(binding: str = REST, entrypoint: Entrypoint = "stream", **others: Any) -> Agent:
        own = settings.model_copy(update=others)
        return Agent(client_of(create_app(own, backends, card, entrypoint=entrypoint)), binding)

    return serving


@pytest.fixture
async def task_id(agent: Agent) -> str:
    """A task whose agent waits, where there is a worker."""
    return str((await agent.send("wait", configuration=LATER)).task["id"])


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop of a Lambda environment."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield runner.get_loop()
    asyncio.set_event_loop(None)


@pytest.fixture(scope="module")
def server() -> Iterator[Issuer]:
    """An issuer for all tests of the module."""
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def issuer(server: Issuer) -> Issuer:
    """The issuer as it was at first."""
    url = server.url
    server.__init__()  # type: ignore[misc]  # a fresh one, at the same port
    server.url = url
    return server

"""Clients of the official SDK at a scripted server, and the clock of their waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.types import StreamResponse, SubscribeToTaskRequest

from a2a_serverless.client import ResumingClient, Retries, resuming
from tests.support.clocks import ManualClock
from tests.support.messages import request
from tests.unit.client.scripted_server import BINDINGS, TASK, ScriptedServer


@dataclass
class World:
    """A server, a binding, and a clock that no wait really waits for."""

    binding: str
    server: ScriptedServer = field(default_factory=ScriptedServer)
    clock: ManualClock = field(default_factory=ManualClock)

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self.server)

    def client(
        self,
        *,
        http: httpx.AsyncClient | None = None,
        streaming: bool = True,
        polling: bool = False,
        interceptors: Any = None,
        **retries: Any,
    ) -> ResumingClient:
        http = self.http() if http is None else http
        config = ClientConfig(
            httpx_client=http,
            supported_protocol_bindings=[self.binding],
            streaming=streaming,
            polling=polling,
        )
        made = ClientFactory(config).create(self.server.card(self.binding), interceptors)
        return resuming(made, http, Retries(**{"clock": self.clock, **retries}))

    async def send(self, **options: Any) -> list[StreamResponse]:
        return await collect(self.client(**options).send_message(request()))

    async def subscribe(self, **options: Any) -> list[StreamResponse]:
        asked = SubscribeToTaskRequest(id=TASK)
        return await collect(self.client(**options).subscribe(asked))


async def collect(events: AsyncIterator[StreamResponse]) -> list[StreamResponse]:
    return [event async for event in events]


@pytest.fixture(params=BINDINGS)
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)

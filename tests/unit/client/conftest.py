"""Clients of the official SDK at a scripted server, and the clock of their waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from a2a.client import Client, ClientConfig, ClientFactory
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
        **retries: Any,
    ) -> ResumingClient:
        http = self.http() if http is None else http
        made = self.plain(http, streaming=streaming, polling=polling)
        return resuming(made, http, Retries(**{"clock": self.clock, **retries}))

    def plain(self, http: httpx.AsyncClient, **options: Any) -> Client:
        """The official client."""
        options |= {"httpx_client": http, "supported_protocol_bindings": [self.binding]}
        return ClientFactory(ClientConfig(**options)).create(self.server.card(self.binding))

    async def send(self, **options: Any) -> list[StreamResponse]:
        return await collect(self.client(**options).send_message(request()))

    async def subscribe(self, **options: Any) -> list[StreamResponse]:
        return await collect(self.client(**options).subscribe(SubscribeToTaskRequest(id=TASK)))


async def collect(events: AsyncIterator[StreamResponse]) -> list[StreamResponse]:
    return [event async for event in events]


@pytest.fixture(params=BINDINGS)
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)

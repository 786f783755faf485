"""The resuming client at API Gateway's own limits: too many requests, and a silent stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import httpx
import pytest
from a2a.client import ClientConfig
from a2a.types import ListTasksRequest, StreamResponse

from a2a_serverless.client import ResumingClient, Retries, create_resuming_client
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.support.clocks import ManualClock
from tests.support.messages import request, storyteller
from tests.support.scripted_worker import ScriptedWorker
from tests.support.simulation import front
from tests.support.simulation.gateway import Gateway
from tests.support.template import Template

SILENCE_S = 0.1
STREAMS = 3
CARD = storyteller()


@pytest.fixture
def clock() -> ManualClock:
    """The client's, and that of the requests per second."""
    return ManualClock()


@pytest.fixture
def backends() -> Backends:
    return memory_backends(Settings())


@pytest.fixture
async def worker(backends: Backends) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(backends).running() as worker:
        yield worker


@contextmanager
def served(backends: Backends, clock: ManualClock, **parameters: str) -> Iterator[str]:
    """The URL of the API, whose streams say nothing while the agent says nothing."""
    settings = Settings(auth="none", keep_alive_s=3600)
    template = Template(parameters=parameters)
    with (
        front.front(settings, backends, CARD, template=template, clock=clock) as gateway,
        HttpServer(gateway, bind(0), lifespan=False) as server,
    ):
        yield server.url


@asynccontextmanager
async def client_at(
    url: str, clock: ManualClock, http: httpx.AsyncClient, binding: str
) -> AsyncIterator[ResumingClient]:
    config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding])
    yield await create_resuming_client(url, config, retries=Retries(clock=clock))


def chunks(events: list[StreamResponse]) -> list[str]:
    """The texts of artifacts, in the order in which they came."""
    parts = [part for event in events for part in event.artifact_update.artifact.parts]
    return [part.text for part in parts]


@pytest.mark.parametrize("binding", ["JSONRPC"])
async def test_what_was_too_much_is_asked_for_again(
    backends: Backends, worker: ScriptedWorker, clock: ManualClock, binding: str
) -> None:
    """A method that takes one request a second refuses the next, and says when to come again."""
    statuses: list[int] = []

    async def note(response: httpx.Response) -> None:
        if response.request.method == "POST":
            statuses.append(response.status_code)

    with served(backends, clock, ThrottleRate="1") as url:
        async with (
            httpx.AsyncClient(
                trust_env=False, event_hooks={"response": [note]}, timeout=60
            ) as http,
            client_at(url, clock, http, binding) as client,
        ):
            before = clock.monotonic()
            for _ in range(3):
                events = [event async for event in client.send_message(request("go"))]
                assert chunks(events) == ["Once upon ", "a time."]
            assert statuses == [200, 429, 200, 429, 200]
            assert clock.monotonic() - before >= 2
            clock.advance(1)
            assert (await client.list_tasks(ListTasksRequest())).total_size == 3


@pytest.mark.parametrize("binding", ["HTTP+JSON"])
async def test_a_silent_stream_is_cut_and_resumed(
    backends: Backends,
    worker: ScriptedWorker,
    clock: ManualClock,
    binding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent goes on when its stream was cut several times: no event is lost, none twice."""
    monkeypatch.setattr(front, "Gateway", partial(Gateway, idle_limit_s=SILENCE_S))
    last_ids: list[str | None] = []

    async def note(asked: httpx.Request) -> None:
        if asked.method == "POST":
            last_ids.append(asked.headers.get("last-event-id"))
        if len(last_ids) > STREAMS:
            worker.gate.set()

    with served(backends, clock) as url:
        async with (
            httpx.AsyncClient(trust_env=False, event_hooks={"request": [note]}, timeout=60) as http,
            client_at(url, clock, http, binding) as client,
        ):
            events = [event async for event in client.send_message(request("wait"))]
    assert chunks(events) == ["Once upon ", "a time."]
    assert last_ids[0] is None
    assert len(last_ids) > STREAMS
    assert all(last_ids[1:])

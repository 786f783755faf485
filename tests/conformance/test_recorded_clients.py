"""What each client has sent when it was run (`make clients`) is answered here as it was there."""

from __future__ import annotations

import asyncio

import pytest
from a2a.types import AgentCard
from fastapi import FastAPI

from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.support.asgi_streams import live
from tests.support.recorded_clients import DIALECTS, Answer, Request, recorded
from tests.support.scripted_worker import ScriptedWorker

RECORDED = recorded()
UNSENT = {"content-type": None, "a2a-version": None}


@pytest.fixture
def settings() -> Settings:
    return Settings(
        auth="none",
        cancel_timeout_s=5,
        blocking_limit_s=20,
        push_queue="pushes.fifo",
        push_allowed_hosts="127.0.0.1",
    )


async def play(app: FastAPI, request: Request, told: asyncio.Future[Answer]) -> None:
    """Send a request and read its answer to the end; `told` is the answer, or a stream's begin."""
    headers = {**UNSENT, **request.headers}
    async with live(
        app, request.method, request.path, body=request.body, headers=headers
    ) as response:
        text, is_stream = "", response.headers["content-type"].startswith("text/event-stream")
        async for chunk in response.chunks():
            text += chunk.decode()
            if is_stream and text.endswith("\n\n") and not told.done():
                told.set_result(Answer.of(response.status, text))
        if not told.done():
            told.set_result(Answer.of(response.status, text))


@pytest.mark.parametrize("client", RECORDED)
async def test_a_clients_requests(
    settings: Settings, backends: Backends, card: AgentCard, worker: ScriptedWorker, client: str
) -> None:
    """Its whole session, on tasks of this server's: what was done then is done, and no more."""
    requests = RECORDED[client]
    is_older = any(request.dialect.startswith("0.1") for request in requests)
    chosen = settings.model_copy(update={"older_dialects": is_older})
    app = create_app(chosen, backends, card, entrypoint="stream")
    ids: dict[str, str] = {}
    reading: list[asyncio.Task[None]] = []
    for request in requests:
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        reading.append(asyncio.create_task(play(app, request.with_ids(ids), told)))
        answer = await asyncio.wait_for(told, 20)
        assert answer.is_error == request.is_refused, request
        if request.task:
            number = int(request.task.removeprefix("task-"))
            ids = {name: real for real, name in answer.ids(number).items()} | ids
    await asyncio.wait_for(asyncio.gather(*reading), 20)


def test_every_dialect_is_recorded() -> None:
    """The malformed requests of each dialect are made of what a client has sent in it."""
    spoken = {request.dialect for requests in RECORDED.values() for request in requests}
    assert spoken >= set(DIALECTS)

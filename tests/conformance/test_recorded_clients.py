"""What each client has sent when it was run (`make clients`) is answered here as it was there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from a2a.types import AgentCard
from fastapi import FastAPI

from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.support.asgi_streams import live
from tests.support.recorded_clients import Answer, Request, recorded
from tests.support.scripted_worker import ScriptedWorker

RECORDED = recorded()
ANSWER_S = 20
UNSENT = {"content-type": None, "a2a-version": None}


def settings_for(requests: Sequence[Request]) -> Settings:
    """Return settings with which the dialects of these requests are answered."""
    return Settings(
        auth="none",
        cancel_timeout_s=5,
        blocking_limit_s=20,
        push_queue="pushes.fifo",
        push_allowed_hosts="127.0.0.1",
        older_dialects=any(request.dialect.startswith("0.1") for request in requests),
    )


@pytest.fixture
def settings() -> Settings:
    return settings_for([])


@pytest.mark.long(one_in=3)
@pytest.mark.parametrize("client", RECORDED)
async def test_a_clients_requests(
    backends: Backends, card: AgentCard, worker: ScriptedWorker, client: str
) -> None:
    """Its whole session, on tasks of this server's: each is refused if and only if it was then.

    A request goes out when the one before it was answered, or its stream has begun; the answer to a
    question when the question has come.
    """
    requests = RECORDED[client]
    app = create_app(settings_for(requests), backends, card, entrypoint="stream")
    ids: dict[str, str] = {}
    reading: list[asyncio.Task[None]] = []
    for request in requests:
        if _is_answer(request):
            sent = zip(requests, reading, strict=False)
            asking = [reply for each, reply in sent if each.task == request.task]
            await asyncio.wait_for(asyncio.gather(*asking), ANSWER_S)
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        reading.append(asyncio.create_task(_play(app, request.with_ids(ids), told)))
        answer = await asyncio.wait_for(told, ANSWER_S)
        assert answer.is_error == request.is_refused, request
        if request.task:
            number = int(request.task.removeprefix("task-"))
            ids = {name: real for real, name in answer.ids(number).items()} | ids
    await asyncio.wait_for(asyncio.gather(*reading), ANSWER_S)


def _is_answer(request: Request) -> bool:
    body = request.body if isinstance(request.body, dict) else {}
    return "taskId" in body.get("params", body).get("message", {})


async def _play(app: FastAPI, request: Request, told: asyncio.Future[Answer]) -> None:
    """Send a request and read its answer to the end; `told` is the answer, or a stream's begin."""
    headers = {**UNSENT, **request.headers}
    async with live(
        app, request.method, request.path, body=request.body, headers=headers
    ) as response:
        text = ""
        is_stream = response.headers["content-type"].startswith("text/event-stream")
        async for chunk in response.chunks():
            text += chunk.decode()
            if is_stream and text.endswith("\n\n") and not told.done():
                told.set_result(Answer.of(response.status, text))
        if not told.done():
            told.set_result(Answer.of(response.status, text))

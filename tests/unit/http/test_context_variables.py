"""Context variables that a middleware sets are stored with the message that they came with."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import pytest
from a2a.types import AgentCard
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from a2a_serverless.http.app import create_app
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import JSONRPC, REST, Agent, client_of, message
from tests.support.scripted_worker import ScriptedWorker
from tests.support.stream_calls import all_events

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="unset")
SESSION: ContextVar[object] = ContextVar("session", default=None)
REQUEST_ID_NAME, SESSION_NAME = (f"{__name__}:{name}" for name in ("REQUEST_ID", "SESSION"))


SETTINGS = {"context_variables": f"{REQUEST_ID_NAME}, {SESSION_NAME}"}


class RequestVariables:
    """A middleware of ASGI that sets them for as long as a request is served."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        with ExitStack() as stack:
            if given := headers.get("x-request-id"):
                stack.callback(REQUEST_ID.reset, REQUEST_ID.set(given))
            if "x-session" in headers:
                stack.callback(SESSION.reset, SESSION.set(object()))
            await self._app(scope, receive, send)


def around_the_call(app: FastAPI) -> None:
    """A middleware of FastAPI; the application runs in a task that it starts."""

    @app.middleware("http")
    async def set_it(request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
        with ExitStack() as stack:
            if given := request.headers.get("x-request-id"):
                stack.callback(REQUEST_ID.reset, REQUEST_ID.set(given))
            return await call_next(request)


@pytest.fixture(params=[lambda app: app.add_middleware(RequestVariables), around_the_call])
def app(request: Any, settings: Settings, backends: Backends, card: AgentCard) -> FastAPI:
    app = create_app(settings, backends, card, entrypoint="stream")
    request.param(app)
    return app


def carried(worker: ScriptedWorker) -> list[dict[str, object]]:
    """What came with the message of each turn that has run."""
    texts = [turn.caller.variables for turn in worker.started]
    return [json.loads(text) if text else {} for text in texts]


NAMES = ("request-one", "request-two", "request-three")  # no made-up id holds one by chance
R1, R2, R3 = ({"x-request-id": name} for name in NAMES)


async def test_a_message_carries_its_own_variables(agent: Agent, worker: ScriptedWorker) -> None:
    """Opening, answering, and without the header; a copy of a message is the first one."""
    once = {**R1, "Idempotency-Key": "key-1"}
    asked = await agent.send("ask", headers=once)
    await agent.send("ask", headers={**once, **R2})
    await agent.send("ask", headers=R3, taskId=asked.task["id"])
    done = await agent.send("go", taskId=asked.task["id"])
    assert carried(worker) == [{REQUEST_ID_NAME: NAMES[0]}, {REQUEST_ID_NAME: NAMES[2]}, {}]
    assert NAMES[0] not in asked.response.text + done.response.text


async def test_a_stream_carries_it_too(app: FastAPI, binding: str, worker: ScriptedWorker) -> None:
    """A streamed message carries the variable, even if the middleware ends before the stream."""
    await all_events(app, binding, "SendStreamingMessage", {"message": message()}, R1)
    assert carried(worker) == [{REQUEST_ID_NAME: NAMES[0]}]


async def test_a_value_that_cannot_be_carried_is_the_servers_fault(
    app: FastAPI, worker: ScriptedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """An internal error with a correlation id, under which the log names the variable alone."""
    app.add_middleware(RequestVariables)
    for binding, method in ((JSONRPC, "SendMessage"), (REST, "SendStreamingMessage")):
        caplog.clear()
        agent = Agent(client_of(app), binding)
        params = {"message": message(contextId=binding)}
        refused = await agent.call(method, params, {"x-session": "a secret"})
        assert "The request failed. Correlation id: " in refused.message
        assert refused.response.status_code == (200 if binding == JSONRPC else 500)
        (logged,) = [r for r in caplog.records if hasattr(r, "correlation_id")]
        assert logged.__dict__["correlation_id"] in refused.message
        assert f"The value of {SESSION_NAME} is no JSON: " in caplog.text
        assert "a secret" not in caplog.text + refused.response.text
        listed = await agent.call("ListTasks", {"contextId": binding})
        assert listed.result.get("tasks", []) == []
        assert (await agent.call("SendMessage", params)).state == "COMPLETED"

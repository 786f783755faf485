"""Subscriptions in the 0.3 dialect, through the SDK's compatibility layer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import pytest
from fastapi import FastAPI

from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import JSONRPC, REST, Agent
from tests.support.asgi_streams import LiveResponse, live
from tests.support.scripted_worker import ScriptedWorker


def resubscribe(
    app: FastAPI, binding: str, task_id: str, headers: Mapping[str, str] | None = None
) -> AbstractAsyncContextManager[LiveResponse]:
    """`tasks/resubscribe`, as the two bindings of 0.3 have it."""
    if binding == JSONRPC:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/resubscribe", "params": {"id": task_id}}
        return live(app, "POST", "/", body=body, headers={"A2A-Version": "", **(headers or {})})
    path = f"/v1/tasks/{task_id}:subscribe"
    return live(app, "GET", path, headers={"A2A-Version": "0.3", **(headers or {})})


@pytest.fixture
async def task_id(agent: Agent, worker: ScriptedWorker) -> str:
    """A task whose agent waits."""
    sent = await agent.send("wait", configuration={"returnImmediately": True})
    await worker.waiting.wait()
    return str(sent.task["id"])


@pytest.mark.parametrize(
    ("task", "headers", "sentence"),
    [
        ("nobody", {"Last-Event-ID": "1.0.abcdef"}, "Task not found"),
        ("ours", {"Last-Event-ID": "garbage"}, "Last-Event-ID is not the id of an event"),
    ],
)
@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_what_cannot_be_subscribed_to_is_refused(
    app: FastAPI, binding: str, task_id: str, task: str, headers: dict[str, str], sentence: str
) -> None:
    """The protocol's error and the end: a response, or where JSON-RPC's 0.3 says so, one event."""
    wanted = task_id if task == "ours" else task
    async with resubscribe(app, binding, wanted, headers) as response:
        body = (await response.body()).decode()
    assert sentence in body
    assert body.count("error") == 1
    assert "id: " not in body
    if binding != JSONRPC:
        assert response.status in (400, 404)
        assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_an_error_on_the_way_is_one_event_and_the_end(
    app: FastAPI, binding: str, task_id: str, backends: Backends
) -> None:
    """A task that is deleted under its stream ends it with the dialect's error, without an id."""
    async with resubscribe(app, binding, task_id) as response:
        events = response.events()
        await anext(events)
        await delete_task(backends.storage, task_id)
        rest = [event async for event in events]
    assert len(rest) == 1
    assert rest[0].id is None
    assert rest[0].data["error"]["message"] == "Task not found"

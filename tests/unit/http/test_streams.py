"""Streams: what comes first, in which order, with which ids, and where they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import pytest
from fastapi import FastAPI

from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import JSONRPC, REST, Agent, message
from tests.support.asgi_streams import LiveResponse, live
from tests.support.scripted_worker import ScriptedWorker
from tests.support.stream_calls import all_events, chunks, kinds, open_stream, payload


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_a_text_breaks_no_line(app: FastAPI, binding: str, worker: ScriptedWorker) -> None:
    """Unicode's line ends are escaped: the official Python client would break events at them."""
    text = "go \x85 \u2028 \u2029 \x1c \x0b \x0c on"
    params = {"message": message(text)}
    async with open_stream(app, binding, "SendStreamingMessage", params) as response:
        body = (await response.body()).decode()
    lines = body.splitlines()
    assert lines == body.removesuffix("\n").split("\n")
    opening = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
    task = opening.get("result", opening)["task"]
    assert task["history"][0]["parts"][0]["text"] == text


class TestSubscriptions:
    async def test_a_finished_task_can_be_read_on_from_any_event(
        self, app: FastAPI, binding: str, worker: ScriptedWorker
    ) -> None:
        """With Last-Event-ID a finished task's stream has the Task then and what followed it."""
        params = {"message": message("go")}
        events = await all_events(app, binding, "SendStreamingMessage", params)
        named = {"id": payload(events[0])["task"]["id"]}
        for last in (0, 2, 4):
            headers = {"Last-Event-ID": events[last].id or ""}
            first, *rest = await all_events(app, binding, "SubscribeToTask", named, headers)
            assert (kinds([first]), first.id) == (["task"], events[last].id)
            assert rest == events[last + 1 :]
            so_far = payload(first)["task"].get("artifacts", [{"parts": []}])[0]["parts"]
            assert "".join(p["text"] for p in so_far) + chunks(rest) == "Once upon a time."

    @pytest.mark.parametrize(
        ("place", "prefer"),
        [
            (0, "wait=5, until=turn"),
            (-1, 'foo="a, \\"until=task", Until = "turn"; x="1"'),
            (-1, "until=turn;x, until=task"),
        ],
    )
    async def test_a_subscription_may_end_with_the_turn(
        self, app: FastAPI, binding: str, worker: ScriptedWorker, place: int, prefer: str
    ) -> None:
        """With Prefer: until=turn it ends as the stream of the message would, at any pause."""
        sent = {"message": message("login")}
        events = await all_events(app, binding, "SendStreamingMessage", sent)
        task_id = payload(events[0])["task"]["id"]
        headers = {"Last-Event-ID": events[place].id or "", "Prefer": prefer}
        async with asyncio.timeout(10):
            resumed = await all_events(app, binding, "SubscribeToTask", {"id": task_id}, headers)
        assert [event.id for event in resumed] == [event.id for event in events[place:]]


async def test_a_stream_ends_before_its_function_does(
    app: FastAPI, backends: Backends, binding: str, worker: ScriptedWorker
) -> None:
    """The adapter says when Lambda will stop the function; the stream is over before that."""
    now_ms = backends.storage.clock.now_ms()
    headers = {"x-amzn-lambda-context": f'{{"deadline": {now_ms + 1000}}}'}
    events = await all_events(
        app, binding, "SendStreamingMessage", {"message": message("wait")}, headers
    )
    assert kinds(events)[0] == "task"
    assert "TASK_STATE_COMPLETED" not in str(events)


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
async def test_what_cannot_be_subscribed_to_in_0_3_is_refused(
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


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_an_error_on_the_way_is_one_event_and_the_end(
    app: FastAPI, backends: Backends, binding: str, version: str, task_id: str
) -> None:
    """A task that is deleted under its stream ends it with the version's error, without an id."""
    stream = resubscribe(app, binding, task_id)
    if version == "1.0":
        stream = open_stream(app, binding, "SubscribeToTask", {"id": task_id})
    async with stream as response:
        events = response.events()
        await anext(events)
        await delete_task(backends.storage, task_id)
        (error,) = [event async for event in events]
    assert error.id is None
    if version == "1.0":
        assert (error.event, "TASK_NOT_FOUND" in str(error.data)) == ("error", True)
    else:
        assert error.data["error"]["message"] == "Task not found"


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_an_unforeseen_error_on_the_way_tells_nothing(
    app: FastAPI,
    backends: Backends,
    binding: str,
    worker: ScriptedWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client gets a fixed sentence and a correlation id, never an exception's text."""

    async def explode(*_: object, **__: object) -> None:
        raise RuntimeError("the secret inside")

    params = {"message": message("wait")}
    async with open_stream(app, binding, "SendStreamingMessage", params) as response:
        events = response.events()
        await anext(events)
        await anext(events)
        monkeypatch.setattr(type(backends.storage), "read", explode)
        worker.gate.set()
        rest = [event async for event in events]
    monkeypatch.undo()
    assert [event.event for event in rest] == ["error"]
    assert "secret" not in str(rest)
    assert "Correlation id" in str(rest)

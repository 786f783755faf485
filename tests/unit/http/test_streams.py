"""Streams: what comes first, in which order and with which ids, where they end; and time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest
from a2a.types import AgentCard, TaskStatus
from fastapi import FastAPI

from a2a_serverless.http.app import create_app
from a2a_serverless.http.operations import Entrypoint
from a2a_serverless.http.streams import _RETRY_MS, TOO_LONG
from a2a_serverless.settings import Settings
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import ArtifactWritten, Entry, StatusChanged
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends, memory_backends
from tests.support.a2a_calls import JSONRPC, REST, Agent, message, rpc
from tests.support.asgi_streams import LiveResponse, ServerEvent, live
from tests.support.clocks import Timetable
from tests.support.memory import PolledTable
from tests.support.messages import artifact
from tests.support.present import present
from tests.support.scripted_worker import COMPLETED, ScriptedWorker
from tests.support.stream_calls import all_events, chunks, kinds, open_stream, payload

SEND = "SendStreamingMessage"
SETTINGS = {"keep_alive_s": 7.0}


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_a_text_breaks_no_line(app: FastAPI, binding: str, worker: ScriptedWorker) -> None:
    """Unicode's line ends are escaped: the official Python client would break events at them."""
    text = "go \x85 \u2028 \u2029 \x1c \x0b \x0c on"
    async with open_stream(app, binding, SEND, {"message": message(text)}) as response:
        body = (await response.body()).decode()
    lines = body.splitlines()
    assert lines == body.removesuffix("\n").split("\n")
    opening = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
    task = opening.get("result", opening)["task"]
    assert task["history"][0]["parts"][0]["text"] == text


async def test_a_finished_task_can_be_read_on_from_any_event(
    app: FastAPI, binding: str, worker: ScriptedWorker
) -> None:
    """With Last-Event-ID a finished task's stream has the Task then and what followed it."""
    events = await all_events(app, binding, SEND, {"message": message("go")})
    named = {"id": payload(events[0])["task"]["id"]}
    for last in (0, 2, 4):
        headers = {"Last-Event-ID": events[last].id or ""}
        first, *rest = await all_events(app, binding, "SubscribeToTask", named, headers)
        assert (kinds([first]), first.id) == (["task"], events[last].id)
        assert rest == events[last + 1 :]
        so_far = payload(first)["task"].get("artifacts", [{"parts": []}])[0]["parts"]
        assert "".join(p["text"] for p in so_far) + chunks(rest) == "Once upon a time."


async def test_an_end_with_the_turn(app: FastAPI, binding: str, worker: ScriptedWorker) -> None:
    """With Prefer: until=turn it ends as the stream of the message would, at any pause."""
    events = await all_events(app, binding, SEND, {"message": message("login")})
    named = {"id": payload(events[0])["task"]["id"]}
    for place, prefer in (
        (0, "wait=5, until=turn"),
        (-1, 'foo="a, \\"until=task", Until = "turn"; x="1"'),
        (-1, "until=turn;x, until=task"),
    ):
        headers = {"Last-Event-ID": events[place].id or "", "Prefer": prefer}
        async with asyncio.timeout(10):
            resumed = await all_events(app, binding, "SubscribeToTask", named, headers)
        assert [event.id for event in resumed] == [event.id for event in events[place:]]


async def test_a_stream_ends_before_its_function_does(
    app: FastAPI, backends: Backends, binding: str, worker: ScriptedWorker
) -> None:
    """The adapter says when Lambda will stop the function; the stream is over before that."""
    now_ms = backends.storage.clock.now_ms()
    headers = {"x-amzn-lambda-context": f'{{"deadline": {now_ms + 1000}}}'}
    events = await all_events(app, binding, SEND, {"message": message("wait")}, headers)
    assert kinds(events)[0] == "task"
    assert "TASK_STATE_COMPLETED" not in str(events)


def resubscribe(
    app: FastAPI, binding: str, task_id: str, headers: Mapping[str, str] | None = None
) -> AbstractAsyncContextManager[LiveResponse]:
    """`tasks/resubscribe`, as the two bindings of 0.3 have it."""
    if binding == JSONRPC:
        body = rpc("tasks/resubscribe", {"id": task_id})
        return live(app, "POST", "/", body=body, headers={"A2A-Version": "", **(headers or {})})
    path = f"/v1/tasks/{task_id}:subscribe"
    return live(app, "GET", path, headers={"A2A-Version": "0.3", **(headers or {})})


@pytest.fixture
async def task_id(task_id: str, worker: ScriptedWorker) -> str:
    """A task whose agent waits already."""
    await worker.waiting.wait()
    return task_id


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
    app: FastAPI, backends: Backends, binding: str, worker: ScriptedWorker, monkeypatch: Any
) -> None:
    """The client gets a fixed sentence and a correlation id, never an exception's text."""
    explode = AsyncMock(side_effect=RuntimeError("the secret inside"))
    async with open_stream(app, binding, SEND, {"message": message("wait")}) as response:
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


TEN_MINUTES = 600.0


class LongTask:
    """A task whose agent says a word every 20 s and is done after ten minutes of the clock."""

    def __init__(self, settings: Settings) -> None:
        self.clock = Timetable()
        plain = memory_backends(settings, self.clock)
        table = PolledTable(self.clock)
        self.storage = DurableStorage(table, clock=self.clock, timing=settings.timing())
        self.backends = Backends(storage=self.storage, operations=plain.operations)
        self.words = [f"word {n}. " for n in range(29)]

    def begin(self, task_id: str) -> None:
        for number, word in enumerate(self.words, start=1):
            entry = ArtifactWritten(artifact("story", word), append=True)
            self.clock.at(number * 20.0, self._commit(task_id, entry))
        done = StatusChanged(TaskStatus(state=COMPLETED))
        self.clock.at(TEN_MINUTES - 10, self._commit(task_id, done))

    def _commit(self, task_id: str, entry: Entry) -> Callable[[], Awaitable[Head]]:
        async def commit() -> Head:
            head = present(await self.storage.head(task_id))
            return await self.storage.commit(head, Commit(entries=(entry,)))

        return commit


def task_in(events: list[ServerEvent]) -> dict[str, Any]:
    task: dict[str, Any] = payload(events[0])["task"]
    return task


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("entrypoint", "limit_s", "binding"), [("stream", 300.0, "rest"), ("api", 25.0, "jsonrpc")]
)
async def test_a_ten_minute_task_is_streamed_in_pieces(
    card: AgentCard, binding: str, entrypoint: Entrypoint, limit_s: float
) -> None:
    """Every stream ends at the entrypoint's cap, 300 s or 25 s, and goes on from its last id."""
    settings = Settings(auth="none")
    long = LongTask(settings)
    app = create_app(settings, long.backends, card, entrypoint=entrypoint)
    seen: list[ServerEvent] = []
    async with open_stream(app, binding, SEND, {"message": message("go")}) as response:
        async for event in response.events():
            if not seen:
                long.begin(payload(event)["task"]["id"])
            seen.append(event)
    assert long.clock.monotonic() == pytest.approx(limit_s)
    assert response.comments[-1] == TOO_LONG
    assert response.retry == str(_RETRY_MS)
    task_id, streams = task_in(seen)["id"], 1

    while "TASK_STATE_COMPLETED" not in str(seen[-1].data):
        began = long.clock.monotonic()
        last = {"Last-Event-ID": seen[-1].id or ""}
        more = await all_events(app, binding, "SubscribeToTask", {"id": task_id}, last)
        assert more[0].id == seen[-1].id
        so_far = [p["text"] for a in task_in(more).get("artifacts", []) for p in a["parts"]]
        assert so_far == long.words[: len(seen) - 1]
        assert long.clock.monotonic() - began <= limit_s + 0.001
        seen += more[1:]
        streams += 1

    assert chunks(seen) == "".join(long.words)
    assert kinds(seen) == ["task", *["artifactUpdate"] * 29, "statusUpdate"]
    assert streams == -(-(TEN_MINUTES - 10) // limit_s)


async def test_keep_alive_comes_as_often_as_is_set(
    app: FastAPI, binding: str, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing happens a comment goes out; no event, and no id."""
    waits: list[float] = []
    passed, really_sleep = asyncio.Semaphore(0), anyio.sleep

    async def sleep(seconds: float) -> None:
        if seconds < 1:  # the watcher of the process's end
            await really_sleep(seconds)
            return
        waits.append(seconds)
        await passed.acquire()

    monkeypatch.setattr(anyio, "sleep", sleep)
    async with open_stream(app, binding, SEND, {"message": message("wait")}) as response:
        events, quiet = response.events(), response.chunks()
        seen = [await anext(events), await anext(events)]
        for _ in range(3):
            passed.release()
            comment = await anext(quiet)
            assert comment.startswith(b": ")
            assert comment.count(b"\n") == 2
        worker.gate.set()
        seen += [event async for event in events]
    assert set(waits) == {7.0}
    assert response.comments == []
    assert chunks(seen) == "Once upon a time."


async def test_who_has_left_is_not_read_for(
    app: FastAPI, binding: str, backends: Backends, worker: ScriptedWorker
) -> None:
    """A disconnect ends the subscriber's reads, and the task never hears of it."""
    async with open_stream(app, binding, SEND, {"message": message("wait")}) as response:
        events = response.events()
        task_id = payload(await anext(events))["task"]["id"]
        await anext(events)
    storage = backends.storage
    assert isinstance(storage.table, MemoryTable)
    assert [place for place in storage.table._wakers if not place.startswith("QUEUE#")] == []
    worker.gate.set()
    async with asyncio.timeout(60):
        while (head := await storage.head(task_id)) is None or not head.is_terminal:
            await storage.changed(task_id, head.version if head else 0, 5)
    assert head.state == COMPLETED


async def test_garbage_for_an_id_is_refused_before_the_stream(agent: Agent, task_id: str) -> None:
    """A Last-Event-ID that is no cursor is refused as invalid, also on a running task."""
    for garbage in ("1.0", "-1.0.abcdef", "1.0.abc!ef", "9" * 5000, "1.0.abcdef, 2.0.abcdef"):
        headers = {"Last-Event-ID": garbage}
        answer = await agent.call("SubscribeToTask", {"id": task_id}, headers)
        assert answer.reason == "INVALID_PARAMS"
        assert garbage[:20] not in answer.message

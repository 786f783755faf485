"""Streams and time, without waiting for any: the cap, the silence, keep-alive, slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from a2a.types import AgentCard, TaskStatus
from fastapi import FastAPI

from a2a_serverless.http.app import create_app
from a2a_serverless.http.operations import Entrypoint
from a2a_serverless.http.streams import _RETRY_MS, TOO_LONG
from a2a_serverless.settings import Settings
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import ArtifactWritten, Entry, StatusChanged
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends, memory_backends
from tests.support.a2a_calls import Agent, message
from tests.support.asgi_streams import ServerEvent
from tests.support.clocks import Timetable
from tests.support.memory import PolledTable
from tests.support.messages import artifact
from tests.support.scripted_worker import COMPLETED, ScriptedWorker
from tests.support.stream_calls import all_events, chunks, kinds, open_stream, payload

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
        self._head: Head | None = None

    def begin(self, task_id: str) -> None:
        for number, word in enumerate(self.words, start=1):
            entry = ArtifactWritten(artifact("story", word), append=True)
            self.clock.at(number * 20.0, self._commit(task_id, entry))
        done = StatusChanged(TaskStatus(state=COMPLETED))
        self.clock.at(TEN_MINUTES - 10, self._commit(task_id, done))

    def _commit(self, task_id: str, entry: Entry) -> Callable[[], Awaitable[Head]]:
        async def commit() -> Head:
            head = await self.storage.head(task_id)
            assert head is not None
            return await self.storage.commit(head, Commit(entries=(entry,)))

        return commit


def task_in(events: list[ServerEvent]) -> dict[str, Any]:
    task: dict[str, Any] = payload(events[0])["task"]
    return task


def state_in(event: ServerEvent) -> str:
    return str(payload(event).get("statusUpdate", {}).get("status", {}).get("state"))


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
    async with open_stream(
        app, binding, "SendStreamingMessage", {"message": message("go")}
    ) as response:
        async for event in response.events():
            if not seen:
                long.begin(payload(event)["task"]["id"])
            seen.append(event)
    assert long.clock.monotonic() == pytest.approx(limit_s)
    assert response.comments[-1] == TOO_LONG
    assert response.retry == str(_RETRY_MS)
    task_id, streams = task_in(seen)["id"], 1

    while state_in(seen[-1]) != "TASK_STATE_COMPLETED":
        began = long.clock.monotonic()
        last = {"Last-Event-ID": seen[-1].id or ""}
        more = await all_events(app, binding, "SubscribeToTask", {"id": task_id}, last)
        assert more[0].id == seen[-1].id
        assert [p["text"] for a in task_in(more).get("artifacts", []) for p in a["parts"]] == [
            *long.words[: len(seen) - 1]
        ]
        assert long.clock.monotonic() - began <= limit_s + 0.001
        seen += more[1:]
        streams += 1

    assert chunks(seen) == "".join(long.words)
    assert kinds(seen) == ["task", *["artifactUpdate"] * 29, "statusUpdate"]
    assert streams == -(-(TEN_MINUTES - 10) // limit_s)


async def test_keep_alive_comes_as_often_as_is_set(
    backends: Backends,
    card: AgentCard,
    binding: str,
    worker: ScriptedWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While nothing happens a comment goes out; no event, and no id."""
    app = create_app(Settings(auth="none", keep_alive_s=7.0), backends, card, entrypoint="stream")
    waits: list[float] = []
    passed, really_sleep = asyncio.Semaphore(0), anyio.sleep

    async def sleep(seconds: float) -> None:
        if seconds < 1:  # the watcher of the process's end
            await really_sleep(seconds)
            return
        waits.append(seconds)
        await passed.acquire()

    monkeypatch.setattr(anyio, "sleep", sleep)
    params = {"message": message("wait")}
    async with open_stream(app, binding, "SendStreamingMessage", params) as response:
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
    params = {"message": message("wait")}
    async with open_stream(app, binding, "SendStreamingMessage", params) as response:
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


async def test_garbage_for_an_id_is_refused_before_the_stream(
    agent: Agent, worker: ScriptedWorker
) -> None:
    """A Last-Event-ID that is no cursor is refused as invalid, also on a running task."""
    sent = await agent.send("wait", configuration={"returnImmediately": True})
    for garbage in ("1.0", "-1.0.abcdef", "1.0.abc!ef", "9" * 5000, "1.0.abcdef, 2.0.abcdef"):
        params, headers = {"id": sent.task["id"]}, {"Last-Event-ID": garbage}
        answer = await agent.call("SubscribeToTask", params, headers)
        assert answer.reason == "INVALID_PARAMS"
        assert garbage[:20] not in answer.message

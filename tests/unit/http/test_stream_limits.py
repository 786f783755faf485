"""How many streams and waits there may be: what a client sees at the limit, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any
from unittest.mock import AsyncMock

import pytest
from fastapi import FastAPI

from a2a_serverless.http import intake
from a2a_serverless.http.intake import Wait
from a2a_serverless.http.streams import _TOO_MANY
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.leases import Slots
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope, digest
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import JSONRPC, LATER, REST, Agent, client_of, message
from tests.support.asgi_streams import LiveResponse
from tests.support.clocks import ManualClock
from tests.support.memory import PolledTable
from tests.support.messages import request
from tests.support.present import present
from tests.support.scripted_worker import ScriptedWorker
from tests.support.stream_calls import all_events, kinds, open_stream, payload

SEND = "SendStreamingMessage"
ANN = {"X-API-Key": "ann-key-of-twenty-characters"}


SETTINGS = {"auth": "api-key", "api_keys": f"ann={ANN['X-API-Key']}", "streams_in_all": 2}
SETTINGS |= {"streams_per_caller": 1}


async def opened(response: LiveResponse) -> str:
    """Read a stream's Task and return its id; the stream waits then, and is counted."""
    events = response.events()
    task_id: str = payload(await anext(events))["task"]["id"]
    await anext(events)  # the agent is at work
    return task_id


@pytest.mark.parametrize("entrypoint", ["stream", "api"])
async def test_a_stream_above_the_limit(app: FastAPI, binding: str, worker: ScriptedWorker) -> None:
    """It shows what is committed, says why it ends, and can be resumed, also if it is buffered."""
    wait = {"message": message("wait")}
    async with open_stream(app, binding, SEND, wait, ANN) as first:
        await opened(first)
        async with open_stream(app, binding, SEND, wait, ANN) as second:
            events = [event async for event in second.events()]
        assert kinds(events)[0] == "task"
        assert _TOO_MANY in second.comments
        assert first.comments == []
        worker.gate.set()
    resumed = {**ANN, "Last-Event-ID": events[-1].id or ""}
    named = {"id": payload(events[0])["task"]["id"]}
    more = await all_events(app, binding, "SubscribeToTask", named, resumed)
    assert payload(more[-1])["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_ended_streams_are_free(app: FastAPI, binding: str, worker: ScriptedWorker) -> None:
    """The next one of its caller's has its place: after its end, and after its client has left."""
    for _ in range(2):
        async with open_stream(app, binding, SEND, {"message": message("wait")}, ANN) as left:
            await opened(left)
        assert left.comments == []
    worker.gate.set()
    for _ in range(2):
        done = await all_events(app, binding, SEND, {"message": message("go")}, ANN)
        assert payload(done[-1])["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def at_the_limit(backends: Backends) -> None:
    """Take Ann's one place."""
    assert await present(backends.streams).take("ann", for_s=60) is not None


@pytest.fixture
def ann(app: FastAPI, binding: str) -> Agent:
    """The agent, as Ann calls it."""
    return Agent(client_of(app, headers=ANN), binding)


@pytest.mark.parametrize(("entrypoint", "binding"), [("api", JSONRPC), ("stream", REST)])
async def test_a_blocking_send_above_the_limit_is_answered_after_a_second(
    ann: Agent, settings: Settings, worker: ScriptedWorker, backends: Backends, monkeypatch: Any
) -> None:
    """The task is answered at work; a turn that ends within the second is waited for as ever."""
    await at_the_limit(backends)
    assert intake._LEASED_AFTER_S == 1
    monkeypatch.setattr(intake, "_LEASED_AFTER_S", 0.05)
    began = monotonic()
    task = await ann.send("wait")
    assert monotonic() - began < settings.blocking_limit_s
    assert task.state in {"SUBMITTED", "WORKING"}
    monkeypatch.setattr(intake, "_LEASED_AFTER_S", 60)
    assert (await ann.send("go")).state == "COMPLETED"
    worker.gate.set()


async def test_a_long_blocking_send_is_counted_until_its_answer(
    ann: Agent, worker: ScriptedWorker, backends: Backends
) -> None:
    """While it waits, its caller has one place less; afterwards the place is free again."""
    slots, room = Slots(backends.storage.table), f"CALLER#{digest('caller', 'ann')}#0"
    waiting = asyncio.create_task(ann.send("wait"))
    while not await slots.held(room):
        assert not waiting.done()
        await asyncio.sleep(0.01)
    worker.gate.set()
    assert (await waiting).state == "COMPLETED"
    assert not await slots.held(room)


async def followed(tail: Tail, until: Callable[[Head], bool], deadline: float) -> None:
    """Follow a tail without a wait that counts."""
    async for _ in tail.events(until=until, deadline=deadline):
        pass


async def test_a_wait_is_as_quiet_as_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it begins to count, after a second, it does not begin to poll anew."""
    reads = []
    calls: list[Callable[..., Awaitable[object]]] = [followed, Wait(None, "").settle]
    for waits in calls:
        clock = ManualClock()
        storage = DurableStorage(PolledTable(clock), clock=clock)
        task_id = (await storage.open_task("context", request())).head.task_id
        tail = await Tail.open(storage, task_id)
        asked = AsyncMock(side_effect=storage.read)
        monkeypatch.setattr(storage, "read", asked)
        await waits(tail, until=lambda head: head.is_terminal, deadline=clock.monotonic() + 25)
        reads.append(asked.await_count)
    assert reads[1] <= reads[0] + 1


async def test_a_cancel_above_the_limit_is_answered_before_its_end(
    ann: Agent, worker: ScriptedWorker, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task is answered at work; its cancel stands and goes on without this request."""
    monkeypatch.setattr(intake, "_LEASED_AFTER_S", 0.05)
    await at_the_limit(backends)
    task_id = (await ann.send("ignore", configuration=LATER)).task["id"]
    answered = await ann.call("CancelTask", {"id": task_id})
    assert answered.state in {"SUBMITTED", "WORKING"}
    head = present(await backends.storage.for_scope(Scope.of("", "ann")).head(task_id))
    assert head.cancel is not None
    worker.gate.set()

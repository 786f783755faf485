"""The resuming client at the application: behind each of the functions, over both bindings."""

from __future__ import annotations

import httpx
import pytest
from a2a.types import StreamResponse, TaskState

from a2a_serverless.client import Retries, resuming
from a2a_serverless.clock import SystemClock
from a2a_serverless.settings import Settings
from tests.conformance.conftest import ServedAgent, official_client
from tests.support.a2a_calls import JSONRPC
from tests.support.messages import request
from tests.support.scripted_worker import ScriptedWorker

STREAMS = 3
"""Streams that a waiting task outlasts."""


@pytest.fixture
def settings() -> Settings:
    """Streams and blocking sends end long before a task that waits."""
    return Settings(auth="none", blocking_limit_s=0.1, stream_limit_s=0.1)


class QuickClock(SystemClock):
    """The machine's clock, on which waits are a tenth as long."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 10)


def shown(events: list[StreamResponse]) -> list[str]:
    """What a stream shows, in short: states and chunks."""
    words = []
    for event in events:
        if event.HasField("artifact_update"):
            words.append(event.artifact_update.artifact.parts[0].text)
        else:
            status = event.task.status if event.HasField("task") else event.status_update.status
            words.append(TaskState.Name(status.state).removeprefix("TASK_STATE_"))
    return words


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_ended_streams(agent: ServedAgent, worker: ScriptedWorker, version: str) -> None:
    """A task that outlasts several streams is shown once, from its first event to its last."""
    last_ids: list[str | None] = []

    async def note(asked: httpx.Request) -> None:
        last_ids.append(asked.headers.get("last-event-id"))
        if len(last_ids) > STREAMS:
            worker.gate.set()

    binding = "JSONRPC" if agent.binding == JSONRPC else "HTTP+JSON"
    official = await official_client(agent.client, "http://test", binding, version)
    agent.client.event_hooks["request"].append(note)
    client = resuming(official, agent.client, Retries(clock=QuickClock()))
    events = [event async for event in client.send_message(request("wait"))]
    assert shown(events) == ["SUBMITTED", "WORKING", "Once upon ", "a time.", "COMPLETED"]
    assert len(last_ids) > STREAMS
    assert last_ids[0] is None
    assert all(last_ids[1:])

"""`@a2a-js/sdk`, the official JavaScript client, unchanged: 1.0 and 0.3 over both bindings."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from a2a_serverless.settings import Settings
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.support.foreign_clients import install_javascript, told
from tests.support.gateway import STAGE, front
from tests.support.messages import storyteller
from tests.support.scripted_worker import ScriptedWorker

BINDINGS = ["JSONRPC", "HTTP+JSON"]

# The client's numbers of the protocol's states.
SUBMITTED, WORKING, COMPLETED, INPUT_REQUIRED = 1, 2, 3, 6

CARD = storyteller()


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script beside the client that npm has installed as the lock says."""
    return install_javascript(tmp_path_factory.mktemp("javascript")) / "stream.mjs"


@pytest.fixture
def backends() -> Backends:
    return memory_backends(Settings())


@pytest.fixture
def url(backends: Backends) -> Iterator[str]:
    """The API below its stage; a client's URL ends with a slash."""
    settings = Settings(auth="none", keep_alive_s=0.05)
    with (
        front(settings, backends, CARD) as gateway,
        HttpServer(gateway, bind(0), lifespan=False) as server,
    ):
        yield f"{server.url}/{STAGE}/"


@pytest.fixture
async def worker(backends: Backends) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(backends).running() as worker:
        yield worker


def javascript(
    script: Path, url: str, binding: str, operation: str, argument: str
) -> AsyncGenerator[dict[str, Any]]:
    """What the client tells of a stream, as it gets it."""
    return told(["node", str(script)], url, binding, operation, argument)


async def test_a_task_is_streamed_to_its_end(
    script: Path, url: str, worker: ScriptedWorker
) -> None:
    """The Task first, then what happens as it happens, keep-alives unseen, then the end."""
    seen = []
    async for event in javascript(script, url, "JSONRPC", "send", "wait"):
        seen.append(event)
        if event["kind"] == "statusUpdate":
            worker.gate.set()  # the agent goes on only after the client has seen its status
    assert [(e["kind"], e.get("state") or e.get("chunk")) for e in seen] == [
        ("task", SUBMITTED),
        ("statusUpdate", WORKING),
        ("artifactUpdate", "Once upon "),
        ("artifactUpdate", "a time."),
        ("statusUpdate", COMPLETED),
    ]
    assert seen[-1]["says"] == "Done."


@pytest.mark.long
async def test_a_task_is_subscribed_to(script: Path, url: str, worker: ScriptedWorker) -> None:
    """A second client joins at the Task as it is, and follows it to its end."""
    binding = "HTTP+JSON"
    sending = javascript(script, url, binding, "send", "wait")
    task_id = (await anext(sending))["task"]
    await worker.waiting.wait()
    seen = []
    async for event in javascript(script, url, binding, "subscribe", task_id):
        seen.append(event)
        worker.gate.set()
    assert seen[0]["kind"] == "task"
    assert "".join(e.get("chunk", "") for e in seen) == "Once upon a time."
    assert seen[-1]["state"] == COMPLETED
    rest = [event async for event in sending]
    assert rest[-2:] == seen[-2:]


@pytest.mark.long
@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_error_on_the_way_arrives_as_the_clients_own(
    script: Path, url: str, worker: ScriptedWorker, backends: Backends, binding: str
) -> None:
    """The stream of a task that is deleted ends with the protocol's error."""
    seen = []
    async for event in javascript(script, url, binding, "send", "ignore"):
        seen.append(event)
        if event["kind"] == "statusUpdate":
            await delete_task(backends.storage, seen[0]["task"])
    assert [e["kind"] for e in seen] == ["task", "statusUpdate", "error"]
    assert "Task not found" in seen[-1]["says"]


@pytest.mark.long
async def test_the_client_of_0_3_takes_the_same_address(
    script: Path, url: str, worker: ScriptedWorker
) -> None:
    """The client of 0.3 reads the same card, streams events, and joins another's stream."""
    binding = "JSONRPC"
    older = script.with_name("stream-0.3.mjs")
    sending = javascript(older, url, binding, "send", "wait")
    seen = [await anext(sending)]
    await worker.waiting.wait()
    async with aclosing(javascript(older, url, binding, "subscribe", seen[0]["task"])) as joined:
        event = await anext(joined)
        assert (event["kind"], event["task"]) == ("task", seen[0]["task"])
    worker.gate.set()
    seen += [event async for event in sending]
    assert [(e["kind"], e.get("state") or e.get("chunk")) for e in seen] == [
        ("task", "submitted"),
        ("status-update", "working"),
        ("artifact-update", "Once upon "),
        ("artifact-update", "a time."),
        ("status-update", "completed"),
    ]

"""`@a2a-js/sdk`, the official JavaScript client, unchanged: at the API behind its gateway."""

from collections.abc import AsyncIterator, Iterator

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
def script(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A script beside the client that npm has installed as the lock says."""
    folder = install_javascript(tmp_path_factory.mktemp("javascript"))
    return ["node", str(folder / "stream.mjs")]


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


async def test_a_task_is_streamed_whole(
    script: list[str], url: str, worker: ScriptedWorker
) -> None:
    """The Task first, then what happens as it happens, keep-alives unseen, then the end."""
    seen = []
    async for event in told(script, url, "JSONRPC", "send", "wait"):
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
@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_error_on_the_way_arrives_as_the_clients_own(
    script: list[str], url: str, worker: ScriptedWorker, backends: Backends, binding: str
) -> None:
    """The stream of a task that is deleted ends with the protocol's error."""
    seen = []
    async for event in told(script, url, binding, "send", "ignore"):
        seen.append(event)
        if event["kind"] == "statusUpdate":
            await delete_task(backends.storage, seen[0]["task"])
    assert [e["kind"] for e in seen] == ["task", "statusUpdate", "error"]
    assert "Task not found" in seen[-1]["says"]

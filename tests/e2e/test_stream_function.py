"""StreamFunction's own start script, streaming what a worker writes to DynamoDB."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.clients import BINDINGS, client_at, last_state, stream
from tests.e2e.commands import START_S, STOP_S, environment, running
from tests.e2e.conftest import AGENT, CARD, Served
from tests.e2e.received import events
from tests.support.a2a_calls import JSONRPC, REST, message

pytestmark = [pytest.mark.emulators, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "functions" / "api"


@contextmanager
def stream_sh(names: Mapping[str, str], output: Path) -> Iterator[str]:
    """stream.sh as the adapter starts it: with what Lambda, the layer and template.yaml set."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = environment(
        **names,
        A2A_AUTH="none",
        A2A_CARD=CARD,
        A2A_STREAM_LIMIT_S="300",
        AWS_LAMBDA_EXEC_WRAPPER="/opt/bootstrap",
        AWS_LAMBDA_FUNCTION_MEMORY_SIZE="512",
        AWS_LAMBDA_FUNCTION_NAME="stream",
        AWS_LAMBDA_FUNCTION_VERSION="$LATEST",
        AWS_LAMBDA_INITIALIZATION_TYPE="on-demand",
        AWS_LAMBDA_LOG_GROUP_NAME="/aws/lambda/stream",
        AWS_LAMBDA_RUNTIME_API="127.0.0.1:9",
        AWS_LWA_INVOKE_MODE="response_stream",
        AWS_LWA_PORT=str(port),
        AWS_LWA_READINESS_CHECK_PATH="/healthz",
        AWS_EXECUTION_ENV="AWS_Lambda_python3.13",
        AWS_REGION=names["AWS_DEFAULT_REGION"],
        LAMBDA_RUNTIME_DIR="/var/runtime",
        LAMBDA_TASK_ROOT=str(FOLDER),
        TZ=":UTC",
        _HANDLER="stream.sh",
    )
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [FOLDER / "stream.sh"], cwd="/", env=variables, stdout=file, stderr=file
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(f"{url}/healthz", process, output)
        yield url
    finally:
        process.terminate()
        process.wait(STOP_S)


def wait_until_ready(url: str, process: subprocess.Popen[bytes], output: Path) -> None:
    """Probe the readiness path until it answers, as the adapter does."""
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            assert httpx.get(url, trust_env=False).json() == {"status": "ok"}
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"stream.sh is not ready: {output.read_text()}")


@pytest.fixture(scope="module")
def function(
    own_queues: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """The streaming function and a worker, in a process each."""
    folder = tmp_path_factory.mktemp("stream-function")
    env = environment(**own_queues, PROBE_FOLDER=str(folder))
    working = ("worker", "--agent", AGENT)
    with (
        running(*working, env=env, output=folder / "worker.log") as worker,
        stream_sh(own_queues, folder / "stream.log") as url,
    ):
        worker.wait_for("turns at a time")
        yield Served(url=url, folder=folder)


@pytest.mark.parametrize("binding", [JSONRPC, REST])
async def test_a_stream_survives_its_function(function: Served, binding: str) -> None:
    """Lambda's deadline ends a stream in good order; the next one goes on where it stopped.

    The agent holds meanwhile: so the first bytes of both come while it is silent, and what it
    does after that reaches the second one.
    """
    params = {"message": message("hold", messageId=uuid.uuid4().hex)}
    soon = {"deadline": int((time.time() + 8) * 1000)}  # 5 s are kept for the end
    invocation = {"x-amzn-lambda-context": json.dumps(soon)}
    async with httpx.AsyncClient(base_url=function.url, trust_env=False, timeout=60) as http:
        first = [e async for e in events(http, binding, "SendStreamingMessage", params, invocation)]
        assert first[0].kind == "task"
        assert first[0].state == "TASK_STATE_SUBMITTED"
        assert first[-1].state in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")

        task_id, resumed = first[0].content["id"], {"Last-Event-ID": first[-1].id}
        second = []
        async for event in events(http, binding, "SubscribeToTask", {"id": task_id}, resumed):
            second.append(event)
            function.release(task_id)  # only now: the stream has begun on a quiet task
    assert second[0].kind == "task"
    assert second[0].id == first[-1].id
    assert second[-1].state == "TASK_STATE_COMPLETED"
    whole = [*first[1:], *second[1:]]
    written = [e.content["artifact"] for e in whole if e.kind == "artifactUpdate"]
    assert "".join(p["text"] for a in written for p in a["parts"]) == "You said: hold"
    assert len({e.id for e in whole}) == len(whole)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_the_official_client_streams_from_it(function: Served, binding: Any) -> None:
    """The official client reads the function's card, and streams over both bindings."""
    async with client_at(function.url, binding=binding) as client:
        seen = [event async for event in stream(client, "hello")]
    assert seen[0].HasField("task")
    assert last_state(seen) == 3

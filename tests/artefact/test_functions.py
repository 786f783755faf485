from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.artefact.build import Artefact
from tests.artefact.deployment import API_KEY, Deployment, event_file
from tests.artefact.environment import Environment
from tests.artefact.report import PROPERTY, Figure
from tests.artefact.webhook import webhook

pytestmark = [pytest.mark.emulators, pytest.mark.timeout(300)]

Record = Callable[[str, object], None]


def request(method: str, path: str, body: Any = None) -> dict[str, Any]:
    """The event of an API request, like those in events/."""
    event: dict[str, Any] = json.loads(event_file("api-rest-get-task").read_text())
    event["rawPath"] = event["requestContext"]["http"]["path"] = path
    event["requestContext"]["http"]["method"] = method
    if body is not None:
        event["headers"]["content-type"] = "application/json"
        event["body"] = json.dumps(body)
    return event


def content(answer: Mapping[str, Any]) -> Any:
    """The JSON of an answer, which was a success."""
    body = answer["body"]
    text = base64.b64decode(body) if answer["isBase64Encoded"] else body
    assert answer["statusCode"] == 200, text
    return json.loads(text)


def send(api: Environment, text: str) -> str:
    """Accept a message; the id of its task."""
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    body = {"message": message, "configuration": {"returnImmediately": True}}
    return str(content(api.invoke(request("POST", "/message:send", body)))["task"]["id"])


def state(api: Environment, task_id: str) -> str:
    task = content(api.invoke(request("GET", f"/tasks/{task_id}")))
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


def note_start(record: Record, *environments: Environment) -> None:
    """Put the cold starts on the report."""
    for one in environments:
        values = {"ms": one.start_s * 1000}
        figure = Figure(kind="cold start, process to first event", name=one.name, values=values)
        record(PROPERTY, figure.to_json())


def test_every_function_is_built_and_driven(artefact: Artefact) -> None:
    """What the template deploys is what these tests start."""
    assert set(artefact.functions()) == {
        "ApiFunction",
        "PushFunction",
        "StreamFunction",
        "SweeperFunction",
        "WorkerFunction",
    }


def test_the_layer_holds_the_runtime_alone(artefact: Artefact) -> None:
    """The layer has the package and its bytecode, not the local stack, boto3 or programs."""
    there = {path.name for path in artefact.layer.iterdir()}
    assert "a2a_serverless" in there
    assert not there & {"boto3", "botocore", "s3transfer", "moto", "bin"}
    package = artefact.layer / "a2a_serverless"
    assert not (package / "local").exists()
    assert list(package.glob("__pycache__/settings.*.pyc"))


def test_a_task_passes_through_the_built_functions(
    deployment: Deployment, tmp_path: Path, record_property: Record
) -> None:
    """An API request, the queue's record, and what the agent wrote, each in its own process."""
    functions, made = deployment.functions, deployment.made
    with (
        functions["ApiFunction"].started(tmp_path / "api.log") as api,
        functions["WorkerFunction"].started(
            tmp_path / "worker.log", AGENT_CHUNK_DELAY_S="0"
        ) as worker,
    ):
        note_start(record_property, api, worker)
        card = content(api.invoke(json.loads(event_file("api-agent-card").read_text())))
        assert card["name"]
        task_id = send(api, "Two days in Lisbon")
        assert state(api, task_id) == "SUBMITTED"
        records = list(deployment.records(made.queue))
        assert len(records) == 1
        assert worker.invoke({"Records": records}) == {"batchItemFailures": []}
        assert state(api, task_id) == "COMPLETED"
        assert worker.invoke({"Records": records}) == {"batchItemFailures": []}
        task = content(api.invoke(request("GET", f"/tasks/{task_id}")))
        text = "".join(part["text"] for part in task["artifacts"][0]["parts"])
        assert text.count("# Lisbon in 2 days") == 1


def test_the_sweeper_takes_both_of_its_events(
    deployment: Deployment, tmp_path: Path, record_property: Record
) -> None:
    """A schedule event is a round; a dead letter ends its task, which the API then shows."""
    functions = deployment.functions
    with (
        functions["ApiFunction"].started(tmp_path / "api.log") as api,
        functions["SweeperFunction"].started(tmp_path / "sweeper.log") as sweeper,
    ):
        note_start(record_property, sweeper)
        swept = sweeper.invoke(json.loads(event_file("sweeper-schedule").read_text()))
        assert (swept["sent"], swept["failed"]) == (0, 0)
        task_id = send(api, "Two days in Lisbon")
        dead = list(deployment.records(deployment.made.queue))
        assert len(dead) == 1
        assert sweeper.invoke({"Records": dead}) == {"batchItemFailures": []}
        assert state(api, task_id) == "FAILED"


def test_a_stream_record_becomes_a_notification(
    deployment: Deployment, tmp_path: Path, record_property: Record
) -> None:
    """A commit's stream record wakes the delivery, whose queue record tells the webhook, signed."""
    functions, made = deployment.functions, deployment.made
    private = {"A2A_PUSH_ALLOWED_HOSTS": "127.0.0.1"}
    with (
        webhook() as hook,
        functions["ApiFunction"].started(tmp_path / "api.log", **private) as api,
        functions["WorkerFunction"].started(
            tmp_path / "worker.log", AGENT_CHUNK_DELAY_S="0"
        ) as worker,
        functions["PushFunction"].started(tmp_path / "push.log", **private) as push,
    ):
        note_start(record_property, push)
        task_id = send(api, "Two days in Lisbon")
        content(
            api.invoke(
                request("POST", f"/tasks/{task_id}/pushNotificationConfigs", {"url": hook.url})
            )
        )
        operations = list(deployment.records(made.queue))
        assert worker.invoke({"Records": operations}) == {"batchItemFailures": []}
        commits = deployment.commits(task_id)
        assert push.invoke({"Records": commits}) == {"batchItemFailures": []}
        wakes = list(deployment.records(made.push_queue))
        assert wakes
        assert push.invoke({"Records": wakes}) == {"batchItemFailures": []}
    (headers, body), *more = hook.received
    assert not more
    assert body["statusUpdate"]["taskId"] == task_id
    assert body["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert headers["X-A2A-Signature"].count(".") == 2


def test_the_stream_function_serves(
    deployment: Deployment, tmp_path: Path, record_property: Record
) -> None:
    """The built stream.sh is executable and serves the card, on the layer's packages alone."""
    function = deployment.functions["StreamFunction"]
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = function.environment()
    variables |= {"AWS_LWA_PORT": str(port), "PATH": f"{python.parent}:{variables['PATH']}"}
    started_at = time.monotonic()
    process = subprocess.Popen([function.folder / function.handler], cwd="/", env=variables)
    try:
        url, key = f"http://127.0.0.1:{port}", {"X-API-Key": API_KEY}
        with httpx.Client(base_url=url, trust_env=False, headers=key) as http:
            wait_until_ready(http, process)
            figure = Figure(
                kind="cold start, process to first event",
                name=function.name,
                values={"ms": (time.monotonic() - started_at) * 1000},
            )
            record_property(PROPERTY, figure.to_json())
            assert http.get("/.well-known/agent-card.json").json()["name"]
            assert http.get("/tasks", headers={"A2A-Version": "1.0"}).json()["tasks"] is not None
    finally:
        process.terminate()
        process.wait(20)


def wait_until_ready(http: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """As the adapter does: probe the readiness path until it answers."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            assert http.get("/healthz").status_code == 200
        except httpx.TransportError:
            time.sleep(0.02)
        else:
            return
    pytest.fail("stream.sh is not ready")

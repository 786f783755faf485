"""A worker outside of Lambda tells operators what the function tells them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.commands import (
    environment,
    first_process,
    namespace,
    run,
    running,
    running_first,
)
from tests.e2e.conftest import AGENT, CARD, names_of_queues, provision
from tests.support.a2a_calls import message

pytestmark = pytest.mark.emulators

OBSERVED = {
    "POWERTOOLS_SERVICE_NAME": "pulling",
    "POWERTOOLS_METRICS_NAMESPACE": "A2AServerless",
    "POWERTOOLS_LOG_LEVEL": "INFO",
}
"""The variables as template.yaml gives them to the functions."""


def test_a_pull_worker_writes_json_and_metrics(own_queues: dict[str, str], tmp_path: Path) -> None:
    """A pull worker logs JSON with the turn's ids, and writes the same metrics as the function."""
    env = environment(**own_queues, A2A_AUTH="none", PROBE_FOLDER=str(tmp_path))
    with ExitStack() as processes:
        worker = processes.enter_context(
            running(
                *("worker", "--agent", AGENT),
                env={**env, **OBSERVED},
                output=tmp_path / "worker.log",
            )
        )
        api = processes.enter_context(
            running("api", "--card", CARD, "--port", "0", env=env, output=tmp_path / "api.log")
        )
        worker.wait_for("turns at a time")
        url = api.wait_for(r"A2A at (\S+),")
        answer = httpx.post(
            f"{url}/message:send",
            json={"message": message("hello")},
            headers={"A2A-Version": "1.0"},
            timeout=60,
        )
        task = answer.json()["task"]
        worker.wait_for("TasksEnded")
        assert worker.end() == 0
        lines = [json.loads(line) for line in worker.said().splitlines() if line.startswith("{")]
    assert metrics_of(lines) >= {"Attempts", "TimeQueued", "TasksEnded", "TimeToEnd"}
    assert {line["service"] for line in lines} == {"pulling"}
    told = [line for line in lines if line.get("action") == "turn_ended"]
    assert [line["task_id"] for line in told] == [task["id"]]


def test_the_first_process_of_a_container_drains(
    provisioned: dict[str, str], tmp_path: Path
) -> None:
    """As process 1 a worker that SIGTERM reaches lets turns end, and gives the rest back.

    The system ends no process 1 by a signal that it does not handle. A second worker goes on.
    """
    before = namespace()
    if before is None:
        pytest.skip("unshare is not permitted here: no process can be the first of a namespace.")
    queues = provision({**provisioned, **names_of_queues()})
    env = environment(**queues, A2A_AUTH="none", PROBE_FOLDER=str(tmp_path))
    worker = ("worker", "--agent", AGENT, "--concurrency", "2", "--drain", "3")
    with ExitStack() as processes:
        first = processes.enter_context(
            running_first(before, *worker, env={**env, **OBSERVED}, output=tmp_path / "first.log")
        )
        api = processes.enter_context(
            running("api", "--card", CARD, "--port", "0", env=env, output=tmp_path / "api.log")
        )
        first.wait_for("turns at a time")
        url, version = api.wait_for(r"A2A at (\S+),"), {"A2A-Version": "1.0"}
        http = processes.enter_context(httpx.Client(base_url=url, headers=version, timeout=60))
        ends, stays = (_sent(http, "hold") for _ in range(2))
        _until(lambda: _runs(tmp_path) == {ends, stays})
        os.kill(first_process(first), signal.SIGTERM)
        (tmp_path / f"release-{ends}").touch()
        assert first.process.wait(30) == 0
        told = [json.loads(line) for line in first.said().splitlines() if line.startswith("{")]
        actions = {(line["task_id"], line["action"]) for line in told if "task_id" in line}
        assert {(ends, "turn_ended"), (stays, "shutdown")} <= actions
        assert _state(http, ends) == "TASK_STATE_COMPLETED"
        (tmp_path / f"release-{stays}").touch()
        processes.enter_context(running(*worker, env=env, output=tmp_path / "other.log"))
        _until(lambda: _state(http, stays) == "TASK_STATE_COMPLETED")


def _sent(http: httpx.Client, text: str) -> str:
    body = {"message": message(text), "configuration": {"returnImmediately": True}}
    return str(http.post("/message:send", json=body).json()["task"]["id"])


def _state(http: httpx.Client, task_id: str) -> str:
    return str(http.get(f"/tasks/{task_id}").json()["status"]["state"])


def _runs(folder: Path) -> set[str]:
    """The tasks whose turns have started."""
    runs = folder / "runs"
    return set(runs.read_text(encoding="utf-8").split()) if runs.exists() else set()


def _until(holds: Callable[[], bool], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_pull_worker_without_its_agent_says_so(tmp_path: Path) -> None:
    """An agent that cannot be loaded is counted for the alarm before the command ends."""
    (tmp_path / "agent.py").write_text("import a_framework_that_is_not_there\n", encoding="utf-8")
    refused = run("worker", env=environment(**OBSERVED), cwd=tmp_path)
    assert refused.returncode == 2
    assert "a_framework_that_is_not_there" in refused.stderr
    lines = [json.loads(line) for line in refused.stdout.splitlines()]
    assert metrics_of(lines) == {"AgentNotLoaded"}


def metrics_of(lines: list[dict[str, Any]]) -> set[str]:
    """The names of the metrics in lines of the embedded metric format."""
    return {
        metric["Name"]
        for line in lines
        if "_aws" in line
        for directive in line["_aws"]["CloudWatchMetrics"]
        for metric in directive["Metrics"]
    }

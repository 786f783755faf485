"""A worker outside of Lambda tells operators what the function tells them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.commands import environment, run, running
from tests.e2e.conftest import AGENT, CARD
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

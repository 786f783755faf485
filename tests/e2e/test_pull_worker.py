"""What runs outside of Lambda tells operators what the functions tell them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import Running, deployed, environment, run
from tests.e2e.conftest import ARGUMENTS, provision
from tests.support.a2a_calls import Caller, message
from tests.unit.push.receivers import Receiver

pytestmark = pytest.mark.emulators

OBSERVED = {
    "POWERTOOLS_SERVICE_NAME": "pulling",
    "POWERTOOLS_METRICS_NAMESPACE": "A2AServerless",
    "POWERTOOLS_LOG_LEVEL": "INFO",
}
"""The variables as template.yaml gives them to the functions."""


def test_commands_write_the_functions_json_and_metrics(
    emulators: dict[str, str], fresh_names: dict[str, str], tmp_path: Path
) -> None:
    """`worker`, `push` and `sweep`: lines with ids, and the metrics of the three functions."""
    env = environment(
        **provision({**emulators, **fresh_names}),
        **OBSERVED,
        A2A_AUTH="none",
        A2A_PUSH_ALLOWED_HOSTS="127.0.0.1",
        PROBE_FOLDER=str(tmp_path),
    )
    with Receiver() as receiver, deployed(env, tmp_path, ARGUMENTS) as started:
        _, worker, push, sweep = started.commands.values()
        hook = {"taskPushNotificationConfig": {"url": receiver.url()}}
        with Caller(started.url) as caller:
            body = {"message": message("hello"), "configuration": hook}
            task = caller.http.post("/message:send", json=body).json()["task"]
        worker.wait_for("TasksEnded")
        push.wait_for("PushDeliveries")
        sweep.wait_for("Swept: ")
        started.end()
        of_worker, of_push, of_sweep = map(lines_of, (worker, push, sweep))
    assert metrics_of(of_worker) >= {"Attempts", "TimeQueued", "TasksEnded", "TimeToEnd"}
    assert metrics_of(of_push) >= {"PushDeliveries", "PushDelay"}
    told = [line for line in of_worker if line.get("action") == "turn_ended"]
    told += [line for line in of_push if line.get("action") == "push_delivered"]
    assert [line["task_id"] for line in told] == [task["id"]] * 2
    assert [line["message"] for line in of_sweep if line["message"].startswith("Swept: ")]
    for lines in (of_worker, of_push, of_sweep):
        assert {line["service"] for line in lines} == {"pulling"}


def test_a_pull_worker_without_its_agent_says_so(tmp_path: Path) -> None:
    """An agent that cannot be loaded is counted for the alarm before the command ends."""
    (tmp_path / "agent.py").write_text("import a_framework_that_is_not_there\n", encoding="utf-8")
    refused = run("worker", env=environment(**OBSERVED), cwd=tmp_path)
    assert refused.returncode == 2
    assert "a_framework_that_is_not_there" in refused.stderr
    lines = [json.loads(line) for line in refused.stdout.splitlines()]
    assert metrics_of(lines) == {"AgentNotLoaded"}


def lines_of(command: Running) -> list[dict[str, Any]]:
    return [json.loads(line) for line in command.said().splitlines() if line.startswith("{")]


def metrics_of(lines: list[dict[str, Any]]) -> set[str]:
    """The names of the metrics in lines of the embedded metric format."""
    written = [line["_aws"]["CloudWatchMetrics"] for line in lines if "_aws" in line]
    return {metric["Name"] for all_ in written for one in all_ for metric in one["Metrics"]}

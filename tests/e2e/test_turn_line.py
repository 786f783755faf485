"""The line at the end of a turn whose processes are killed or told to stop, on one file."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import Running, environment, running, until
from tests.e2e.conftest import AGENT, CARD
from tests.e2e.test_pull_worker import OBSERVED, lines_of
from tests.support.a2a_calls import Caller


class Processes:
    """The processes of a deployment on one file, each with the log of a function."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._env = environment(
            A2A_TABLE=f"file:{folder}/tasks.db",
            A2A_AUTH="none",
            A2A_VISIBILITY_S="3",
            PROBE_FOLDER=str(folder),
            **OBSERVED,
        )

    def start(self, name: str, *arguments: str) -> Running:
        output = self._folder / f"{name}.log"
        return self._stack.enter_context(running(*arguments, env=self._env, output=output))

    def worker(self, name: str) -> Running:
        worker = self.start(name, "worker", "--agent", AGENT, "--drain", "20")
        worker.wait_for("turns at a time")
        return worker

    def caller(self) -> Caller:
        api = self.start("api", "api", "--card", CARD, "--port", "0")
        return self._stack.enter_context(Caller(api.wait_for(r"A2A at (\S+),")))

    def told(self, file: str, within: str) -> None:
        """Wait until the agent has written a line into its file."""
        path = self._folder / file
        until(lambda: path.exists() and within in path.read_text(encoding="utf-8"))

    def release(self, task_id: str) -> None:
        (self._folder / f"release-{task_id}").touch()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """They end with the test."""
    with ExitStack() as stack:
        yield Processes(tmp_path, stack)


def end_of(process: Running, task_id: str) -> dict[str, Any]:
    """The line that a process has written at the end of a task's turn."""
    process.wait_for('"turn_ended"')
    lines = [line for line in lines_of(process) if line.get("action") == "turn_ended"]
    (line,) = (line for line in lines if line["task_id"] == task_id)
    return line


def test_the_next_process_tells_of_a_killed_one(processes: Processes) -> None:
    """It counts the lost attempt, and says nothing of how long that ran; its ids are its own."""
    caller = processes.caller()
    killed = processes.worker("killed")
    task_id = caller.send("hold", waits=False)["id"]
    processes.told("runs", task_id)
    caller.until("holding", task_id)
    killed.end(signal.SIGKILL)
    other = processes.worker("other")
    processes.release(task_id)
    caller.until("COMPLETED", task_id)
    line = end_of(other, task_id)
    assert (line["attempts"], line["waits"], line["state"]) == (2, {"lost": 1}, "completed")
    assert {"running_ms", "waiting_ms"} & line.keys() == set()
    assert line["total_ms"] >= line["attempt_ms"] + line["queued_ms"]
    assert line["storing_ms"] > 0
    of_task = [each for each in lines_of(other) if each.get("task_id") == task_id]
    of_delivery = [each for each in of_task if each["receives"] == line["receives"]]
    assert {each["correlation_id"] for each in of_delivery} == {line["correlation_id"]}
    begun = next(each for each in lines_of(killed) if each.get("action") == "attempt")
    assert begun["correlation_id"] != line["correlation_id"]


def test_a_turn_that_leaves_its_process_has_one_line(processes: Processes) -> None:
    """The process that it has left writes none; the next one knows the time of both."""
    caller = processes.caller()
    first = processes.worker("first")
    task_id = caller.send("steps", waits=False)["id"]
    processes.told("steps", "50 ")
    first.process.send_signal(signal.SIGTERM)
    processes.release(task_id)
    assert first.process.wait(60) == 0
    other = processes.worker("other")
    caller.until("COMPLETED", task_id)
    line = end_of(other, task_id)
    assert [each for each in lines_of(first) if each.get("action") == "turn_ended"] == []
    assert (line["attempts"], line["waits"]) == (2, {"handover": 1})
    assert line["total_ms"] == line["queued_ms"] + line["running_ms"] + line["waiting_ms"]
    assert line["running_ms"] > line["attempt_ms"]

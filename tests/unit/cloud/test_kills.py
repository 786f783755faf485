"""What the run under kills finds in its tasks' ends and in what their agent has noted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cloud.deployment import KEPT
from tests.cloud.kills import SHORT, STEPS, Attempt, Run
from tests.cloud.own import wrong_remains

NUMBERS = "".join(f"{number} 0.5\n" for number in range(STEPS))
NOTED = "t1 first p1 1\n" * STEPS


def task(state: str, *, text: str = NUMBERS, said: str = "p1") -> dict[str, Any]:
    """A task whose end names the process `said`."""
    return {
        "id": "t1",
        "status": {"state": f"TASK_STATE_{state}", "message": {"parts": [{"text": said}]}},
        "artifacts": [{"parts": [{"text": text}]}],
    }


def run_of(path: Path, noted: str, *alive: int) -> Run:
    """A run whose agent has noted this, with the workers' processes that live."""
    effects = path / "effects.log"
    effects.write_text(noted)
    deployment: Any = SimpleNamespace(processes=lambda _: list(alive))
    nothing: Any = None
    return Run(form=SHORT, deployment=deployment, client=nothing, effects=effects, context="c")


def judged(path: Path, kind: str, ended: dict[str, Any], noted: str = NOTED) -> list[str]:
    """What is wrong with one task."""
    run = run_of(path, noted)
    run.ended.append((kind, ended))
    run.judge()
    return run.wrong


@pytest.mark.parametrize(
    ("kind", "state"),
    [("say", "COMPLETED"), ("steps", "COMPLETED"), ("fail", "FAILED"), ("wait", "CANCELED")],
)
def test_an_end_that_is_right(kind: str, state: str, tmp_path: Path) -> None:
    """Each kind of task has its own end, and any other one is wrong."""
    assert judged(tmp_path, kind, task(state)) == []
    other = "FAILED" if state == "COMPLETED" else "COMPLETED"
    assert judged(tmp_path, kind, task(other))


def test_a_turn_that_a_killed_attempt_had_begun(tmp_path: Path) -> None:
    """An attempt that starts after another one has been killed is right."""
    noted = "t1 first p0 0\nt1 first p0 0\n" + "t1 second p1 1\n" * STEPS
    assert judged(tmp_path, "steps", task("COMPLETED"), noted) == []


@pytest.mark.parametrize(
    ("says", "ended", "noted"),
    [
        ("COMPLETED '0", task("COMPLETED", text="0 0.5\n0 0.5\n1 0.5\n"), NOTED),
        ("two attempts at the same time", task("COMPLETED"), NOTED + "t1 second p2 2\n" + NOTED),
        ("run after its end", task("COMPLETED"), NOTED + "t1 second p2 2\n"),
    ],
)
def test_a_turn_that_was_done_twice(
    says: str, ended: dict[str, Any], noted: str, tmp_path: Path
) -> None:
    """Steps told twice, two attempts at once and a run after the end are found."""
    assert says in "".join(judged(tmp_path, "steps", ended, noted))


def test_a_kill_meets_a_turn_that_is_under_way(tmp_path: Path) -> None:
    """A turn is one to kill while it has steps to do, in a living process, and not too often."""
    lines = ["t1 first p1 1", "t2 first p2 2", *["t3 first p3 3"] * STEPS, "t4 first p4 4"]
    run = run_of(tmp_path, "\n".join([*lines, "t5 first p"]), 1, 3, 4)
    run.hit += [Attempt("t4", "earlier", "p0", 9)] * SHORT.most
    assert [each.task_id for each in run.under_way()] == ["t1"]


def test_a_killed_turn_was_run_again_if_another_process_ended_it(tmp_path: Path) -> None:
    """A kill that came after the last step has met no turn."""
    run = run_of(tmp_path, "")
    run.hit += [Attempt("t1", "first", process, 1) for process in ("p0", "p1")]
    run.ended.append(("steps", task("COMPLETED", said="p1")))
    assert run.restarted() == 1


def test_what_a_deleted_stack_leaves() -> None:
    """What should remain and does not is found, and what should not and does."""
    kept = dict.fromkeys(KEPT, "physical")
    assert wrong_remains({**kept, "FunctionLogs": "made again by the emulator"}) == []
    del kept["TaskTable"]
    assert wrong_remains({**kept, "ApiRole": "role-1"}) == [
        "LOST, though it should remain: TaskTable",
        "REMAINS, though it should not: ApiRole role-1",
    ]

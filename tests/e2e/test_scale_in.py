"""A worker on ECS and a turn of a hundred steps: scale-in, a deployment, and an unprotected end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.commands import READY, Running, environment, running, until
from tests.e2e.conftest import AGENT, CARD
from tests.e2e.probe_agent import STEPS
from tests.support.a2a_calls import Caller
from tests.support.ecs import EARLIER, OTHERS, TASK, Ecs, Json, refused


@dataclass(frozen=True)
class OnEcs:
    """A worker that is a task of ECS, in the middle of a turn of a hundred steps."""

    ecs: Ecs
    worker: Running
    caller: Caller
    task_id: str
    folder: Path
    stack: ExitStack

    def steps(self) -> list[tuple[int, int]]:
        """The steps that were taken, with their processes."""
        return steps_in(self.folder)

    def release(self) -> None:
        (self.folder / f"release-{self.task_id}").touch()

    def goes_on_elsewhere(self) -> None:
        """The first worker has left at a record; another one takes each missing step, once."""
        self.release()
        assert self.worker.process.wait(40) == 0
        left = self.steps()
        assert [number for number, _ in left] == list(range(len(left)))
        assert 1 <= len(left) < STEPS  # a step more, if the release is seen before the signal
        other = self.stack.enter_context(working(self.folder, "other"))
        self.caller.until("COMPLETED", self.task_id)
        assert [number for number, _ in self.steps()] == list(range(STEPS))
        assert len({pid for _, pid in self.steps()}) == 2
        assert "ECS" not in other.said()


def steps_in(folder: Path) -> list[tuple[int, int]]:
    taken = folder / "steps"
    lines = taken.read_text(encoding="utf-8").splitlines() if taken.exists() else []
    return [(int(number), int(pid)) for number, pid in map(str.split, lines)]


@contextmanager
def working(folder: Path, name: str, **variables: str) -> Iterator[Running]:
    env = environment(
        A2A_TABLE=f"file:{folder / 'table.db'}",
        A2A_AUTH="none",
        PROBE_FOLDER=str(folder),
        POWERTOOLS_SERVICE_NAME="on-ecs",
        AWS_DEFAULT_REGION="eu-central-1",
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",
        **variables,
    )
    kind = "api" if name == "api" else "worker"
    options = ("--card", CARD, "--port", "0") if kind == "api" else ("--agent", AGENT)
    with running(kind, *options, env=env, output=folder / f"{name}.log") as started:
        started.wait_for(READY[kind])
        yield started


@contextmanager
def in_the_middle(
    folder: Path, answer: Json | None = None, tasks: Sequence[str] = (TASK,)
) -> Iterator[OnEcs]:
    with ExitStack() as stack:
        ecs = stack.enter_context(Ecs(noted=lambda: len(steps_in(folder)), answer=answer))
        ecs.tasks = [*tasks]
        api = stack.enter_context(working(folder, "api"))
        caller = stack.enter_context(Caller(api.wait_for(READY["api"])))
        worker = stack.enter_context(working(folder, "worker", **ecs.environment()))
        task_id = caller.send("steps", waits=False)["id"]
        middle = STEPS // 2 + 1
        until(lambda: len(steps_in(folder)) == middle or worker.process.poll() == 0)
        yield OnEcs(ecs, worker, caller, task_id, folder, stack)


def test_scale_in_ends_no_worker_in_its_turn(tmp_path: Path) -> None:
    """Protection is on before the first step, is renewed, and is off after the last one.

    ECS, which has one worker too many in the middle of the turn, may end this one after it.
    """
    with in_the_middle(tmp_path, tasks=(EARLIER, TASK)) as on_ecs:
        ecs, pid = on_ecs.ecs, on_ecs.steps()[0][1]
        assert ecs.asked[0] == (True, 0)
        assert ecs.scale_in(pid) is False
        until(lambda: len(ecs.asked) >= 3)
        assert {is_on for is_on, _ in ecs.asked} == {True}
        on_ecs.release()
        on_ecs.caller.until("COMPLETED", on_ecs.task_id)
        until(lambda: not ecs.is_protected)
        assert ecs.asked[-1] == (False, STEPS)
        assert {is_on for is_on, _ in ecs.asked[:-1]} == {True}
        assert on_ecs.steps() == [(number, pid) for number in range(STEPS)]
        assert ecs.scale_in(pid) is True
        assert on_ecs.worker.process.wait(40) == 0


def test_a_turn_leaves_a_worker_that_ecs_does_not_protect(tmp_path: Path) -> None:
    """SIGTERM in the middle: the turn goes on elsewhere, no step runs twice, and none is lost."""
    with in_the_middle(tmp_path, refused("DEPLOYMENT_BLOCKED")) as on_ecs:
        assert on_ecs.ecs.scale_in(on_ecs.steps()[0][1]) is True
        on_ecs.worker.wait_for("DEPLOYMENT_BLOCKED")
        on_ecs.goes_on_elsewhere()
        assert on_ecs.worker.said().count("DEPLOYMENT_BLOCKED") == 1


def test_a_deployment_ends_though_its_old_worker_is_protected(tmp_path: Path) -> None:
    """Once the new workers run, the old one takes no turn, leaves its own at a record, and ends."""
    with in_the_middle(tmp_path, tasks=OTHERS[:1]) as on_ecs:
        assert on_ecs.ecs.is_protected
        on_ecs.worker.wait_for("a newer deployment has replaced it")
        on_ecs.goes_on_elsewhere()

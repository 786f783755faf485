"""Tasks of every kind, while processes of the stack's functions are killed at random."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from tests.cloud.deployment import Deployment
from tests.cloud.own import Patient, own
from tests.faults.ledger import lines_of
from tests.live.account import FUNCTIONS
from tests.live.subject import (
    Figures,
    Subject,
    artifact_text,
    ordered,
    require,
    state,
    status_text,
    steps_of,
)

KINDS: Final = ("say", "steps", "fail", "ask", "wait")
TASKS: Final = 40
RUNNING: Final = 20
"""Tasks at the same time."""
ROUNDS: Final = 2
"""In each of which every function is killed once; a turn, whatever the round, at most once."""
STEPS: Final = 3
GAP_S: Final = 0.5
PAUSE_S: Final = (2.0, 5.0)
"""The shortest and the longest wait before the kill of a process, whatever it does."""
TURN_PAUSE_S: Final = (4.0, 12.0)
"""Those before the kill of a worker's process while a turn is under way in it."""
LOOK_S: Final = 0.1
NO_PROCESS_S: Final = 70.0
"""How long to wait for a function's process: the sweeper starts each minute. It is the pace of a
round: where processes are killed faster than they start, no turn is ever run."""
WORKER: Final = "WorkerFunction"
AGAIN: Final = 5
"""Each such task is sent once more after its end."""


@dataclass(frozen=True)
class Attempt:
    """An attempt at a turn, as the agent has noted each of its steps."""

    task_id: str
    attempt: str
    process: str
    pid: int


@dataclass(kw_only=True)
class Run:
    """A run, with what it has done so far."""

    deployment: Deployment
    client: Patient
    effects: Path
    context: str
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FUNCTIONS, 0))
    hit: list[Attempt] = field(default_factory=list)
    """Those in whose process a kill has met their turn."""
    wrong: list[str] = field(default_factory=list)
    ended: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def tasks(self) -> None:
        """Begin the tasks, and wait for their ends."""
        places = asyncio.Semaphore(RUNNING)
        async with asyncio.TaskGroup() as group:
            for number in range(TASKS):
                await places.acquire()
                running = group.create_task(self._task(number))
                running.add_done_callback(lambda _: places.release())

    async def _task(self, number: int) -> None:
        kind = KINDS[number % len(KINDS)]
        message = {**self._steps(), "contextId": self.context}
        if kind != "steps":
            message |= {"parts": ordered(kind)["parts"]}
        try:
            task_id = await self.client.sent(message)
            if kind == "ask":
                await self.client.ended(task_id, "INPUT_REQUIRED")
                answer = {**self._steps(), "contextId": self.context, "taskId": task_id}
                await self.client.sent(answer)
            elif kind == "wait":
                await self.client.ended(task_id, "WORKING")
            self.ended.append((kind, await self.client.ended(task_id, cancels=kind == "wait")))
            if number % AGAIN == 0 and await self.client.sent(message) != task_id:
                self.wrong.append(f"{kind} {task_id} was another task when it was sent again")
        except Exception as error:  # noqa: BLE001 - the others go on
            self.wrong.append(f"{kind} did not end: {type(error).__name__}: {error}")

    def judge(self) -> None:
        """Look at the end of each task, and at what the agent has noted of its attempts."""
        attempts = self.attempts()
        for kind, task in self.ended:
            if not _is_right(kind, task):
                self.wrong.append(f"{kind} {task['id']} {state(task)} {artifact_text(task)!r}")
            did = attempts.get(task["id"], [])
            if len(set(did)) != len(did):
                self.wrong.append(f"{kind} {task['id']} was run by two attempts at the same time")
            if did and did[-1].process != status_text(task):
                self.wrong.append(f"{kind} {task['id']} was run after its end")

    def under_way(self) -> list[Attempt]:
        """Return the attempts whose turns have a step to do, in processes that live."""
        alive, steps = set(self.deployment.processes(WORKER)), Counter(self._noted())
        killed = {each.task_id for each in self.hit}
        return [
            each
            for each, done in steps.items()
            if done < STEPS and each.pid in alive and each.task_id not in killed
        ]

    def restarted(self) -> int:
        """Return how many killed turns another attempt has run from their start to their end."""
        ends = {task["id"]: status_text(task) for _, task in self.ended}
        return sum(ends.get(each.task_id) not in {None, each.process} for each in self.hit)

    def _steps(self) -> dict[str, Any]:
        return ordered("steps", count=STEPS, gap_s=GAP_S, effects=str(self.effects))

    def attempts(self) -> dict[str, list[Attempt]]:
        """Return each task's attempts, in the order of what they did."""
        found = defaultdict(list)
        for each in self._noted():
            found[each.task_id].append(each)
        return {task_id: [each for each, _ in groupby(did)] for task_id, did in found.items()}

    def _noted(self) -> list[Attempt]:
        words = [line.split() for line in lines_of(self.effects)]
        return [Attempt(task, own, process, int(pid)) for task, own, process, pid in words]

    async def kill_processes(self) -> None:
        """Kill a process of one function after the other, each round in another order."""
        for _ in range(ROUNDS):
            for name in random.sample(FUNCTIONS, len(FUNCTIONS)):
                await asyncio.sleep(random.uniform(*PAUSE_S))  # noqa: S311 - no secret
                deadline = time.monotonic() + NO_PROCESS_S
                while not (found := self.deployment.processes(name)):
                    if time.monotonic() >= deadline:
                        break
                    await asyncio.sleep(0.5)
                else:
                    self._kill(name, random.choice(found))  # noqa: S311

    async def kill_turns(self) -> None:
        """Kill workers' processes, each at some moment of a turn that is under way in it."""
        while True:
            await asyncio.sleep(random.uniform(*TURN_PAUSE_S))  # noqa: S311
            while not (found := self.under_way()):  # noqa: ASYNC110 - it is in another process
                await asyncio.sleep(LOOK_S)
            chosen = random.choice(found)  # noqa: S311
            await asyncio.sleep(random.uniform(0, GAP_S))  # noqa: S311
            if self._kill(WORKER, chosen.pid):
                self.hit.append(chosen)

    def _kill(self, name: str, pid: int) -> bool:
        if pid not in self.deployment.processes(name):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills[name] += 1
            return True
        return False


async def killed(deployment: Deployment, subject: Subject) -> Figures:
    """Kill the processes of all functions while tasks are sent and run."""
    run = Run(
        deployment=deployment,
        client=Patient(subject),
        effects=deployment.door.folder / "effects.log",
        context=f"kills-{subject.run}",
    )
    async with asyncio.TaskGroup() as group:
        turns = group.create_task(run.kill_turns())
        group.create_task(run.kill_processes())
        await run.tasks()
        turns.cancel()
    run.judge()
    params = {"contextId": run.context, "pageSize": 100}
    answer = await subject.agent.call("ListTasks", params)
    ids, listed = {task["id"] for _, task in run.ended}, {it["id"] for it in answer.result["tasks"]}
    require(not run.wrong, f"tasks that did not end right: {run.wrong}")
    require(listed == ids, f"lost or doubled: {listed ^ ids}")
    require(len(listed) == TASKS, f"{len(listed)} tasks of {TASKS}")
    require(all(run.kills.values()), "a function was not killed")
    require(run.restarted(), "no killed turn was run again")
    return {
        "kills": sum(run.kills.values()),
        "kills that met a turn": len(run.hit),
        "requests without an answer": run.client.unanswered,
    }


def _is_right(kind: str, task: dict[str, Any]) -> bool:
    ends = {"fail": "FAILED", "wait": "CANCELED"}
    if state(task) != ends.get(kind, "COMPLETED"):
        return False
    if kind in {"steps", "ask"}:
        return steps_of(artifact_text(task)) == [*range(STEPS)]
    return kind != "say" or bool(artifact_text(task) or status_text(task))


CHECKS: Final = [own("kills", f"{TASKS} tasks end right while all functions are killed", killed)]

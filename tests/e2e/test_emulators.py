from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from a2a.client import Client
from a2a.types import SendMessageRequest, Task, TaskState
from a2a.utils.errors import InternalError

from tests.e2e.clients import BINDINGS, artifact_text, client_at, settled
from tests.e2e.commands import Deployed, deployed, environment, run
from tests.e2e.conftest import AGENT, CARD, provision
from tests.support.messages import message

pytestmark = pytest.mark.emulators

TASKS = 200
WARNING = re.compile(r"^\S+ \S+ (?:WARNING|ERROR) a2a_serverless\.worker", re.MULTILINE)


@pytest.fixture
def deployment(own_queues: dict[str, str], tmp_path: Path) -> Iterator[Deployed]:
    """One `api` and two `worker` processes on the emulators."""
    env = environment(**own_queues, A2A_AUTH="none", PROBE_FOLDER=str(tmp_path))
    working = ("--agent", AGENT, "--concurrency", "8")
    serving = ("--card", CARD, "--port", "0")
    with deployed(env, tmp_path, worker_0=working, worker_1=working, api=serving) as started:
        yield started
        started.end()


@pytest.mark.timeout(300)
async def test_concurrent_tasks_each_run_once(deployment: Deployed) -> None:
    """200 tasks sent at once over both bindings complete, each by one run of the agent."""

    async def one(client: Client, number: int) -> Task:
        sent = await accepted(client, f"task {number}")
        return await patiently(lambda: settled(client, sent.id))

    async with (
        client_at(deployment.url, binding=BINDINGS[0], streaming=False) as rpc,
        client_at(deployment.url, binding=BINDINGS[1], streaming=False) as rest,
    ):
        tasks = await asyncio.gather(*(one((rpc, rest)[n % 2], n) for n in range(TASKS)))

    states = Counter(task.status.state for task in tasks)
    assert states == {TaskState.TASK_STATE_COMPLETED: TASKS}
    assert [artifact_text(task) for task in tasks] == [f"You said: task {n}" for n in range(TASKS)]
    runs = Counter((deployment.folder / "runs").read_text(encoding="utf-8").split())
    assert set(runs) == {task.id for task in tasks}
    assert runs.total() - TASKS <= lost_attempts(deployment.folder), runs.most_common(3)


def lost_attempts(folder: Path) -> int:
    """Count the workers' warnings and errors: attempts that failed, or lost their delivery."""
    logs = [log.read_text(encoding="utf-8") for log in folder.glob("worker_*.log")]
    return sum(len(WARNING.findall(log)) for log in logs)


async def accepted(client: Client, text: str) -> Task:
    """Return the task of a message, which stays one message however often it is sent."""
    said = message(text)
    said.context_id = said.message_id

    async def sent() -> Task:
        request = SendMessageRequest(message=said)
        return [event.task async for event in client.send_message(request)][-1]

    return await patiently(sent)


async def patiently(ask: Callable[[], Awaitable[Task]]) -> Task:
    """Ask again for as long as the service says that it is busy, as its emulator may be."""
    while True:
        try:
            return await ask()
        except InternalError as error:
            if "try again" not in str(error):
                raise
            await asyncio.sleep(0.5)


def test_sweep_finds_nothing_to_do_on_a_fresh_table(
    emulators: dict[str, str], fresh_names: dict[str, str]
) -> None:
    """`sweep --once` ends by itself and says what it did."""
    swept = run("sweep", "--once", env=environment(**provision({**emulators, **fresh_names})))

    assert swept.returncode == 0, swept.stderr
    repairs = ("sent", "passed", "given up", "canceled", "failed", "requeued", "parked", "skipped")
    names = (*repairs, "dead letters")
    assert swept.stdout == ", ".join(f"{name} 0" for name in names) + "\n"


def test_provision_again_changes_nothing(provisioned: dict[str, str]) -> None:
    """A second `provision` keeps what exists, and prints the same names."""
    again = run("provision", env=environment(**provisioned))

    assert again.returncode == 0, again.stderr
    for line in again.stdout.splitlines():
        name, value = line.split("=", 1)
        assert provisioned[name] == value

"""Two releases side by side: what one has accepted, the other one finishes.

The older one is tagged. As long as no release was tagged before this one, the two are this one and
the next, which writes attributes and entries that this one does not know (`next_format`).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from a2a.types import TaskState

from tests.e2e.releases import Release, last_release, unpack
from tests.faults import next_format
from tests.faults.harness import IS_LONG, Emulators, World, command_of, numbers, until
from tests.support.a2a_calls import REST, Agent
from tests.support.emulators import Emulator

pytestmark = pytest.mark.emulators

Version = Literal["old", "new"]

CONCURRENCY = 8
TASKS = 100 if IS_LONG else 4 * CONCURRENCY
PAUSED = 5
CHUNKS = 4
LOOKED_AT = 20
SETTINGS = {"A2A_VISIBILITY_S": "3", "A2A_PUSH_ALLOWED_HOSTS": "127.0.0.1"}
TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
WEBHOOK = "http://127.0.0.1:9/hook"
"""A webhook that the newer release stores; no receiver is told of anything here."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release | None:
    """The release before this one; None: there is none, so that the other one is the next."""
    name = last_release()
    return unpack(name, tmp_path_factory.mktemp("release")) if name else None


@dataclass
class Upgrade:
    """A deployment in which processes of both releases run."""

    world: World
    release: Release | None
    stack: ExitStack

    async def start(self, version: Version, kind: str) -> tuple[int, str]:
        """Start a process; its number, and the URL of an API."""
        if self.release is None or version == "new":
            is_next = self.release is None and version == "new"
            more = {next_format.VARIABLE: "1"} if is_next else {}
            new = await self.world.start(kind, concurrency=CONCURRENCY, **more)
            return new.pid, str(self.world.http.base_url)
        arguments, ready = command_of(kind, CONCURRENCY)
        output = self.world.folder / f"old-{kind}-{len(self.world.started)}.log"
        running = self.release.running(*arguments, given=self.world.variables, output=output)
        old = self.stack.enter_context(running)
        return old.process.pid, await asyncio.to_thread(old.wait_for, ready)

    async def holds(self, worker: int) -> None:
        """Wait until a worker has begun as many tasks as it may, which it holds."""

        def are_enough() -> bool:
            found = self.world.ledger.entries(what="held")
            return len({one.task_id for one in found if one.pid == worker}) >= CONCURRENCY

        await until(are_enough, f"the worker {worker} holds {CONCURRENCY} tasks")


@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")])
async def test_tasks_in_flight_survive(
    dynamodb_local: Emulator,
    fauxqs: Emulator,
    release: Release | None,
    tmp_path: Path,
    first: Version,
    second: Version,
) -> None:
    """Workers of both releases beside each other: of the tasks in flight none is lost or doubled.

    All were accepted by an API of the first release, the way there or the way back. Its worker is
    killed in the middle of its turns, and another one takes its place. Each task is completed once,
    with each of its chunks once; no message is left; tasks that the first release paused go on;
    APIs of both show the same.
    """
    async with Emulators(dynamodb_local, fauxqs).world(tmp_path, **SETTINGS) as world:
        with ExitStack() as stack:
            upgrade = Upgrade(world, release, stack)
            _, url = await upgrade.start(first, "api")
            world.http.base_url = httpx.URL(url)
            world.http.headers.update(TRACE)
            victim, _ = await upgrade.start(first, "worker")
            webhook = WEBHOOK if first == "new" else ""
            paused = await world.send_all(["ask"] * PAUSED, CONCURRENCY, webhook=webhook)
            heads = [await world.state(one, TaskState.TASK_STATE_INPUT_REQUIRED) for one in paused]

            other, _ = await upgrade.start(second, "worker")
            tasks = await world.send_all([f"held {CHUNKS}"] * TASKS, CONCURRENCY)
            for head in heads:
                await world.send(f"held {CHUNKS}", task=head)
            await asyncio.gather(upgrade.holds(victim), upgrade.holds(other))
            os.kill(victim, signal.SIGKILL)
            replacement, _ = await upgrade.start(first, "worker")
            _, other_url = await upgrade.start(second, "api")
            await upgrade.holds(replacement)
            world.ledger.release()

            ends = [await world.end(task_id) for task_id in (*tasks, *paused)]
            assert {end.state for end in ends} == {TaskState.TASK_STATE_COMPLETED}
            assert [end.chunks for end in ends] == [numbers(CHUNKS)] * (TASKS + PAUSED)
            await world.drained()
            returned = [one.pid for one in world.ledger.entries(what="returned")]
            assert min(map(returned.count, (other, replacement))) >= CONCURRENCY, "both have worked"
            looked_at = (tasks + paused)[-LOOKED_AT:]
            assert await shown(url, looked_at) == await shown(other_url, looked_at)


async def shown(url: str, tasks: Sequence[str]) -> list[Any]:
    """What an API says of the tasks."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        agent = Agent(http, REST)
        answers = [await agent.call("GetTask", {"id": task_id}) for task_id in tasks]
    assert {answer.response.status_code for answer in answers} == {200}
    return [answer.result for answer in answers]

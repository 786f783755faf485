"""Two releases side by side: what one has accepted, the other one finishes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import TaskState

from tests.e2e.releases import Release, last_release, unpack
from tests.e2e.upgrades import CONCURRENCY, Version, upgrading
from tests.faults.harness import IS_LONG, World, numbers
from tests.support.a2a_calls import REST, Agent
from tests.support.emulators import Emulator

pytestmark = pytest.mark.emulators

TASKS = 100 if IS_LONG else 4 * CONCURRENCY
PAUSED = 5
CHUNKS = 4
LOOKED_AT = 20
TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
WEBHOOK = "http://127.0.0.1:9/hook"
"""A webhook that the newer release stores; no receiver is told of anything here."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release | None:
    """The release before this one; None: there is none, so that the other one is the next."""
    name = last_release()
    return unpack(name, tmp_path_factory.mktemp("release")) if name else None


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
    APIs of both show the same. As long as no release was tagged before this one, the two are this
    one and the next, which writes attributes and entries that this one does not know.
    """
    async with upgrading(dynamodb_local, fauxqs, release, tmp_path) as upgrade:
        world = upgrade.world
        api, victim = upgrade.api(first), upgrade.worker(first)
        world.http.base_url = url = httpx.URL(await api.says(r"A2A at (\S+),"))
        world.http.headers.update(TRACE)
        webhook = WEBHOOK if first == "new" else ""
        paused = await send(world, ["ask"] * PAUSED, webhook=webhook)
        heads = [await world.state(one, TaskState.TASK_STATE_INPUT_REQUIRED) for one in paused]

        other_worker = upgrade.worker(second)
        tasks = await send(world, [f"gated {CHUNKS}"] * TASKS)
        for head in heads:
            await world.send(f"gated {CHUNKS}", task=head)
        await asyncio.gather(upgrade.holds(victim), upgrade.holds(other_worker))
        os.kill(victim.pid, signal.SIGKILL)
        replacement, other_api = upgrade.worker(first), upgrade.api(second)
        await upgrade.holds(replacement)
        assert not world.ledger.entries(what="passes"), "a task is not in flight"
        upgrade.open_gate()

        ends = [await world.end(task_id) for task_id in (*tasks, *paused)]
        assert {end.state for end in ends} == {TaskState.TASK_STATE_COMPLETED}
        assert [end.chunks for end in ends] == [numbers(CHUNKS)] * (TASKS + PAUSED)
        await world.drained()
        passed = [upgrade.count(one, "passes") for one in (victim, other_worker, replacement)]
        assert passed[0] == 0
        assert min(passed[1:]) >= CONCURRENCY, "both releases have worked"
        other_url = await other_api.says(r"A2A at (\S+),")
        looked_at = (tasks + paused)[-LOOKED_AT:]
        assert await shown(url, looked_at) == await shown(other_url, looked_at)


async def send(world: World, texts: Sequence[str], *, webhook: str = "") -> list[str]:
    """A task for each text, with that webhook if one is named."""
    at_once = asyncio.Semaphore(CONCURRENCY)

    async def one(text: str) -> str:
        async with at_once:
            return await world.send(text, webhook=webhook)

    return list(await asyncio.gather(*(one(text) for text in texts)))


async def shown(url: httpx.URL | str, tasks: Sequence[str]) -> list[Any]:
    """What an API says of the tasks."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        agent = Agent(http, REST)
        answers = [await agent.call("GetTask", {"id": task_id}) for task_id in tasks]
    assert {answer.response.status_code for answer in answers} == {200}
    return [answer.result for answer in answers]

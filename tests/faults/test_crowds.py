"""Many tasks while processes come and go, in order or not."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from a2a.types import TaskState

from tests.faults import processes
from tests.faults.harness import IS_LONG, Emulators, End, World, lost_and_doubled, numbers, until
from tests.faults.processes import Running
from tests.faults.report import PROPERTY, Runs

Record = Callable[[str, object], None]

pytestmark = pytest.mark.emulators

COMPLETED = TaskState.TASK_STATE_COMPLETED


@pytest.mark.timeout(900 if IS_LONG else 120)
async def test_a_rolling_replacement_loses_nothing(
    emulators: Emulators, tmp_path: Path, record_property: Record
) -> None:
    """All processes are replaced one by one, by SIGTERM, while tasks run on them.

    Workers have half a second to drain here, so that turns are given back as well.
    """
    tasks = 200 if IS_LONG else 20
    settings = {processes.DRAIN: "0.5", "A2A_MAX_ATTEMPTS": "10"}
    async with emulators.world(tmp_path, **settings) as world:
        fleet = [await world.start(kind) for kind in ("worker", "worker", "sweep", "api")]
        sent = await _send(world, tasks, "chunks 6 0.3")
        for replaced in fleet:
            kind = replaced.name.partition("-")[0]
            await world.start(kind)
            assert await replaced.end() == 0, replaced.said()
        ends = await _ends(world, sent, within_s=60 + tasks)
        starts = len(world.ledger.entries(what="started"))
        runs = _counted(f"all replaced: {starts} starts", ends, numbers(6))
        record_property(PROPERTY, runs.to_json())
        assert Counter(end.state for end in ends) == {COMPLETED: tasks}
        assert runs.is_clean, runs
        assert starts > tasks, "no turn was given back"
        await world.drained()


@pytest.mark.timeout(1800 if IS_LONG else 120)
async def test_tasks_survive_workers_that_are_killed_all_the_time(
    emulators: Emulators, tmp_path: Path, record_property: Record
) -> None:
    """A worker is killed every second, whatever it does; every task ends, none twice, none stuck.

    It completes with each chunk once, or fails after all of its attempts.
    """
    tasks, workers, kills, chunks = (2000, 4, None, 4) if IS_LONG else (30, 2, 4, 8)
    order = random.Random(4)  # noqa: S311 - a seeded schedule
    async with emulators.world(tmp_path) as world:
        await world.start("api")
        await world.start("sweep")
        fleet = [await world.start("worker", concurrency=8) for _ in range(workers)]
        killing = asyncio.create_task(_kill(world, fleet, order, kills))
        try:
            sent = await _send(world, tasks, f"chunks {chunks} 0.2")
            ends = await _ends(world, sent, within_s=60 + tasks / 2)
        finally:
            killing.cancel()
            await asyncio.wait([killing])
        assert killing.cancelled() or killing.result() == kills
        starts = Counter(entry.task_id for entry in world.ledger.entries(what="started"))
        assert max(starts.values()) > 1, "no kill has met a running turn"
        runs = _counted(f"a kill a second: {starts.total()} starts", ends, numbers(chunks))
        record_property(PROPERTY, runs.to_json())
        assert runs.is_clean, runs
        for end in ends:
            if end.state != COMPLETED:
                assert end.state == TaskState.TASK_STATE_FAILED, end
                assert end.head.attempts == 5, end
        await world.start("worker")
        await world.drained(within_s=60)


def _counted(name: str, ends: Sequence[End], chunks: Sequence[str]) -> Runs:
    """A row of the table: a task that has failed may lack chunks, and has none twice."""
    runs = Runs(name=name, runs=len(ends))
    for end in ends:
        lost, doubled = lost_and_doubled(end.chunks, chunks)
        runs.lost += lost if end.state == COMPLETED else 0
        runs.doubled += doubled
    return runs


async def _kill(world: World, fleet: list[Running], order: random.Random, kills: int | None) -> int:
    """Kill a random worker a second and put another one in its place; the number of kills."""
    count = 0
    while count != kills:
        await asyncio.sleep(1)
        victim = order.randrange(len(fleet))
        await fleet[victim].end(signal.SIGKILL)
        fleet[victim] = await world.start("worker", concurrency=8)
        count += 1
    return count


async def _send(world: World, count: int, text: str) -> list[str]:
    slots = asyncio.Semaphore(16)

    async def one() -> str:
        async with slots:
            return await world.send(text)

    return await asyncio.gather(*(one() for _ in range(count)))


async def _ends(world: World, sent: list[str], *, within_s: float) -> list[End]:
    """How all of them ended; waits for the slowest."""
    open_tasks = set(sent)
    slots = asyncio.Semaphore(16)

    async def look(task_id: str) -> None:
        async with slots:
            head = await world.storage.head(task_id)
            assert head is not None, f"{task_id} is lost"
            if head.is_terminal:
                open_tasks.discard(task_id)

    async def have_all_ended() -> bool:
        await asyncio.gather(*(look(task_id) for task_id in list(open_tasks)[:200]))
        return not open_tasks

    await until(have_all_ended, f"all of {len(sent)} tasks have ended", within_s)

    async def end(task_id: str) -> End:
        async with slots:
            return await world.end(task_id)

    return await asyncio.gather(*(end(task_id) for task_id in sent))

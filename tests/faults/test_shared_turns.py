"""Turns that share the deployed function, while workers die and agents misbehave."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults import harness
from tests.faults.crowd import COMPLETED, at_rest, check_attempts, counted, ends
from tests.faults.functions import HASTE, INVOCATIONS, invocations
from tests.faults.harness import IS_LONG, Emulators, World, numbers, until
from tests.faults.processes import Running
from tests.faults.report import check

pytestmark = pytest.mark.emulators

VISIBILITY_S = 2
"""Of a message that the event source has received, until its worker keeps it."""


def shared(folder: Path, turns: int, limit_s: float, run_s: float, **more: str) -> dict[str, str]:
    return {
        "A2A_AGENT": harness.AGENT,
        "A2A_WORKER_TURNS": str(turns),
        "A2A_TURN_LIMIT_S": str(limit_s),
        "A2A_RUN_LIMIT_S": str(run_s),
        INVOCATIONS: str(folder / "invocations"),
        **more,
    }


async def queued(world: World, texts: Sequence[str]) -> list[str]:
    """Tasks whose operations are in the queue, as an API leaves them; their ids."""
    what = {"QueueUrl": world.made.queue, "Attributes": {"VisibilityTimeout": str(VISIBILITY_S)}}
    await asyncio.to_thread(world.sqs.set_queue_attributes, **what)
    heads = [await world.create(text) for text in texts]
    for head in heads:
        await world.put(harness.operation_of(head))
    return [head.task_id for head in heads]


@asynccontextmanager
async def fleet(world: World, size: int) -> AsyncIterator[list[Running]]:
    """Run `size` environments for shared turns and as many for quarantined ones.

    Replace each that has died, as Lambda does; yield the former.
    """
    kinds = ["function"] * size + ["quarantine"] * size
    every = [await world.start(kind) for kind in kinds]
    running = every[:size]

    async def replace() -> None:
        while True:
            for place, kind in enumerate(kinds):
                if every[place].has_ended:
                    every[place] = await world.start(kind)
            running[:] = every[:size]
            await asyncio.sleep(0.1)

    replacing = asyncio.create_task(replace())
    try:
        yield running
    finally:
        replacing.cancel()
        await asyncio.wait([replacing])


async def test_forty_turns_share_two_invocations(
    emulators: Emulators, tmp_path: Path, record_property: Any
) -> None:
    """Two workers with ten places run forty turns, for less than a third of their seconds.

    Each of the two invocations runs two rounds, wakes those of the second together, and waits for
    its last poll: a quarter of them on a quiet machine. On a busy one all takes longer, as the
    longest turn shows.
    """
    seconds = 10 if IS_LONG else 3
    settings = shared(tmp_path, 10, 60, 300, A2A_VISIBILITY_S="30")
    async with emulators.world(tmp_path, **settings) as world:
        sent = await queued(world, [f"slow {seconds}"] * 40)
        for _ in range(2):
            await world.start("function")
        ended = await ends(world, sent, within_s=120)
        assert {end.state for end in ended} == {COMPLETED}
        assert [end.chunks for end in ended] == [numbers(3)] * 40
        await world.drained()
        look = partial(invocations, tmp_path / "invocations")
        billed = await until(look, "both have returned", is_it=lambda seen: len(seen) >= 2)
        entries = world.ledger.entries(what="started")
        starts = Counter(entry.task_id for entry in entries)
        begun = {entry.task_id: entry.at for entry in entries}
        longest = max(end.head.status_at / 1000 - begun[end.head.task_id] for end in ended)
        record_property("billed", [round(each.seconds, 1) for each in billed])
        record_property("longest", round(longest, 1))
        assert (set(starts.values()), len(billed)) == ({1}, 2)
        assert sum(each.seconds for each in billed) <= len(sent) * longest / 3


POINTS = ("after-receive:3", "after-claim:3", "between-commits:3", "before-ack:2", "before-nack:1")


@pytest.mark.parametrize("point", POINTS if IS_LONG else POINTS[2:3])
async def test_siblings_survive_a_death(emulators: Emulators, tmp_path: Path, point: str) -> None:
    """Of five turns in one worker none is lost or doubled, wherever the worker dies."""
    text = "chunks 5 0.4"
    texts = [text] * 4 + ["failing 1" if point.startswith("before-nack") else text]
    settings = shared(tmp_path, 5, 10, 30, A2A_MAX_ATTEMPTS="9", **{HASTE: "1"})
    async with emulators.world(tmp_path, **settings) as world:
        await world.start("sweep")
        sent = await queued(world, texts)
        await world.dies(await world.start("function", point=point), point)
        async with fleet(world, 2):
            ended = await ends(world, sent)
            await at_rest(world)
        assert {end.state for end in ended} == {COMPLETED}
        assert [end.chunks for end in ended[:4]] == [numbers(5)] * 4


@pytest.mark.timeout(1800 if IS_LONG else 300)
async def test_shared_turns_survive_workers_that_are_killed_all_the_time(
    emulators: Emulators, tmp_path: Path, record_property: Any
) -> None:
    """A worker with ten places is killed every second: nothing is lost, doubled or stuck."""
    tasks, workers, kills = (500, 4, None) if IS_LONG else (30, 2, 4)
    order = random.Random(4)  # noqa: S311 - a seeded schedule
    settings = shared(tmp_path, 10, 10, 30, A2A_MAX_ATTEMPTS="5", **{HASTE: "1"})
    async with emulators.world(tmp_path, **settings) as world:
        await world.start("sweep")
        sent = await queued(world, ["chunks 6 0.3"] * tasks)
        async with fleet(world, workers) as running:
            killing = asyncio.create_task(_kill(running, order, kills))
            try:
                ended = await ends(world, sent, within_s=harness.SETTLE_S + 2 * tasks)
            finally:
                killing.cancel()
                await asyncio.wait([killing])
            await at_rest(world)
        check([counted("shared turns, a kill a second", ended, numbers(6))], record_property)
        check_attempts(ended)


async def _kill(running: list[Running], order: random.Random, kills: int | None) -> None:
    count = 0
    while count != kills:
        await asyncio.sleep(1)
        victim = order.choice(running)
        if not victim.has_ended:
            victim.process.kill()
            count += 1

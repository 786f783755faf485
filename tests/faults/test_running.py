"""Turns that are run: taken over from the dead, never from the slow, and by one worker alone.

They are found where their message was lost, and given back by a worker that is to end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

import httpx
import pytest

from a2a_serverless_tools.cli.processes import VISIBILITY_S as PULL_VISIBILITY_S
from a2a_serverless_tools.cloud.emulator import free_port
from tests.faults import processes
from tests.faults.crowd import COMPLETED, at_rest, ends
from tests.faults.harness import IS_LONG, Emulators, World, numbers, operation_of, until

pytestmark = pytest.mark.emulators

VISIBILITY_S = 2
START_S = 30
"""What a takeover may take beside the visibility: a safety net, below the default of 60 s."""
TURNS = 16
SOON_S = 5.0 if IS_LONG else 25.0
"""Below the visibility, after which another worker takes over from one that has died."""


async def test_a_worker_takes_over_from_a_dead_one(emulators: Emulators, tmp_path: Path) -> None:
    """Killed in the middle of a turn: the next attempt starts within the visibility."""
    async with emulators.world(tmp_path) as world:
        taken_over_s = await _take_over(world)
    assert taken_over_s <= VISIBILITY_S + START_S


@pytest.mark.skipif(not IS_LONG, reason="takes half a minute: `make faults`")
async def test_recovery_with_the_default_settings(emulators: Emulators, tmp_path: Path) -> None:
    """With the default settings another worker takes over in pull mode within 32 s."""
    defaults = {"A2A_WAITING_S": "60", "A2A_RETRY_BASE_S": "2"}
    defaults["A2A_VISIBILITY_S"] = str(PULL_VISIBILITY_S)
    async with emulators.world(tmp_path, **defaults) as world:
        taken_over_s = await _take_over(world)
    assert taken_over_s <= 32


async def _take_over(world: World) -> float:
    """Kill the worker that runs a turn, and return when the next attempt began, in seconds."""
    await world.start("api")
    victim = await world.start("worker")
    task_id = await world.send("chunks 8 0.2")
    await world.noted(task_id, "emitted", times=3)
    killed_at = time.time()
    assert await victim.end(signal.SIGKILL) == -signal.SIGKILL
    await world.start("worker")
    end = await world.end(task_id)
    assert (end.state, end.chunks) == (COMPLETED, numbers(8))
    await world.drained()
    first, second = world.ledger.entries(task_id, "started")
    assert first.pid != second.pid
    return second.at - killed_at


async def test_a_slow_agent_runs_once(emulators: Emulators, tmp_path: Path) -> None:
    """An agent that takes twice the visibility runs once, even if it blocks its loop."""
    async with emulators.world(tmp_path, A2A_VISIBILITY_S="5") as world:
        await world.start("api")
        for _ in range(3):
            await world.start("worker", concurrency=1)
        for task_id in [await world.send(f"{kind} 10") for kind in ("slow", "block")]:
            end = await world.end(task_id)
            assert (end.state, end.chunks) == (COMPLETED, numbers(3))
            assert end.head.turn.attempts == 1
            assert world.ledger.count(task_id, "started") == 1
        await world.drained()


async def test_of_two_workers_of_a_turn_one_commits(emulators: Emulators, tmp_path: Path) -> None:
    """The other one stops with its first commit, and nothing of it is ever stored."""
    async with emulators.world(tmp_path, A2A_VISIBILITY_S="4") as world:
        head = await world.create("meet 2")
        for _ in range(2):
            await world.start("worker", concurrency=1)
        operation = operation_of(head)
        await asyncio.gather(*(world.put(operation, group=name) for name in ("one", "two")))
        end = await world.end(head.task_id)
        assert (end.state, end.chunks) == (COMPLETED, numbers(10))
        first, second = world.ledger.entries(head.task_id, "started")
        assert first.pid != second.pid
        await world.noted(head.task_id, "cancelled")
        stopped = world.ledger.entries(head.task_id, "cancelled")
        returned = world.ledger.entries(head.task_id, "returned")
        assert len(stopped) == len(returned) == 1
        assert {stopped[0].pid, returned[0].pid} == {first.pid, second.pid}
        assert len(set(end.writers)) == 1
        await world.drained()
        assert (await world.look(head.task_id)).head == end.head


async def test_a_message_lost_after_the_claim(emulators: Emulators, tmp_path: Path) -> None:
    """After the longest run the sweeper sends a claimed turn again whose message was lost."""
    async with emulators.world(tmp_path, **{processes.LEASE: "2"}) as world:
        await world.start("api")
        victim = await world.start("worker", point="after-claim:1")
        task_id = await world.send("chunks 4 0.15")
        await world.dies(victim, "after-claim:1")
        await world.lose()
        await world.start("worker")
        await world.start("sweep")
        end = await world.end(task_id)
        assert (end.state, end.chunks) == (COMPLETED, numbers(4))
        assert world.ledger.count(task_id, "started") == 2
        await world.drained()


async def test_spot_workers_give_back_what_cannot_end(emulators: Emulators, tmp_path: Path) -> None:
    """Half of its turns end within the drain, the rest goes on elsewhere; no attempt is lost."""
    settings = {"A2A_VISIBILITY_S": "30", "A2A_MAX_ATTEMPTS": "2"}
    async with emulators.world(tmp_path, **settings) as world:
        heads = [await world.create("held 3") for _ in range(TURNS)]
        for head in heads:
            await world.put(operation_of(head))
        port = free_port()
        options = ("--drain", "6", "--health-port", str(port))
        first = await world.start("worker", *options, concurrency=TURNS)
        held = partial(world.ledger.entries, what="held")
        await until(held, "all turns have started", is_it=lambda seen: len(seen) == TURNS)
        assert await health(port) == 200
        other = await world.start("worker", concurrency=TURNS)
        os.kill(first.pid, signal.SIGTERM)
        await until(partial(health, port), "the health check says so", is_it=(503).__eq__)
        for head in heads[::2]:
            world.ledger.release(head.task_id)
        assert await first.ended() == 0, first.said()
        more = TURNS + TURNS // 2
        await until(held, "the rest goes on", SOON_S, is_it=lambda seen: len(seen) == more)
        for head in heads[1::2]:
            world.ledger.release(head.task_id)
        ended = await ends(world, [head.task_id for head in heads])
        assert {end.state for end in ended} == {COMPLETED}
        assert [end.chunks for end in ended] == [numbers(3)] * TURNS
        assert {end.head.turn.attempts for end in ended} == {1}
        starts = Counter(entry.task_id for entry in world.ledger.entries(what="started"))
        assert [starts[head.task_id] for head in heads] == [1, 2] * (TURNS // 2)
        assert await other.end() == 0
        await at_rest(world)


async def health(port: int) -> int:
    """The answer of the health check; 0 without one."""
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await client.get(f"http://127.0.0.1:{port}/")
    except httpx.TransportError:
        return 0
    return answer.status_code

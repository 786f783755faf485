"""The end of an external worker by a signal, with many turns under way."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest

from a2a_serverless_tools.cloud.emulator import free_port
from tests.faults.crowd import COMPLETED, at_rest, ends
from tests.faults.harness import IS_LONG, Emulators, numbers, operation_of, until

pytestmark = pytest.mark.emulators

TURNS = 16
SOON_S = 5.0 if IS_LONG else 25.0
"""Below the visibility, after which another worker takes over from one that has died."""


async def test_a_spot_worker_gives_back_what_cannot_end(
    emulators: Emulators, tmp_path: Path
) -> None:
    """Half of its turns end within the drain, the rest goes on elsewhere; no attempt is lost."""
    settings = {"A2A_VISIBILITY_S": "30", "A2A_MAX_ATTEMPTS": "2"}
    async with emulators.world(tmp_path, **settings) as world:
        heads = [await world.create("held 3") for _ in range(TURNS)]
        for head in heads:
            await world.put(operation_of(head))
        port = free_port()
        options = ("--drain", "6", "--health-port", str(port))
        first = await world.start("worker", *options, concurrency=TURNS)

        async def have_started() -> bool:
            return len(world.ledger.entries(what="held")) == TURNS

        await until(have_started, "all turns have started")
        assert await health(port) == 200
        other = await world.start("worker", concurrency=TURNS)
        os.kill(first.pid, signal.SIGTERM)

        async def is_draining() -> bool:
            return await health(port) == 503

        await until(is_draining, "the health check says so")
        for head in heads[::2]:
            world.ledger.release(head.task_id)
        assert await first.ended() == 0, first.said()

        async def go_on() -> bool:
            return len(world.ledger.entries(what="held")) == TURNS + TURNS // 2

        await until(go_on, "the rest goes on", SOON_S)
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

"""Turns without a message: found in the due index, and sent again without a storm."""

from __future__ import annotations

from pathlib import Path

import pytest
from a2a.types import TaskState

from tests.faults import processes
from tests.faults.harness import Emulators, numbers

pytestmark = pytest.mark.emulators


async def test_a_message_that_was_lost_after_the_claim(
    emulators: Emulators, tmp_path: Path
) -> None:
    """After the longest run the sweeper sends a claimed turn again whose message was lost."""
    settings = {processes.LEASE: "2"}
    async with emulators.world(tmp_path, **settings) as world:
        await world.start("api")
        victim = await world.start("worker", point="after-claim:1")
        task_id = await world.send("chunks 4 0.15")
        await world.dies(victim, "after-claim:1")
        await world.lose()
        await world.start("worker")
        await world.start("sweep")
        end = await world.end(task_id)
        assert end.state == TaskState.TASK_STATE_COMPLETED
        assert end.chunks == numbers(4)
        assert world.ledger.count(task_id, "started") == 2
        await world.drained()

"""Attempts that fail, over processes and a queue that counts on its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from a2a.types import TaskState

from tests.faults.harness import Emulators, numbers

pytestmark = pytest.mark.emulators

FIXED = re.compile(r"The agent could not finish the task\. Correlation id: [0-9a-f]{16}\.")


async def test_attempts_are_exact_whatever_the_queue_has_counted(
    emulators: Emulators, tmp_path: Path
) -> None:
    """Receives that never ran take no attempt away; the last one fails with the fixed sentence."""
    async with emulators.world(tmp_path, A2A_MAX_ATTEMPTS="3") as world:
        await world.start("api")
        task_id = await world.send("failing 99")
        counts = [await world.receive() for _ in range(6)]
        assert counts[-1]["Attributes"]["ApproximateReceiveCount"] == "6"
        await world.start("worker")
        end = await world.end(task_id)
        assert end.state == TaskState.TASK_STATE_FAILED
        assert end.head.attempts == 3
        assert world.ledger.count(task_id, "started") == 3
        assert FIXED.fullmatch(end.said), end.said
        assert "hunter2" not in str(end.task)
        await world.drained()


async def test_an_attempt_that_succeeds_leaves_nothing_of_those_that_failed(
    emulators: Emulators, tmp_path: Path
) -> None:
    """After two failures the third attempt's chunks are the only ones."""
    async with emulators.world(tmp_path) as world:
        await world.start("api")
        await world.start("worker")
        task_id = await world.send("failing 2")
        end = await world.end(task_id)
        assert end.state == TaskState.TASK_STATE_COMPLETED
        assert end.chunks == numbers(4)
        assert world.ledger.count(task_id, "started") == 3
        await world.drained()


async def test_a_final_error_is_not_retried(emulators: Emulators, tmp_path: Path) -> None:
    """A final error fails the task with its first attempt."""
    async with emulators.world(tmp_path) as world:
        await world.start("api")
        await world.start("worker")
        task_id = await world.send("final")
        end = await world.end(task_id)
        assert end.state == TaskState.TASK_STATE_FAILED
        assert FIXED.fullmatch(end.said), end.said
        assert world.ledger.count(task_id, "started") == 1
        await world.drained()

"""Cancels that really cancel, in the four cases, over processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from a2a.types import TaskState

from tests.faults.harness import Emulators, until

pytestmark = pytest.mark.emulators

PATIENT = {"A2A_CANCEL_TIMEOUT_S": "20"}
"""A wait so long that only the worker can have ended the task."""


async def test_a_silent_agent_hears_the_cancel(emulators: Emulators, tmp_path: Path) -> None:
    """An agent that emits nothing gets CancelledError from the request alone."""
    async with emulators.world(tmp_path, **PATIENT) as world:
        await world.start("api")
        await world.start("worker")
        tasks = [await world.send("silent") for _ in range(3)]
        for task_id in tasks:
            await world.state(task_id, TaskState.TASK_STATE_WORKING)
        answers = await asyncio.gather(*(world.cancel(task_id) for task_id in tasks))
        assert [answer and answer.state for answer in answers] == ["CANCELED"] * 3
        for task_id in tasks:
            end = await world.end(task_id)
            assert end.state == TaskState.TASK_STATE_CANCELED
            assert world.ledger.count(task_id, "cancelled") == 1
            assert world.ledger.count(task_id, "cancel called") == 1
        await world.drained()


async def test_the_agent_of_a_queued_task_never_starts(
    emulators: Emulators, tmp_path: Path
) -> None:
    """The worker that gets the run finds the request."""
    async with emulators.world(tmp_path, **PATIENT) as world:
        await world.start("api")
        task_id = await world.send("chunks 4 0")
        canceling = asyncio.create_task(world.cancel(task_id))

        await until(lambda: world.is_being_canceled(task_id), "the cancel is requested")
        await world.start("worker")
        answer = await canceling
        assert answer is not None
        assert answer.state == "CANCELED"
        await world.end(task_id)
        await world.drained()
        assert world.ledger.entries(task_id) == []


async def test_a_paused_task_is_canceled_by_one_operation(
    emulators: Emulators, tmp_path: Path
) -> None:
    """The operation calls cancel() and ends the task; the API's time-out is not what ends it."""
    async with emulators.world(tmp_path, **PATIENT) as world:
        await world.start("api")
        await world.start("worker")
        task_id = await world.send("ask")
        await world.state(task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
        answer = await world.cancel(task_id)
        assert answer is not None
        assert answer.state == "CANCELED"
        await world.end(task_id)
        await world.drained()
        assert world.ledger.count(task_id, "cancel called") == 1
        assert world.ledger.count(task_id, "started") == 1


async def test_an_agent_that_swallows_the_cancel_is_overruled(
    emulators: Emulators, tmp_path: Path
) -> None:
    """After the time-out the task is canceled; what the agent still writes changes nothing."""
    async with emulators.world(tmp_path) as world:
        await world.start("api")
        await world.start("worker")
        task_id = await world.send("stubborn")

        async def has_written() -> bool:
            return (await world.head(task_id)).token is not None

        await until(has_written, "the agent has written")
        answer = await world.cancel(task_id)
        assert answer is not None
        assert answer.state == "CANCELED"
        end = await world.end(task_id)

        async def wrote_late() -> bool:
            late = world.ledger.entries(task_id, "late chunk")
            return late[-1].at > end.head.status_at / 1000 + 1

        await until(wrote_late, "the agent writes after the end")
        assert (await world.look(task_id)).head == end.head
        repeated = await world.cancel(task_id)
        assert repeated is not None
        assert repeated.reason == "TASK_NOT_CANCELABLE"
        await world.drained()

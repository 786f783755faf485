"""Messages that no turn belongs to: acknowledged or kept elsewhere, never run, never in a loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from a2a.types import TaskState

from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.tasks.identity import Scope
from tests.faults.harness import Emulators, World, numbers, operation_of, until
from tests.support.messages import request

pytestmark = pytest.mark.emulators

POISON = ["no JSON", "{}", '{"operation": "run", "params": {"task_id": "t"}}', "[1, 2]"]


async def test_bad_messages_hold_up_nobody(emulators: Emulators, tmp_path: Path) -> None:
    """Poison goes to the queue without consumer, the rest is acknowledged, and the worker lives."""
    async with emulators.world(tmp_path) as world:
        await world.start("api")
        finished = await _paused_twice(world)
        gone = await world.create("chunks 4 0")
        assert await delete_task(world.storage, gone.task_id)
        for number, body in enumerate(POISON):
            await world.put_body(body, group=f"poison-{number}")
        await world.put(operation_of(gone))
        await world.put(await _expired(world))
        await world.put(_of(finished, scope=Scope.of("somebody", "else").digest))
        await world.put(_of(finished, incarnation="another"))
        await world.put(_of(finished, turn=1))
        await world.put(_of(finished, turn=99))
        await world.put(_of(finished, task_id="never-was"))
        noted = world.ledger.entries()

        worker = await world.start("worker")
        await world.drained()
        assert await world.waiting(world.made.undecodable_queue) == len(POISON)
        assert world.ledger.entries() == noted, "an agent was started"
        assert (await world.head(finished.task_id)).version == finished.version
        task_id = await world.send("chunks 4 0")
        end = await world.end(task_id)
        assert end.chunks == numbers(4)
        await world.drained()
        assert not worker.has_ended


async def _paused_twice(world: World) -> Head:
    """A task that paused, went on and paused again: its first turn is long over."""
    worker = await world.start("worker")
    task_id = await world.send("ask")
    head = await world.state(task_id, TaskState.TASK_STATE_INPUT_REQUIRED)
    await world.send("ask", task=head)

    async def is_second() -> bool:
        turn = (await world.head(task_id)).turn
        return turn.number > 1 and not turn.is_open

    await until(is_second, "the second turn has ended")
    await world.drained()
    assert await worker.end() == 0
    return await world.head(task_id)


async def _expired(world: World) -> Operation:
    opened = await world.storage.open_task("context", request(), ttl_s=1)

    async def is_gone() -> bool:
        return await world.storage.head(opened.head.task_id) is None

    await until(is_gone, "the task has expired")
    return operation_of(opened.head)


def _of(head: Head, **fields: Any) -> Operation:
    operation = operation_of(head)
    return operation.model_copy(update={"params": operation.params.model_copy(update=fields)})

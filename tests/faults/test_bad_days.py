"""Every process of a deployment on a bad day of AWS: API, workers, sweeper, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from a2a.types import TaskState

from tests.faults import bad_days
from tests.faults.bad_days import EVERYWHERE, Met
from tests.faults.clients import Patient
from tests.faults.crowd import COMPLETED, at_rest, counted, ends, number_of_tasks
from tests.faults.harness import IS_LONG, Emulators, World, numbers, until
from tests.faults.report import Record, check

pytestmark = pytest.mark.emulators

TASKS = 200 if IS_LONG else 12
ASKED, CANCELLED, UNSENT, DEAD = (20, 20, 20, 4) if IS_LONG else (2, 2, 4, 1)
WITHIN_S = 600 if IS_LONG else 90

EXPECTED: Mapping[str, tuple[str, str]] = {
    "api": ("GetItem Query TransactWriteItems", "SendMessage"),
    "worker": (
        "BatchGetItem Query TransactWriteItems",
        "ChangeMessageVisibility DeleteMessage ReceiveMessage",
    ),
    "sweep": (
        "GetItem PutItem Query TransactWriteItems",
        "DeleteMessage ReceiveMessage SendMessageBatch",
    ),
}
"""Requests of both services that have to meet a fault: PutItem is the sweeper's postponement."""


def settings(records: Path) -> dict[str, str]:
    """One in seven requests meets a fault; what boto3 itself does not repeat is no answer."""
    return {
        bad_days.DAY: "11:0.15",
        bad_days.MET: str(records),
        bad_days.BUDGET_S: "0",
        "A2A_VISIBILITY_S": "3",
        "A2A_MAX_ATTEMPTS": "20",
    }


@pytest.mark.timeout(900 if IS_LONG else 300)
async def test_no_process_loses_a_task_on_a_bad_day(
    emulators: Emulators, tmp_path: Path, record_property: Record
) -> None:
    """Each task ends as it should, each chunk once; nothing is stuck, due or left in a queue.

    Requests of API, workers, sweeper and dead-letter consumer are throttled, conflict, are lost or
    lose their answers, reads and writes, of the table and of the queues. A client that is told of
    a server error repeats its message, and has one task.
    """
    records = tmp_path / "met"
    async with emulators.world(tmp_path, **settings(records)) as world:
        await asyncio.gather(world.start("api"), world.start("sweep"))
        client = Patient(world.http)
        dead = await ends(world, await _dead_letters(world, client), within_s=WITHIN_S)
        assert {end.state for end in dead} == {TaskState.TASK_STATE_FAILED}
        await asyncio.gather(*(world.start("worker", concurrency=12) for _ in range(2)))
        cancelling = asyncio.gather(*(_cancel(world, client) for _ in range(CANCELLED)))
        worked = await asyncio.gather(
            *(_work(client) for _ in range(TASKS)),
            *(_ask(world, client) for _ in range(ASKED)),
            *(_unsent(world) for _ in range(UNSENT)),
        )
        ended = await ends(world, worked, within_s=WITHIN_S)
        cancelled = await ends(world, await cancelling, within_s=WITHIN_S)
        await at_rest(world, within_s=WITHIN_S)
        assert await number_of_tasks(world) == len([*dead, *worked, *cancelled])
    met = bad_days.met(records)
    check([counted(f"bad days: {len(met)} faults", ended, numbers(4))], record_property)
    assert {end.state for end in ended} == {COMPLETED}
    assert {end.state for end in cancelled} == {TaskState.TASK_STATE_CANCELED}
    assert client.repeated["500"] > 0, "no client was ever told of an error"
    _check_met(met)


def _check_met(met: Sequence[Met]) -> None:
    """Each kind of process met each kind of fault, at each of the requests that it is made of."""
    for kind, (dynamodb, sqs) in EXPECTED.items():
        operations = {*(f"dynamodb.{each}" for each in dynamodb.split())}
        operations |= {f"sqs.{each}" for each in sqs.split()}
        mine = [one for one in met if one.kind == kind]
        assert {one.operation for one in mine} >= operations, mine
        assert {one.fault for one in mine} >= {*EVERYWHERE, "conflict"}, mine


async def _work(client: Patient) -> str:
    return str((await client.send("chunks 4 0.1")).task["id"])


async def _ask(world: World, client: Patient) -> str:
    task_id = str((await client.send("ask")).task["id"])
    paused = await world.state(task_id, TaskState.TASK_STATE_INPUT_REQUIRED, within_s=WITHIN_S)
    assert (await client.send("chunks 4 0.1", task=paused)).task["id"] == task_id
    return task_id


async def _unsent(world: World) -> str:
    return (await world.create("chunks 4 0.1")).task_id


async def _cancel(world: World, client: Patient) -> str:
    """A task that its client cancels while its agent runs: its worker has to look to hear of it."""
    task_id = str((await client.send("silent")).task["id"])
    await world.state(task_id, TaskState.TASK_STATE_WORKING, within_s=WITHIN_S)
    await client.cancel(task_id)
    return task_id


async def _dead_letters(world: World, client: Patient) -> list[str]:
    """Tasks whose attempts are used up, and their operations delivered too often."""
    sent = [await _work(client) for _ in range(DEAD)]
    for task_id in sent:
        await world.use_up(task_id)

    async def are_dead() -> bool:
        await world.receive(must=False)
        return await world.waiting(world.made.queue) == 0

    await until(are_dead, "the operations are dead letters")
    return sent

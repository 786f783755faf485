"""A stack whose number of index partitions has grown finds what it has written before."""

from __future__ import annotations

import pytest

from a2a_serverless.storage import layout
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.layout import HOUR_MS
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.operate.finding import created_in
from tests.support.clocks import ManualClock
from tests.support.messages import request

TASKS = 12


async def test_more_shards_find_the_tasks_of_fewer(
    storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists, hours, due turns, states and deletions; what is written from then on uses all."""
    heads = [(await storage.open_task(f"c{n}", request())).head for n in range(TASKS)]
    monkeypatch.setattr(layout, "SHARDS", 16)
    heads += [(await storage.open_task(f"d{n}", request())).head for n in range(TASKS)]
    assert len({layout.shard_of(head.task_id) for head in heads}) > 4
    ids = {head.task_id for head in heads}

    listed = await list_tasks(storage, ListTasksQuery(page_size=100))
    assert {task.id for task in listed.tasks} == ids
    hour_ms = clock.now_ms() // HOUR_MS * HOUR_MS
    found = await created_in(storage, hour_ms, limit=1000)
    assert ids <= {one.task_id for one in found.found}
    clock.advance(3600)
    overdue = await due_tasks(storage, clock.now_ms(), limit=100_000)
    assert ids <= {due.task_id for due in overdue}

    old = heads[0]
    moved = await storage.commit(old, Commit(token="one", claims=True, worker="host"))
    again = await due_tasks(storage, clock.now_ms(), limit=100_000)
    assert old.task_id not in {due.task_id for due in again}
    assert moved.version == old.version + 1
    await delete_task(storage, old.task_id)
    left = await list_tasks(storage, ListTasksQuery(page_size=100))
    assert {task.id for task in left.tasks} == ids - {old.task_id}

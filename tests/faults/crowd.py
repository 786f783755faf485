"""Many tasks: how all of them ended, as a row of the table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from operator import not_

from a2a.types import TaskState

from a2a_serverless.storage.finding import due_tasks
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks
from tests.faults.harness import SETTLE_S, End, World, lost_and_doubled, until
from tests.faults.report import Runs

AT_ONCE = 16

COMPLETED = TaskState.TASK_STATE_COMPLETED
DAY_MS = 24 * 3600 * 1000
"""Later than any turn is looked at, earlier than any task expires: an expired one is never due."""


async def ends(world: World, sent: Sequence[str], *, within_s: float = SETTLE_S) -> list[End]:
    """How all of them ended, in the order of `sent`; waits for the slowest."""
    open_tasks = set(sent)
    slots = asyncio.Semaphore(AT_ONCE)

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


def counted(name: str, ended: Sequence[End], chunks: Sequence[str]) -> Runs:
    """A row of the table: a task that has not completed may lack chunks, and has none twice."""
    runs = Runs(name=name, runs=len(ended))
    for end in ended:
        lost, doubled = lost_and_doubled(end.chunks, chunks)
        runs.lost += lost if end.state == COMPLETED else 0
        runs.doubled += doubled
    return runs


def check_attempts(ended: Sequence[End]) -> None:
    """Check that what has not completed has failed in its fifth attempt."""
    for end in ended:
        failed = (end.state, end.head.turn.attempts) == (TaskState.TASK_STATE_FAILED, 5)
        assert end.state == COMPLETED or failed, end


async def number_of_tasks(world: World) -> int:
    """How many tasks there are: a message that was repeated has made one."""
    number, token = 0, ""
    while True:
        query = ListTasksQuery(page_size=100, history_length=0, page_token=token)
        page = await list_tasks(world.storage, query)
        number, token = number + len(page.tasks), page.next_page_token
        if not token:
            return number


async def at_rest(world: World, *, within_s: float = SETTLE_S) -> None:
    """Wait until no queue holds a message, and nothing is due."""
    await world.drained(within_s)
    look = partial(due_tasks, world.storage, world.storage.clock.now_ms() + DAY_MS)
    await until(look, "nothing is due", within_s, is_it=not_)

"""One sentence for a canceled task, whichever process ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskState

from a2a_serverless.http.intake import Wait, cancel
from a2a_serverless.storage.endings import _CANCELED, never_started
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.sweeper import DeadLetters, Sweeper
from tests.support.clocks import ManualClock
from tests.support.workers import Agent, Bench, params_of, status_text
from tests.unit.tasks.heads import opened

Ends = Callable[[Bench, Head], Awaitable[object]]


async def deaf(_context: RequestContext, _queue: EventQueue) -> None:
    await asyncio.Event().wait()


async def by_the_api(bench: Bench, task: Head) -> None:
    await cancel(bench.backends, ANONYMOUS, task.task_id, wait=Wait(None, ""), timeout_s=0.01)


async def by_the_worker(bench: Bench, task: Head) -> None:
    await bench.cancel(task)
    await bench.work()


async def by_the_sweeper(bench: Bench, task: Head) -> None:
    await bench.storage.request_cancel(task.task_id)
    later = ManualClock(start_ms=bench.clock.now_ms() + 3_600_000)
    await Sweeper(bench.storage, bench.operations, clock=later).sweep()


async def by_a_dead_letter(bench: Bench, task: Head) -> None:
    letters = DeadLetters(bench.storage, bench.operations, retry=bench.settings.retry())
    await letters.handle(Operation.to_cancel(params_of(task)).model_dump_json())


@pytest.mark.parametrize("was_claimed", [False, True])
@pytest.mark.parametrize("end", [by_the_api, by_the_worker, by_the_sweeper, by_a_dead_letter])
async def test_a_canceled_task_says_the_same_whoever_ends_it(
    end: Ends, *, was_claimed: bool
) -> None:
    """A canceled task has the same sentence, whichever process ends it, claimed or not."""
    bench = Bench(Agent(deaf, deaf), cancel_timeout_s=0.05)
    task = await bench.send()
    if was_claimed:
        await bench.storage.commit(task, Commit(token="attempt", claims=True))
    await end(bench, task)
    ended = await bench.task(task)
    assert ended.status.state == TaskState.TASK_STATE_CANCELED
    assert status_text(ended) == _CANCELED
    assert ended.status.message.task_id == task.task_id


@pytest.mark.parametrize(
    ("hours", "spoken"), [(1, "1 hour,"), (24, "24 hours,"), (0.5, "0.5 hours,")]
)
def test_hours_are_spoken_as_one_says_them(hours: float, spoken: str) -> None:
    """The reason of a task that was given up names the time that a deployment has chosen."""
    (entry,) = never_started(opened(), hours * 3600).entries
    assert f"within {spoken}" in str(entry)

"""Webhooks that wait for a minute or more: in the table, and neither in flight nor on the queue."""

from __future__ import annotations

import math
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
from a2a.types import TaskPushNotificationConfig

from a2a_serverless.errors import UnavailableError
from a2a_serverless.push import waiting as waiting_jobs
from a2a_serverless.push.waiting import _WOKEN_MS, wake_due
from a2a_serverless.queues.fifo import MOST_AT_ONCE, FifoQueue
from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.storage.layout import SHARDS
from a2a_serverless.tasks.head import Head, Operation
from a2a_serverless.tasks.push import LONG_WAIT_MS, MAX_REFUSALS
from a2a_serverless.worker.sweeper import Sweeper
from tests.support.memory import items_of
from tests.support.present import present
from tests.support.queues import MemoryQueue, is_empty
from tests.unit.push.receivers import OK, Receiver, status
from tests.unit.push.world import COMPLETED, WORKING, World, config, unavailable

ASKED_S = 600
"""The wait that the receivers ask for."""


@pytest.fixture
def receiver(receiver: Receiver) -> Receiver:
    """A receiver that asks to wait for ten minutes."""
    receiver.script = lambda _: status(503, Retry_After=str(ASKED_S))
    return receiver


async def waiting(world: World, receiver: Receiver) -> Head:
    """A task whose webhook waits."""
    head = await world.open(receiver.url(), states=[WORKING])
    assert await world.pump() == 1
    return head


async def test_a_long_wait_is_not_in_flight(receiver: Receiver, world: World) -> None:
    """The job is gone until the time has come; then the event is sent again, and later ones."""
    head = await waiting(world, receiver)
    assert is_empty(world.jobs)
    await world.run(seconds=ASKED_S - 5, step=5)
    assert len(receiver.requests) == 1
    receiver.script = lambda _: OK
    await world.say(head, COMPLETED)
    assert await world.pump() == 1  # the commit's job, before the time: it sends nothing
    assert len(receiver.requests) == 1
    await world.run(seconds=20, step=5)
    assert receiver.states == ["WORKING", "WORKING", "COMPLETED"]
    assert is_empty(world.jobs)
    kept = [item for key, item in items_of(world.storage).items() if key.SK.startswith("PUSH#")]
    assert not any("due_key" in item for item in kept)


async def test_a_short_wait_is_the_queues(receiver: Receiver, world: World) -> None:
    """A wait of less than a minute costs no sweep."""
    receiver.script = lambda _: status(503, Retry_After=str(LONG_WAIT_MS // 1000 - 1))
    await waiting(world, receiver)
    assert not is_empty(world.jobs)


async def test_one_of_two_sweepers_sends_the_job(receiver: Receiver, world: World) -> None:
    """They look at once, and the queue gets one job."""
    await waiting(world, receiver)
    world.clock.advance(ASKED_S + 1)
    operations = MemoryQueue(Operation, clock=world.clock)
    wake = partial(wake_due, world.storage, world.jobs)
    sweepers = [
        Sweeper(world.storage, operations, wake_webhooks=wake, clock=world.clock) for _ in range(2)
    ]
    assert [(await sweeper.sweep()).pushed for sweeper in sweepers] == [1, 0]
    assert await world.pump() == 1


async def test_a_job_that_is_not_sent_is_sent_later(
    receiver: Receiver, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue did not answer, or the sweeper died before it sent: fifteen minutes later."""
    head = await waiting(world, receiver)

    async def failing(_: FifoQueue[Any], messages: Any) -> Any:
        return [UnavailableError() for _ in messages]

    world.clock.advance(ASKED_S + 1)
    with monkeypatch.context() as broken:
        broken.setattr(FifoQueue, "send_all", failing)
        assert await wake_due(world.storage, world.jobs, math.inf) == 0
    receiver.script = lambda _: OK
    assert await world.pump() == 0
    world.clock.advance(_WOKEN_MS / 1000)
    await world.pump()
    assert await world.is_settled(head)


async def test_a_process_that_dies_before_it_acknowledges(
    receiver: Receiver, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job comes again, sends nothing before the time, and is done: the table has the wait."""
    await world.open(receiver.url(), states=[WORKING])
    await world.pass_on()
    handle = present(world.take())
    monkeypatch.setattr(handle, "ack", unavailable)
    await world.deliver(handle)
    world.clock.advance(91)
    assert await world.pump() == 1
    assert len(receiver.requests) == 1
    assert is_empty(world.jobs)


async def test_a_configuration_that_is_set_again_is_woken(receiver: Receiver, world: World) -> None:
    """Setting it does not lose what it waits for."""
    head = await waiting(world, receiver)
    own = config(receiver.url(), "hook-1", task_id=head.task_id)
    await world.storage.webhooks.put(own)
    receiver.script = lambda _: OK
    await world.run(seconds=ASKED_S + 5, step=5)
    assert await world.is_settled(head)


async def test_what_is_deleted_is_not_woken(receiver: Receiver, world: World) -> None:
    """A configuration that is gone, alone or with its task, leaves no job behind."""
    one, other = await waiting(world, receiver), await waiting(world, receiver)
    await delete_task(world.storage, one.task_id)
    await world.storage.webhooks.delete(other.task_id, "hook-1")
    world.clock.advance(ASKED_S + 1)
    assert await wake_due(world.storage, world.jobs, math.inf) == 0


async def test_a_url_that_is_given_up_is_not_woken(receiver: Receiver, world: World) -> None:
    """Another configuration of the task has got the URL given up: it is woken once at most."""
    head = await waiting(world, receiver)
    receiver.script = lambda _: status(410)
    other = TaskPushNotificationConfig(id="other", url=receiver.url(), task_id=head.task_id)
    await world.storage.webhooks.put(other)
    await world.say(head, *[WORKING] * MAX_REFUSALS)
    await world.pump()
    assert (await world.push(head)).is_given_up
    world.clock.advance(ASKED_S + 1)
    assert await world.pump() <= 1
    world.clock.advance(_WOKEN_MS / 1000 + 1)
    assert await world.pump() == 0


async def test_many_are_woken_in_one_run(
    receiver: Receiver, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are, in batches and pages; a run that has no time left begins none."""
    for _ in range(30):
        await world.open(receiver.url(), states=[WORKING])
    await world.pump()
    world.clock.advance(3600)
    assert await wake_due(world.storage, world.jobs, -math.inf) == 0
    monkeypatch.setattr(waiting_jobs, "_PAGE", 1)
    assert await wake_due(world.storage, world.jobs, math.inf) == 30


async def test_a_run_whose_time_ends_begins_no_other_batch(
    receiver: Receiver, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue answers slowly: what is left is for the next run."""
    for _ in range(MOST_AT_ONCE + 1):
        await world.open(receiver.url(), states=[WORKING])
    await world.pump()
    world.clock.advance(3600)
    send_all = FifoQueue.send_all

    async def slow(queue: Any, messages: Any) -> Any:
        world.clock.advance(60)
        return await send_all(queue, messages)

    monkeypatch.setattr(waiting_jobs, "_LANES", 1)
    monkeypatch.setattr(FifoQueue, "send_all", slow)
    sent = [await wake_due(world.storage, world.jobs, world.clock.monotonic() + 30) for _ in "ab"]
    assert sent == [MOST_AT_ONCE, 1]


async def test_of_two_runs_that_have_read_the_same_one_sends(
    receiver: Receiver, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one finds that the configuration was put off meanwhile."""
    await waiting(world, receiver)
    world.clock.advance(ASKED_S + 1)
    read = [await waiting_jobs._due(world.storage, shard) for shard in range(SHARDS)]
    assert await wake_due(world.storage, world.jobs, math.inf) == 1
    monkeypatch.setattr(waiting_jobs, "_due", AsyncMock(side_effect=read))
    assert await wake_due(world.storage, world.jobs, math.inf) == 0

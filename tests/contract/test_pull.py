"""Pulling several deliveries at once, over tables, moto and fauxqs."""

from __future__ import annotations

import asyncio
from threading import Thread
from typing import Any

import pytest

from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.queues.table import TableQueue
from tests.contract.queues import (
    PATIENCE_S,
    Note,
    SqsQueues,
    TableQueues,
    everywhere,
    lambda_record,
    on_moto,
)
from tests.support.clocks import ManualClock

Queues = TableQueues | SqsQueues


@everywhere
async def test_a_pull_brings_as_many_as_it_asks_for(queues: Queues) -> None:
    """One delivery of each group, and no more than the limit; the rest comes with the next pull."""
    queue = queues.queue()
    for task in "abc":
        await queue.send(Note(task_id=task))
    first = await queue.pull(2, PATIENCE_S)
    then = await queue.pull(2, PATIENCE_S)
    assert [handle.message.task_id for handle in (*first, *then)] == ["a", "b", "c"]
    assert {handle.attempt for handle in (*first, *then)} == {1}


@everywhere
async def test_of_a_group_the_first_message_is_pulled_alone(queues: Queues) -> None:
    """A group's next message comes only after the one before it is acknowledged."""
    queue = queues.queue()
    for text in ("1", "2", "3"):
        await queue.send(Note(text=text))
    await queue.send(Note(task_id="other"))
    pulled = [await queue.pull(10, 0) for _ in range(2)]
    first = next(h for handles in pulled for h in handles if h.message.group == "task")
    assert sorted(h.message.text for handles in pulled for h in handles) == ["", "1"]
    await first.ack()
    (second,) = await queue.pull(10, PATIENCE_S)
    assert second.message.text == "2"


@everywhere
async def test_an_empty_queue_is_left_after_the_wait(queues: Queues) -> None:
    """A pull returns nothing where nothing comes, nor after a shutdown; what comes, at once."""
    queue = queues.queue()
    assert await queue.pull(10, 0) == []
    waiting = asyncio.create_task(queue.pull(10, PATIENCE_S))
    await queue.send(Note())
    async with asyncio.timeout(PATIENCE_S):
        (handle,) = await waiting
    assert handle.message == Note()
    await handle.nack()
    await queue.shutdown()
    assert await queue.pull(10, PATIENCE_S) == []


@on_moto
async def test_a_pull_without_long_polls_waits_by_the_clock(queues: SqsQueues) -> None:
    """A pull without long polls returns after its wait by the clock."""
    clock, asked = ManualClock(), recorded(queues.client)
    assert await queues.queue(clock=clock, has_long_polls=False).pull(10, 2) == []
    assert clock.monotonic() == 2
    assert {call["WaitTimeSeconds"] for call in asked} == {0}


@on_moto
async def test_a_pull_without_a_thread_brings_nothing(
    queues: SqsQueues, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where agents have taken all threads of the system, the turns that run are left alone."""

    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    queue = queues.queue(clock=ManualClock())
    await queue.send(Note())
    with monkeypatch.context() as without:
        without.setattr(Thread, "start", refuse)
        assert await queue.pull(10, 0) == []
    assert [record.__dict__["action"] for record in caplog.records] == ["receive_failed"]
    assert len(await queue.pull(10, PATIENCE_S)) == 1


@everywhere
async def test_a_record_may_be_removed_before_its_invocation_returns(queues: Queues) -> None:
    """A handle that removes its message lets the group's next message come at once."""
    queue = queues.queue()
    await queue.send(Note(text="1"))
    record: EventRecord | None
    if isinstance(queue, TableQueue):
        record = await queue.receive()
    else:
        assert isinstance(queues, SqsQueues)
        record = lambda_record(queues.take()[0])
    assert record is not None
    await queue.send(Note(text="2"))
    await queue.decode_record(record, removes=True).ack()
    (second,) = await queue.pull(1, PATIENCE_S)
    assert second.message.text == "2"


def recorded(client: Any) -> list[dict[str, Any]]:
    """The parameters of the receives from now on."""
    calls: list[dict[str, Any]] = []
    client.meta.events.register(
        "provide-client-params.sqs.ReceiveMessage", lambda params, **_: calls.append(params)
    )
    return calls

"""A message that is sent, received and acknowledged in the steps of other writes to its table."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import ConditionFailedError
from a2a_serverless.queues.fifo import Handle, Reservation
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.storage.changes import change
from a2a_serverless.storage.table import NEW, Key, Put
from tests.contract.queues import PATIENCE_S, Note, TableQueues, on_tables

KEY = Key("partition", "HEAD")
OWN = Put(item=KEY._asdict(), when=[NEW])
"""The write of a sender, which succeeds once."""


class Bench:
    """A queue, and a pull that waits and is reserved by a sender."""

    def __init__(self, queues: TableQueues) -> None:
        self.queues = queues
        self.queue: TableQueue[Note] = queues.queue()

    async def waits(self) -> tuple[asyncio.Task[list[Handle[Note]]], Reservation]:
        """A pull that waits, and its reservation."""
        pull = asyncio.create_task(self.queue.pull(1, PATIENCE_S))
        async with asyncio.timeout(PATIENCE_S):
            while (reserved := self.queue.reserve(self.queues.table)) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return pull, reserved

    async def stored(self, *changes: Any) -> None:
        """The changes are stored with a write of the sender's."""
        await change(self.queues.table, SystemClock(), *changes, also=[OWN])

    async def has(self, waiting: int, hidden: int) -> bool:
        """Whether so many messages are there."""
        return (await self.queue.depth())[:2] == (waiting, hidden)


@on_tables
async def test_a_message_is_received_with_its_senders_write(queues: TableQueues) -> None:
    """The pull returns it once it is delivered; its handle acknowledges it like any other's."""
    bench = Bench(queues)
    pull, reserved = await bench.waits()
    await asyncio.sleep(0.01)
    await bench.stored(await reserved.sending(Note(text="1"), is_first=True))
    assert await bench.has(0, 1)
    assert not pull.done()
    assert reserved.deliver()
    (handle,) = await pull
    assert (handle.message.text, handle.attempt) == ("1", 1)
    # From its receive on, however long the pull has waited: so it is not renewed at once.
    assert handle.hidden_until == handle.sent_at + 1000 * bench.queue._visibility_s
    await bench.queue.send(Note(text="2"))
    await handle.extend(60)
    await handle.ack()
    (second,) = await bench.queue.pull(1, PATIENCE_S)
    assert second.message.text == "2"


@on_tables
async def test_what_its_sender_does_not_store_is_not_delivered(queues: TableQueues) -> None:
    """The pull goes on, and takes the next message that is sent."""
    bench = Bench(queues)
    await bench.stored()
    pull, reserved = await bench.waits()
    with pytest.raises(ConditionFailedError):
        await bench.stored(await reserved.sending(Note(text="lost"), is_first=True))
    assert not reserved.deliver()
    reserved.release()
    await bench.queue.send(Note(task_id="other"))
    (handle,) = await pull
    assert handle.message.task_id == "other"
    assert await bench.has(0, 1)


@on_tables
async def test_no_message_overtakes_others_of_its_group(queues: TableQueues) -> None:
    """It changes nothing where another message waits, or was sent under the same id."""
    bench = Bench(queues)
    await bench.queue.send(Note(text="1"))
    (first,) = await bench.queue.pull(1, PATIENCE_S)
    pull, reserved = await bench.waits()
    await bench.stored(await reserved.sending(Note(text="2"), is_first=True))
    assert not reserved.deliver()
    await first.ack()
    repeated = await reserved.sending(Note(text="1"), is_first=False)
    await change(queues.table, SystemClock(), repeated)
    assert not reserved.deliver()
    reserved.release()
    assert await bench.has(0, 0)
    await bench.queue.send(Note(text="3"))
    assert [handle.message.text for handle in await pull] == ["3"]


@on_tables
async def test_a_pull_is_reserved_by_one_sender(queues: TableQueues) -> None:
    """None is left beside it, after a shutdown, or for the writes to another table."""
    bench = Bench(queues)
    pull, reserved = await bench.waits()
    assert bench.queue.reserve(queues.table) is None
    await bench.queue.shutdown()
    await bench.stored(await reserved.sending(Note(), is_first=False))
    assert reserved.deliver()
    assert [handle.message for handle in await pull] == [Note()]  # what is received is handed out
    assert bench.queue.reserve(queues.table) is None
    other = Bench(queues)
    pull, reserved = await other.waits()
    reserved.release()
    elsewhere: Any = object()
    assert other.queue.reserve(elsewhere) is None
    await other.queue.shutdown()
    assert await pull == []


@on_tables
async def test_a_delivery_is_acknowledged_with_another_write(queues: TableQueues) -> None:
    """The message is gone with that write alone; what follows at the queue changes nothing."""
    bench = Bench(queues)
    for number in ("1", "2"):
        await bench.queue.send(Note(text=number))
    (handle,) = await bench.queue.pull(1, PATIENCE_S)
    await bench.stored(await handle.acknowledging(queues.table))
    await handle.extend(60)  # a renewal that was under way
    await handle.ack()
    (second,) = await bench.queue.pull(1, PATIENCE_S)
    assert second.message.text == "2"
    with pytest.raises(ConditionFailedError):  # the write is refused, and the message stays
        await bench.stored(await second.acknowledging(queues.table))
    assert await bench.has(0, 1)
    await second.ack()
    assert await bench.has(0, 0)
    elsewhere: Any = object()
    assert await second.acknowledging(elsewhere) is None

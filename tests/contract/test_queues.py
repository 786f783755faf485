"""The contract of FIFO queues over tables, moto and fauxqs; then what only one kind can show.

Waits are for messages to come, never for time to pass.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest import mock

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from a2a_serverless import aws
from a2a_serverless.clock import SystemClock
from a2a_serverless.errors import (
    ConcurrencyError,
    ConditionFailedError,
    ConfigurationError,
    FullGroupError,
    UnavailableError,
    UndecodableMessageError,
)
from a2a_serverless.queues import table
from a2a_serverless.queues.fifo import EventRecord, FifoQueue, Handle, Reservation
from a2a_serverless.queues.sqs import _LONGEST_LEASE_S, SqsFifoQueue
from a2a_serverless.queues.table import _DEDUPLICATION_S, _MOST_REMEMBERED, TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.changes import change
from a2a_serverless.storage.layout import BY_DUE
from a2a_serverless.storage.table import NEW, Item, Key, Put, Range, Table, Update
from a2a_serverless.tasks.head import Operation
from a2a_serverless.wiring import memory_backends
from tests.contract.queues import (
    FAUXQS,
    PATIENCE_S,
    Note,
    SqsQueues,
    TableQueues,
    everywhere,
    lambda_record,
    on_moto,
    on_sqs,
    on_tables,
    params,
    with_deduplication,
)
from tests.support.clocks import ManualClock
from tests.support.present import present
from tests.support.queues import aside, records
from tests.support.workers import lease_of
from tests.unit.tasks.heads import opened

TRACE = {"traceparent": "00-67891233abcdef012345678912345678-53995c3f42cd8ad8-01"}


class Consumer:
    """Takes notes one by one, with a bound on the patience."""

    def __init__(self, queue: FifoQueue[Note]) -> None:
        self._deliveries = queue.deliveries()

    async def next(self) -> Handle[Note]:
        async with asyncio.timeout(PATIENCE_S):
            return await anext(self._deliveries)

    async def ends(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            async for _ in self._deliveries:
                return False
        return True


@asynccontextmanager
async def consuming(queue: FifoQueue[Note]) -> AsyncIterator[Consumer]:
    """A consumer that has ended when the test has."""
    consumer = Consumer(queue)
    yield consumer
    await queue.shutdown()
    assert await consumer.ends()


# -- the contract ----------------------------------------------------------------------------


Queues = TableQueues | SqsQueues


@everywhere
async def test_the_operations_of_a_task_come_as_they_were_sent(queues: Queues) -> None:
    """One at a time, in order; a delay holds its own task alone; receivers end with the broker."""
    async with queues.broker() as broker, asyncio.timeout(2 * PATIENCE_S):
        await broker.check()
        operations = broker.receive_task_operations()
        await broker.run_task(params(), is_new_task=True, request_context={"traceparent": "é"})
        first = await anext(operations)
        assert (first.operation.operation, first.attempt) == ("run", 1)
        assert (first.operation.params, first.operation.is_new_task) == (params(), True)
        assert first.operation.request_context == {"traceparent": "é"}
        await first.nack()
        await broker.cancel_task(params())
        again = await anext(operations)
        assert (again.operation.operation, again.attempt) == ("run", 2)
        await again.extend(60)
        await again.ack()
        cancel = await anext(operations)
        assert (cancel.operation.operation, cancel.attempt) == ("cancel", 1)
        await cancel.nack(delay_seconds=60)
        await broker.run_task(params("other"))
        assert (await anext(operations)).operation.params.task_id == "other"
        assert await broker.keep_undecodable("poison", reason="no JSON")
    assert [handle async for handle in operations] == []


@everywhere
async def test_several_messages_are_sent_at_once(queues: Queues) -> None:
    """Each arrives once, and one that was sent before counts once."""
    queue = queues.queue()
    notes = [Note(task_id=str(number), text=str(number)) for number in range(10)]
    await queue.send(notes[3])
    assert await queue.send_all(notes) == [None] * 10
    async with consuming(queue) as consumer:
        handles = [await consumer.next() for _ in notes]
    assert sorted(handle.message.text for handle in handles) == [note.text for note in notes]


@everywhere
async def test_a_pull_brings_as_many_as_it_asks_for(queues: Queues) -> None:
    """One of each group, up to the limit; a group's next one comes when the one before is done."""
    queue = queues.queue()
    for task, text in ("a1", "a2", "b1", "c1"):
        await queue.send(Note(task_id=task, text=text))
    batches = [await queue.pull(2, wait_s) for wait_s in (PATIENCE_S, PATIENCE_S, 0)]
    pulled = {one.message.task_id + one.message.text: one for batch in batches for one in batch}
    assert max(map(len, batches)) <= 2
    assert sorted(pulled) == ["a1", "b1", "c1"]
    assert {handle.attempt for handle in pulled.values()} == {1}
    await pulled["a1"].ack()
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
    await queue.send(Note(text="2"))
    await queue.decode_record(present(record), removes=True).ack()
    (second,) = await queue.pull(1, PATIENCE_S)
    assert second.message.text == "2"


@on_moto
async def test_a_message_of_several_that_is_not_taken_is_told(queues: SqsQueues) -> None:
    """SQS may refuse some of a batch: the others are sent. Where it does not answer, none is."""
    real = queues.client.send_message_batch

    def refusing_one(**request: Any) -> Any:
        sent = [entry for entry in request["Entries"] if entry["Id"] != "1"]
        answer = real(**request | {"Entries": sent})
        return answer | {"Failed": [{"Id": "1", "Code": "InternalError", "SenderFault": False}]}

    notes = [Note(task_id=str(number)) for number in range(3)]
    queue = queues.queue(clock=ManualClock())
    with mock.patch.object(queues.client, "send_message_batch", refusing_one):
        first, second, third = await queue.send_all(notes)
    assert (first, third) == (None, None)
    assert isinstance(second, UnavailableError)
    assert queues.depth() == (2, 0)
    away = EndpointConnectionError(endpoint_url="x")
    fail(queues.client, "SendMessageBatch", away, times=1000)
    assert [type(error) for error in await queue.send_all(notes)] == [UnavailableError] * 3


@everywhere
async def test_one_message_of_a_group_at_a_time(queues: TableQueues | SqsQueues) -> None:
    """A group's next message waits for the end of the one before; another group's does not."""
    queue = queues.queue()
    async with consuming(queue) as consumer:
        await queue.send(Note(task_id="a", text="1"))
        first = await consumer.next()
        await queue.send(Note(task_id="a", text="2"))
        await queue.send(Note(task_id="b"))
        assert (await consumer.next()).message.task_id == "b"
        await first.ack()
        assert (await consumer.next()).message.text == "2"


@with_deduplication
async def test_a_repeated_send_counts_once(queues: Queues) -> None:
    """Whatever else it says, also after the first was done; on a table for five minutes."""
    clock = ManualClock(round(time.time() * 1000))
    options = {"clock": clock} if isinstance(queues, TableQueues) else {}
    queue = queues.queue(**options)
    await queue.send(Note(text="1"))
    await queue.send(Note(text="1", trace=TRACE))
    (handle,) = await queue.pull(1, PATIENCE_S)
    await handle.ack()
    clock.advance(_DEDUPLICATION_S - 1)
    await queue.send(Note(text="1"))
    await queue.send(Note(text="2"))
    (handle,) = await queue.pull(1, PATIENCE_S)
    assert handle.message.text == "2"
    await handle.ack()
    if isinstance(queue, TableQueue):
        clock.advance(2)
        await queue.send(Note(text="1"))
        assert len(await queue.waiting()) == 1


@on_tables
async def test_an_index_that_lags(queues: TableQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group itself decides: it hides what an index still shows as visible."""
    queue = queues.queue()
    await queue.send(Note())
    by_due = Range(partition=queue._partition, index=BY_DUE)
    pages = [page async for page in queues.table.query(by_due)]

    async def lagging(_: Range) -> AsyncIterator[list[Item]]:
        for page in pages:
            yield page

    monkeypatch.setattr(queues.table, "query", lagging)
    assert await queue.receive() is not None
    assert await queue.receive() is None


@on_tables
async def test_a_group_remembers_its_last_hundred_messages(queues: TableQueues) -> None:
    """A group that is written for each of them stays small: the oldest are forgotten early."""
    queue = queues.queue()
    for number in range(_MOST_REMEMBERED + 1):
        await queue.send(Note(text=str(number)))
    for text in ("1", "0"):
        await queue.send(Note(text=text))
    bodies = [Note.model_validate_json(one.body).text for one in await queue.waiting()]
    assert bodies == [*map(str, range(_MOST_REMEMBERED + 1)), "0"]


@everywhere
async def test_a_delivery_says_how_long_its_receive_keeps_it(queues: Queues) -> None:
    """Each delivery of a batch says it, until it is extended or given back."""
    queue = queues.queue(visibility_s=60)
    for name in "ab":
        await queue.send(Note(task_id=name))
    pulled: list[Handle[Note]] = []
    while len(pulled) < 2:
        asked_at = SystemClock().now_ms()
        pulled += (handles := await queue.pull(10, PATIENCE_S))
        for handle in handles:
            kept_ms = handle.hidden_until - asked_at
            assert 60_000 <= kept_ms <= 60_000 + SystemClock().now_ms() - asked_at
    extended, given_back = pulled
    await extended.extend(60)
    assert extended.hidden_until == 0
    await given_back.nack(delay_s=60)
    assert given_back.hidden_until == 0


@pytest.mark.parametrize("queues", [FAUXQS], indirect=True)
async def test_an_expired_delivery_has_no_say(queues: SqsQueues) -> None:
    """Once another has it, `extend` raises, `ack` and `nack` do nothing; one extended is kept."""
    queue = queues.queue(visibility_s=1)
    async with consuming(queue) as consumer:
        await queue.send(Note())
        expired = current = await consumer.next()
        while current.attempt == 1:  # until one is held for a minute: the machine may be slow
            current = await consumer.next()
            try:
                await current.extend(60)
            except ConcurrencyError:
                current = expired
        with pytest.raises(ConcurrencyError):
            await expired.extend(60)
        await expired.nack()
        await expired.ack()
        await current.nack()
        assert (await consumer.next()).attempt == current.attempt + 1


@everywhere
async def test_a_bad_record_is_undecodable(queues: TableQueues | SqsQueues) -> None:
    """A body of another kind raises the error that says so, and that repeats nothing of it."""
    queue, attributes = queues.queue(), {"ApproximateReceiveCount": "1"}
    record = {"messageId": "m", "receiptHandle": "1.1", "attributes": attributes}
    for body in ("", "secret", "{", "null", "[]", '{"task_id": 1, "text": "secret"}', None):
        with pytest.raises(UndecodableMessageError) as raised:
            queue.decode_record({**record, "body": body})
        assert "secret" not in str(raised.value)


# -- on a table ------------------------------------------------------------------------------


@on_tables
async def test_a_record_of_a_table_expires(queues: TableQueues) -> None:
    """After the visibility the old handle does nothing, and its record deletes no message.

    A delivery that is extended, or given back with a delay, stays away for that time. Records look
    as those of SQS's event source, and end with the queue.
    """
    clock = ManualClock()
    queue = queues.queue(visibility_s=90, clock=clock)
    await queue.send(Note())
    first = present(await queue.receive())
    assert first["eventSource"] == "aws:sqs"
    assert first["eventSourceARN"].endswith(f":{queue.name}")
    assert await queue.receive() is None
    clock.advance(91)
    expired = queue.decode_record(first)
    (current,) = await queue.pull(1, 0)
    assert current.attempt == 2
    with pytest.raises(ConcurrencyError):
        await expired.extend(60)
    await expired.nack()
    await expired.ack()
    await queue.delete(first)
    await current.extend(120)
    clock.advance(119)
    assert await queue.pull(1, 0) == []
    await current.nack(delay_s=30)
    clock.advance(29)
    assert await queue.pull(1, 0) == []
    clock.advance(1)
    again = present(await queue.receive())
    assert queue.decode_record(again).attempt == 3
    await queue.delete(again)
    assert await queue.waiting() == []
    await queue.shutdown()
    assert [record async for record in records(queue)] == []


@on_tables
async def test_a_table_shows_what_is_left(queues: TableQueues) -> None:
    """Messages in the order of the sends, delivered or not; bodies that cannot be read."""
    clock = ManualClock()
    queue, began = queues.queue(clock=clock), clock.now_ms()
    notes = [Note(task_id="b"), Note(task_id="a"), Note(task_id="b", text="2")]
    for note in notes:
        await queue.send(note)
        clock.advance(1)
    assert await queue.depth() == (3, 0, began)
    assert await queue.receive() is not None
    assert await queue.depth() == (2, 1, began + 1000)
    assert [one.body for one in await queue.waiting()] == [n.model_dump_json() for n in notes]
    await queue.keep_undecodable("poison", reason="no JSON")
    others = aside(queue)
    (kept,) = await others.waiting()
    assert (kept.body, kept.reason, kept.sent_at) == ("poison", "no JSON", clock.now_ms())


@on_tables
async def test_a_message_that_is_received_too_often_is_a_dead_letter(queues: TableQueues) -> None:
    """After its receives it is moved in one step; its group goes on with the next message."""
    queue = queues.queue(dead_letters="dead", max_receives=3)
    for text in ("bad", "good"):
        await queue.send(Note(text=text))
    for expected in (("bad", 1), ("bad", 2), ("bad", 3), ("good", 1)):
        (handle,) = await queue.pull(1, PATIENCE_S)
        assert (handle.message.text, handle.attempt) == expected
        await handle.nack()
    (letter,) = await queues.queue(name="dead").pull(10, 0)
    assert (letter.message.text, letter.attempt) == ("bad", 1)


@on_tables
async def test_what_a_consumer_that_is_gone_has_received(queues: TableQueues) -> None:
    """It is received again at once where its messages are freed; what is visible stays so."""
    queue = queues.queue()
    for name in ("left", "waits"):
        await queue.send(Note(task_id=name))
    (left,) = await queue.pull(1, PATIENCE_S)
    await queue.free()
    found = {h.message.task_id: h.attempt for h in await queue.pull(10, PATIENCE_S)}
    assert found == {"left": 1, "waits": 1} | {left.message.task_id: 2}


async def test_a_group_that_others_write_to_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would change it gives up in the end."""
    queue = memory_backends(Settings()).operations
    assert isinstance(queue, TableQueue)
    await queue.send(Operation.to_run(params()))
    await queue.pull(1, PATIENCE_S)
    monkeypatch.setattr(table, "MOST_TRIES", 2)
    monkeypatch.setattr(queue._table, "did", mock.AsyncMock(return_value=False))
    with pytest.raises(UnavailableError, match="is written by others all the time"):
        await queue.free()


@on_tables
async def test_a_full_group_refuses_and_no_other_one_does(queues: TableQueues) -> None:
    """Beyond its bound a group takes nothing until its consumer works; other groups do."""
    queue, large = queues.queue(), {"x": "x" * 140_000}
    for text in ("1", "2"):
        await queue.send(Note(text=text, trace=large))
    with pytest.raises(FullGroupError, match=r"The group task of the queue Note\.fifo is full: 2"):
        await queue.send(Note(text="3", trace=large))
    await queue.send(Note(task_id="other", trace=large))
    (first, _) = await queue.pull(2, 0)
    await first.ack()
    await queue.send(Note(text="3", trace=large))
    assert len(await queue.waiting()) == 3


@on_tables
async def test_an_unread_body(queues: TableQueues, caplog: pytest.LogCaptureFixture) -> None:
    """A pulled body that cannot be read is logged and set aside; the next message is delivered."""
    queue = queues.operations(name="shared")
    await queues.queue(name="shared").send(Note())
    await queue.send(Operation.to_run(params()))
    (handle,) = [h for _ in range(2) for h in await queue.pull(1, PATIENCE_S)]
    assert handle.message.params == params()
    assert "undecodable" in actions(caplog)
    (kept,) = await aside(queue).waiting()
    assert kept.reason.startswith("The message is not a valid Operation")
    await handle.ack()
    assert await queue.waiting() == []


@on_tables
async def test_a_damaged_group(queues: TableQueues, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be read is set aside, whole, in parts if large; then its group goes on."""
    queue, large = queues.queue(), "{" + '"' * 2 * table._PART
    key = Key("QUEUE#Note.fifo", "GROUP#task")
    for text, damage in (("1", "{torn"), ("2", large)):
        await queue.send(Note(text=text))
        await queues.table.write(Update(key=key, values={"messages": damage, "version": "?"}))
        await queue.send(Note(task_id="other", text=text))
        (handle,) = await queue.pull(10, PATIENCE_S)
        assert handle.message == Note(task_id="other", text=text)
        await handle.ack()
    assert "damaged_group" in actions(caplog)
    kept = [kept.body for kept in await aside(queue).waiting()]
    kept.remove("{torn")  # in any order: all may be of one millisecond
    assert sorted(map(len, kept)) == [1, table._PART, table._PART]
    assert "".join(kept).count('"') == len(large) - 1
    await queue.send(Note(text="3"))
    (handle,) = await queue.pull(10, PATIENCE_S)
    assert handle.message == Note(text="3")


@on_tables
async def test_full_dead_letters_hold_up_no_other_group(
    queues: TableQueues, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that finds no room among the dead letters stays hidden; others are delivered."""
    queue = queues.queue(dead_letters="dead", max_receives=1)
    monkeypatch.setattr(table, "MOST_MESSAGES", 1)
    await queues.queue(name="dead").send(Note(task_id="a", text="before"))
    await queue.send(Note(task_id="a"))
    (handle,) = await queue.pull(1, PATIENCE_S)
    await queue.send(Note(task_id="b"))
    await handle.nack()
    (handle,) = await queue.pull(10, PATIENCE_S)
    assert handle.message.task_id == "b"
    assert "receive_failed" in actions(caplog)
    assert {kept.message_id.partition(".")[0] for kept in await queue.waiting()} == {"a", "b"}


@on_tables
async def test_a_table_that_is_away_ends_no_pull(
    queues: TableQueues, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed look is logged and brings nothing; the next one is tried after a pause."""
    queue, query, fails = queues.queue(clock=ManualClock()), queues.table.query, [True]

    def away(sought: Range) -> AsyncIterator[list[Item]]:
        if fails:
            fails.pop()
            raise UnavailableError
        return query(sought)

    await queue.send(Note())
    monkeypatch.setattr(queues.table, "query", away)
    assert await queue.pull(10, 0) == []
    assert actions(caplog).count("receive_failed") == 1
    (handle,) = await queue.pull(10, PATIENCE_S)
    assert handle.message == Note()


@on_tables
async def test_each_message_has_one_of_many_consumers(queues: TableQueues) -> None:
    """Consumers on threads of their own share a queue: each message is delivered once."""
    names = [f"{number:02}" for number in range(40)]
    for name in names:
        await queues.queue().send(Note(task_id=name))

    def consume() -> list[str]:
        return asyncio.run(drain())

    async def drain() -> list[str]:
        queue, got = queues.queue(), list[str]()
        while handles := await queue.pull(3, 0):
            for handle in handles:
                got.append(handle.message.task_id)
                await handle.ack()
        return got

    consumed = await asyncio.gather(*(asyncio.to_thread(consume) for _ in range(4)))
    assert sorted(name for got in consumed for name in got) == names


# -- SQS: pull mode --------------------------------------------------------------------------


@on_sqs
@pytest.mark.parametrize("is_canceled", [False, True], ids=["shut down", "canceled"])
async def test_an_ended_receiver_gives_back(queues: SqsQueues, *, is_canceled: bool) -> None:
    """A message that meets an abandoned long poll does not wait for the end of its lease."""
    left = queues.queue()
    begun = threading.Event()
    event = "before-send.sqs.ReceiveMessage"
    events = queues.client.meta.events
    events.register_first(event, lambda **_: begun.set(), unique_id="begun")
    waiting = asyncio.create_task(Consumer(left).ends())
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    events.unregister(event, unique_id="begun")
    if is_canceled:
        waiting.cancel()
        await asyncio.wait({waiting})
    else:
        await left.shutdown()
        assert await waiting
    # It receives when the note was given back: moto keeps a receive waiting that began before.
    given_back = threading.Event()
    events.register("after-call.sqs.ChangeMessageVisibility", lambda **_: given_back.set())
    queue = queues.queue()
    await queue.send(Note())
    assert await asyncio.to_thread(given_back.wait, PATIENCE_S)
    (handle,) = await queue.pull(1, PATIENCE_S)
    assert (handle.message, handle.attempt) == (Note(), 2)


@on_moto
async def test_a_delivery_is_kept_from_the_beginning_of_its_poll(queues: SqsQueues) -> None:
    """What is promised is surely so; what an event source has received says nothing."""
    clock = ManualClock()
    began_at = clock.now_ms()
    queue = queues.queue(clock=clock, visibility_s=59.5)
    await queue.send(Note())
    queues.client.meta.events.register(
        "before-send.sqs.ReceiveMessage", lambda **_: clock.advance(20)
    )
    (handle,) = await queue.pull(10, 20)
    assert handle.hidden_until == began_at + 60_000
    assert clock.now_ms() == began_at + 20_000
    await handle.nack()
    (message,) = queues.take()
    assert queue.decode_record(lambda_record(message)).hidden_until == 0


@on_sqs
@pytest.mark.parametrize(
    ("comes_from", "waited_s", "visibility_s", "extends"),
    [
        ("pull", 0, 60, False),
        ("pull", 20, 60, True),
        ("pull", 70, 60, True),
        ("pull", 0, 600, True),
        ("event", 0, 60, True),
    ],
    ids=["pulled", "waited", "waited longer", "wants longer", "event source"],
)
async def test_a_pulled_delivery_costs_three_requests(
    queues: SqsQueues, comes_from: str, waited_s: int, visibility_s: int, *, extends: bool
) -> None:
    """Send, receive, delete; it is extended first if too short, or received by an event source."""
    asked: list[str] = []
    queues.client.meta.events.register(
        "before-send.sqs.*", lambda event_name, **_: asked.append(event_name.rpartition(".")[2])
    )
    queue = queues.operations(visibility_s=60)
    await queue.send(Operation.to_run(params()))
    if comes_from == "pull":
        (handle,) = await queue.pull(10, PATIENCE_S)
        handle.hidden_until -= 1000 * waited_s  # as if it had waited in the process
    else:
        (message,) = queues.take()
        handle = queue.decode_record(lambda_record(message), removes=True)
    storage = memory_backends(Settings()).storage
    lease = lease_of(storage, opened(), handle=handle, visibility_s=visibility_s)
    async with lease.keeping_delivery():
        assert not lease.is_lost
    await handle.ack()
    first = ["ChangeMessageVisibility"] * extends
    assert asked == ["SendMessage", "ReceiveMessage", *first, "DeleteMessage"]


@on_sqs
async def test_an_undecodable_one(queues: SqsQueues, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged and moved, or left to the redrive policy; in a FIFO queue each has a group."""
    for body, place in (("{not json", queues.undecodable), ('{"task_id": 1}', None)):
        queues.send(body)
        queue = queues.queue(undecodable_queue=place)
        await queue.check()
        await queue.send(Note(text=body))
        async with consuming(queue) as consumer:
            handle = await consumer.next()
            assert handle.message == Note(text=body)
            await handle.ack()
    assert not await queue.keep_undecodable("poison", reason="no JSON")
    (moved,) = queues.take(queues.undecodable)
    assert moved["Body"] == "{not json"
    assert moved["MessageAttributes"]["reason"]["StringValue"].startswith("The message is no")
    assert queues.depth() == (0, 1)
    assert "undecodable" in actions(caplog)
    queue = queues.queue(undecodable_queue=queues.dead)
    for message_id in ("1", "2", None):
        assert await queue.keep_undecodable("poison", reason="no JSON", message_id=message_id)
    attributes = [kept["Attributes"] for kept in queues.take(queues.dead)]
    assert len({kept["MessageGroupId"] for kept in attributes}) == 3
    assert all(kept["MessageGroupId"] == kept["MessageDeduplicationId"] for kept in attributes)


@on_moto
async def test_network_errors_do_not_end_receiving(
    queues: SqsQueues, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive that fails, or gets no thread, is logged, and repeated after longer and longer."""
    clock = ManualClock()
    fail(queues.client, "ReceiveMessage", EndpointConnectionError(endpoint_url="x"), times=3)
    queue = queues.queue(clock=clock)
    await queue.send(Note())
    with monkeypatch.context() as without:
        none_left = mock.Mock(side_effect=RuntimeError("can't start new thread"))
        without.setattr(threading.Thread, "start", none_left)
        assert await queue.pull(10, 0) == []
    async with consuming(queue) as consumer:
        assert (await consumer.next()).message == Note()
    assert actions(caplog).count("receive_failed") == 4
    assert clock.monotonic() > 0


@on_moto
async def test_a_pull_without_long_polls_waits_by_the_clock(queues: SqsQueues) -> None:
    """A pull without long polls returns after its wait by the clock."""
    clock, asked = ManualClock(), recorded(queues.client, "ReceiveMessage")
    assert await queues.queue(clock=clock, has_long_polls=False).pull(10, 2) == []
    assert clock.monotonic() == 2
    assert {call["WaitTimeSeconds"] for call in asked} == {0}


@on_sqs
async def test_receiving_ends_where_there_is_no_queue(queues: SqsQueues) -> None:
    """A queue that was deleted is a matter of the deployment, not of the network."""
    queue = queues.queue()
    queues.client.delete_queue(QueueUrl=queues.main)
    with pytest.raises(ConfigurationError, match="does not exist"):
        await Consumer(queue).next()


# -- SQS: sending ----------------------------------------------------------------------------


@on_moto
async def test_a_queue_is_known_by_its_name(queues: SqsQueues) -> None:
    """A name is looked up once, at the first use."""
    lookups = recorded(queues.client, "GetQueueUrl")
    queue = SqsFifoQueue(Note, queues.main.rsplit("/", 1)[-1], client=queues.client)
    assert lookups == []
    await queue.send(Note())
    await queue.send(Note(task_id="other"))
    assert len(lookups) == 1
    assert queues.depth()[0] == 2


@on_sqs
@pytest.mark.parametrize("missing", ["main", "undecodable"])
async def test_a_missing_queue_is_named(queues: SqsQueues, missing: str) -> None:
    """`check` and every use say in one sentence which queue is missing."""
    names = {"main": queues.main, "undecodable": queues.undecodable, missing: "nowhere.fifo"}
    client, aside = queues.client, names["undecodable"]
    queue = SqsFifoQueue(Note, names["main"], undecodable_queue=aside, client=client)
    with pytest.raises(ConfigurationError, match=r"^The queue nowhere\.fifo does not exist\.$"):
        await queue.check()
    use = queue.send(Note()) if missing == "main" else queue.keep_undecodable("", reason="")
    with pytest.raises(ConfigurationError, match=r"nowhere\.fifo"):
        await use


SENDING = ClientError({"Error": {"Code": "RequestThrottled"}}, "SendMessage")
DENIED = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "SendMessage")
AWAY = EndpointConnectionError(endpoint_url="x")


@on_moto
@pytest.mark.parametrize("error", [SENDING, AWAY, DENIED], ids=["throttled", "away", "denied"])
async def test_a_send_gives_up_in_the_end(queues: SqsQueues, error: Exception) -> None:
    """With UnavailableError after a bounded time; without permission at once, naming the error."""
    clock = ManualClock()
    sends, began = fail(queues.client, "SendMessage", error, times=1000), clock.monotonic()
    with pytest.raises((UnavailableError, ConfigurationError)) as raised:
        await queues.queue(clock=clock).send(Note())
    lasted = clock.monotonic() - began
    if error is DENIED:
        assert isinstance(raised.value, ConfigurationError)
        assert "AccessDenied" in str(raised.value)
        assert (len(sends), lasted) == (1, 0)
    else:
        assert isinstance(raised.value, UnavailableError)
        assert len(sends) >= 2
        assert aws.BUDGET_S <= lasted <= aws.BUDGET_S + 2


# -- SQS: push mode --------------------------------------------------------------------------


@on_sqs
async def test_a_record_is_given_back(queues: SqsQueues, caplog: pytest.LogCaptureFixture) -> None:
    """It gives message and attempt, and is retried on time; if it has expired a line says so."""
    queue = queues.queue()
    await queue.send(Note())
    (message,) = queues.take()
    record = lambda_record(message)
    handle = queue.decode_record(record)
    assert (handle.message, handle.attempt) == (Note(), 1)
    await handle.ack()  # Lambda deletes what is not reported as failed
    assert queues.depth() == (0, 1)
    await handle.nack()
    assert queues.depth() == (1, 0)
    await queue.decode_record({**record, "receiptHandle": "nonsense"}).nack(delay_s=5)
    (line,) = [vars(r) for r in caplog.records if hasattr(r, "action")]
    told = (line["action"], line["task_id"], line["message_id"])
    assert told == ("nack_expired", "task", message["MessageId"])


@on_moto
async def test_a_delay_fits_what_is_left_of_twelve_hours(queues: SqsQueues) -> None:
    """Whole seconds, bounded in all; `extend` gives what is left, then the delivery has expired."""
    clock = ManualClock()
    queue = queues.queue(clock=clock)
    await queue.send(Note())
    record = lambda_record(queues.take()[0])
    given = recorded(queues.client, "ChangeMessageVisibility")
    for elapsed_s, asked_s, given_s in (
        (0, 0, 0),
        (0, -5, 0),
        (0, 1.2, 2),
        (0, 100_000, _LONGEST_LEASE_S),
        (40_000, 10_000, _LONGEST_LEASE_S - 40_000),
        (50_000, 10, 0),
    ):
        handle = queue.decode_record(record)
        clock.advance(elapsed_s)
        await handle.nack(delay_s=asked_s)
        assert given.pop()["VisibilityTimeout"] == given_s
    handle = queue.decode_record(record)
    clock.advance(_LONGEST_LEASE_S - 20)
    await handle.extend(60)
    assert given.pop()["VisibilityTimeout"] == 20
    clock.advance(20)
    with pytest.raises(ConcurrencyError):
        await handle.extend(60)
    assert given == []


def recorded(client: Any, operation: str) -> list[dict[str, Any]]:
    """The parameters of the calls of an operation, from now on."""
    calls: list[dict[str, Any]] = []
    client.meta.events.register(
        f"provide-client-params.sqs.{operation}", lambda params, **_: calls.append(params)
    )
    return calls


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The actions logged so far."""
    return [record.action for record in caplog.records if hasattr(record, "action")]


def fail(client: Any, operation: str, error: Exception, *, times: int) -> list[int]:
    """Let the next calls of an operation fail before they are sent; the list counts them."""
    calls: list[int] = []

    def refuse(**_: Any) -> None:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error

    client.meta.events.register(f"before-call.sqs.{operation}", refuse)
    return calls


# -- a message in the steps of other writes ---------------------------------------------------


KEY = Key("partition", "HEAD")
OWN = Put(item=KEY._asdict(), when=[NEW])
"""The write of a sender, which succeeds once."""


class Room:
    """A place of this process, which notes what begins in it."""

    def __init__(self) -> None:
        self.begun = list[Handle[Note]]()
        self.left = 0

    def take(self) -> bool:
        return True

    def begin(self, handle: Handle[Note]) -> None:
        self.begun.append(handle)

    def put(self) -> None:
        self.left += 1


class Bench:
    """A queue, and a place that a sender of this process has reserved."""

    def __init__(self, queues: TableQueues) -> None:
        self.queues = queues
        self.queue: TableQueue[Note] = queues.queue()
        self.room = Room()
        self.queue.places = self.room

    def reserved(self) -> Reservation:
        """The place, reserved."""
        reserved = self.queue.reserve(self.queues.table)
        assert reserved is not None
        return reserved

    async def stored(self, *changes: Any) -> None:
        """The changes are stored with a write of the sender's."""
        await change(self.queues.table, SystemClock(), *changes, also=[OWN])

    async def has(self, waiting: int, hidden: int) -> bool:
        """Whether so many messages are there."""
        return (await self.queue.depth())[:2] == (waiting, hidden)


@on_tables
async def test_a_message_is_received_with_its_senders_write(queues: TableQueues) -> None:
    """It begins in the place once it is delivered; its handle acknowledges it like any other's."""
    bench = Bench(queues)
    reserved = bench.reserved()
    await bench.stored(await reserved.sending(Note(text="1"), is_first=True))
    assert await bench.has(0, 1)
    assert not bench.room.begun
    assert reserved.deliver()
    reserved.release()
    (handle,) = bench.room.begun
    assert (handle.message.text, handle.attempt, bench.room.left) == ("1", 1, 0)
    # From its receive on: so it is not renewed at once.
    assert handle.hidden_until == handle.sent_at + 1000 * bench.queue._visibility_s
    await bench.queue.send(Note(text="2"))
    await handle.extend(60)
    await handle.ack()
    (second,) = await bench.queue.pull(1, PATIENCE_S)
    assert second.message.text == "2"


@on_tables
async def test_what_its_sender_does_not_store_is_not_delivered(queues: TableQueues) -> None:
    """The place is left to others; none is reserved without a free one, or elsewhere."""
    bench = Bench(queues)
    await bench.stored()
    reserved, elsewhere = bench.reserved(), cast("Table", object())
    with pytest.raises(ConditionFailedError):
        await bench.stored(await reserved.sending(Note(text="lost"), is_first=True))
    assert not reserved.deliver()
    reserved.release()
    assert (bench.room.begun, bench.room.left) == ([], 1)
    assert bench.queue.reserve(elsewhere) is None
    assert queues.queue().reserve(queues.table) is None
    reserved = bench.reserved()
    await bench.queue.shutdown()
    await change(queues.table, SystemClock(), await reserved.sending(Note(), is_first=False))
    assert reserved.deliver()  # what is received is begun
    assert [handle.message for handle in bench.room.begun] == [Note()]
    assert bench.queue.reserve(queues.table) is None


@on_tables
async def test_no_message_overtakes_others_of_its_group(queues: TableQueues) -> None:
    """It changes nothing where another message waits, or was sent under the same id."""
    bench = Bench(queues)
    await bench.queue.send(Note(text="1"))
    (first,) = await bench.queue.pull(1, PATIENCE_S)
    reserved = bench.reserved()
    await bench.stored(await reserved.sending(Note(text="2"), is_first=True))
    assert not reserved.deliver()
    await first.ack()
    repeated = await reserved.sending(Note(text="1"), is_first=False)
    await change(queues.table, SystemClock(), repeated)
    assert not reserved.deliver()
    reserved.release()
    assert await bench.has(0, 0)
    assert not bench.room.begun


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

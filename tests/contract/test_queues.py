"""The contract of FIFO queues over tables, moto and fauxqs; then what only one kind can show.

Waits are for messages to come, never for time to pass.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from a2a_serverless import aws
from a2a_serverless.errors import (
    ConcurrencyError,
    ConfigurationError,
    FullGroupError,
    UnavailableError,
    UndecodableMessageError,
)
from a2a_serverless.queues import table
from a2a_serverless.queues.fifo import FifoQueue, Handle
from a2a_serverless.queues.sqs import _LONGEST_LEASE_S, SqsFifoQueue
from a2a_serverless.queues.table import _DEDUPLICATION_S
from a2a_serverless.storage.table import Item, Key, Range, Update
from a2a_serverless.tasks.head import Operation
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


async def extended(consumer: Consumer) -> Handle[Note]:
    """Return the next delivery that can be held for a minute.

    Where the machine was too slow for the visibility, that is a later one.
    """
    while True:
        handle = await consumer.next()
        try:
            await handle.extend(60)
        except ConcurrencyError:
            continue
        return handle


@asynccontextmanager
async def consuming(queue: FifoQueue[Note]) -> AsyncIterator[Consumer]:
    """A consumer that has ended when the test has."""
    consumer = Consumer(queue)
    yield consumer
    await queue.shutdown()
    assert await consumer.ends()


# -- the contract ----------------------------------------------------------------------------


@everywhere
async def test_a_message_arrives_as_it_was_sent(queues: TableQueues | SqsQueues) -> None:
    """The receiver gets what was sent, as attempt 1; the queue passes its check."""
    queue = queues.queue()
    await queue.check()
    async with consuming(queue) as consumer:
        await queue.send(Note(text="é", trace=TRACE))
        handle = await consumer.next()
        assert handle.message == Note(text="é", trace=TRACE)
        assert handle.attempt == 1


@everywhere
async def test_several_messages_are_sent_at_once(queues: TableQueues | SqsQueues) -> None:
    """Each arrives once, and one that was sent before counts once."""
    queue = queues.queue()
    notes = [Note(task_id=str(number), text=str(number)) for number in range(10)]
    await queue.send(notes[3])
    assert await queue.send_all(notes) == [None] * 10
    async with consuming(queue) as consumer:
        handles = [await consumer.next() for _ in notes]
    assert sorted(handle.message.text for handle in handles) == [note.text for note in notes]


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


@on_sqs
async def test_a_delayed_message_comes_again(queues: SqsQueues) -> None:
    """A delayed message comes again after its delay, before the messages behind it."""
    queue = queues.queue()
    async with consuming(queue) as consumer:
        await queue.send(Note(text="1"))
        await queue.send(Note(text="2"))
        handle = await consumer.next()
        began = time.time()
        await handle.nack(delay_s=1)
        again = await consumer.next()
        assert (again.message.text, again.attempt) == ("1", 2)
        assert time.time() - began >= 0.99


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
async def test_a_repeated_send_counts_once(queues: TableQueues | SqsQueues) -> None:
    """A repetition is dropped, also after the first was done, whatever else the message says."""
    queue = queues.queue()
    async with consuming(queue) as consumer:
        await queue.send(Note(text="1"))
        await queue.send(Note(text="1", trace=TRACE))
        await (await consumer.next()).ack()
        await queue.send(Note(text="1"))
        await queue.send(Note(text="2"))
        assert (await consumer.next()).message.text == "2"


@on_sqs
async def test_an_extended_delivery_stays_away(queues: SqsQueues) -> None:
    """`extend` keeps a message beyond its first visibility; one without it comes again."""
    queue = queues.queue(visibility_s=1)
    async with consuming(queue) as consumer:
        await queue.send(Note(task_id="kept"))
        await extended(consumer)
        await queue.send(Note(task_id="lost"))
        assert (await consumer.next()).message.task_id == "lost"
        again = await consumer.next()
        assert (again.message.task_id, again.attempt) == ("lost", 2)


@everywhere
async def test_a_delivery_says_how_long_its_receive_keeps_it(
    queues: TableQueues | SqsQueues,
) -> None:
    """A queue on a table knows when it comes again, and SQS does not: its answer may be late."""
    queue = queues.queue(visibility_s=60)
    async with consuming(queue) as consumer:
        await queue.send(Note())
        delivery = await consumer.next()
        kept_s = delivery.hidden_until / 1000 - time.time()
        assert 50 < kept_s <= 60 if isinstance(queues, TableQueues) else delivery.hidden_until == 0
        await delivery.nack(delay_s=60)
        assert delivery.hidden_until == 0


@pytest.mark.parametrize("queues", [FAUXQS], indirect=True)
async def test_an_expired_delivery_has_no_say(queues: SqsQueues) -> None:
    """When another has the message, `extend` raises, and `ack` and `nack` change nothing."""
    queue = queues.queue(visibility_s=1)
    async with consuming(queue) as consumer:
        await queue.send(Note())
        expired, current = await consumer.next(), await extended(consumer)
        with pytest.raises(ConcurrencyError):
            await expired.extend(60)
        await expired.nack()
        await expired.ack()
        await current.nack()
        assert (await consumer.next()).attempt == current.attempt + 1


@everywhere
async def test_shutdown_ends_a_waiting_receiver(queues: TableQueues | SqsQueues) -> None:
    """A receiver that waits for messages ends at once, not with its long poll."""
    queue = queues.queue()
    waiting = asyncio.create_task(Consumer(queue).ends())
    await asyncio.sleep(0)
    await queue.shutdown()
    assert await waiting
    assert await Consumer(queue).ends()


@everywhere
async def test_a_bad_record_is_undecodable(queues: TableQueues | SqsQueues) -> None:
    """A body of another kind raises the error that says so, and that repeats nothing of it."""
    queue = queues.queue()
    for body in ("", "secret", "{", "null", "[]", '{"task_id": 1, "text": "secret"}', None):
        with pytest.raises(UndecodableMessageError) as raised:
            queue.decode_record(record_of(body))
        assert "secret" not in str(raised.value)


# -- on a table ------------------------------------------------------------------------------


@on_tables
async def test_a_table_speaks_in_records(queues: TableQueues) -> None:
    """A queue on a table hands out records like SQS's event source, until it is shut down."""
    queue = queues.queue()
    deliveries = records(queue)
    waiting = asyncio.ensure_future(anext(deliveries))
    await asyncio.sleep(0)
    await queue.send(Note(text="1"))
    record = await waiting
    assert record["eventSource"] == "aws:sqs"
    assert record["eventSourceARN"].endswith(f":{queue.name}")
    assert queue.decode_record(record).message == Note(text="1")
    await queue.shutdown()
    assert [record async for record in deliveries] == []


@on_tables
async def test_a_record_of_a_table_expires(queues: TableQueues) -> None:
    """After the visibility the old handle does nothing, and its record deletes no message.

    A delivery that is extended, or given back with a delay, stays away for that time.
    """
    clock = ManualClock()
    queue = queues.queue(visibility_s=90, clock=clock)
    await queue.send(Note())
    first = present(await queue.receive())
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
async def test_a_deduplication_id_counts_for_five_minutes(queues: TableQueues) -> None:
    """Within five minutes a repetition is dropped though its message is gone; later it is sent."""
    clock = ManualClock()
    queue = queues.queue(clock=clock)
    await queue.send(Note())
    await (await queue.pull(1, 0))[0].ack()
    clock.advance(_DEDUPLICATION_S - 1)
    await queue.send(Note())
    assert await queue.waiting() == []
    clock.advance(2)
    await queue.send(Note())
    assert len(await queue.waiting()) == 1


@on_tables
async def test_a_message_that_is_received_too_often_is_a_dead_letter(queues: TableQueues) -> None:
    """After its receives it is moved in one step; its group goes on with the next message."""
    queue = queues.queue(dead_letters="dead", max_receives=3)
    await queue.send(Note(text="bad"))
    await queue.send(Note(text="good"))
    for _ in range(3):
        (handle,) = await queue.pull(1, PATIENCE_S)
        assert handle.message.text == "bad"
        await handle.nack()
    (handle,) = await queue.pull(1, PATIENCE_S)
    assert (handle.message.text, handle.attempt) == ("good", 1)
    dead = queues.queue(name="dead")
    (letter,) = await dead.pull(10, 0)
    assert (letter.message.text, letter.attempt) == ("bad", 1)


@on_tables
async def test_a_full_group_refuses_and_no_other_one_does(queues: TableQueues) -> None:
    """Beyond its bound a group takes nothing until its consumer works; other groups do."""
    queue = queues.queue()
    large = {"x": "x" * 140_000}
    await queue.send(Note(text="1", trace=large))
    await queue.send(Note(text="2", trace=large))
    with pytest.raises(FullGroupError, match=r"The group task of the queue Note\.fifo is full: 2"):
        await queue.send(Note(text="3", trace=large))
    await queue.send(Note(task_id="other", trace=large))
    (first, _) = await queue.pull(2, 0)
    await first.ack()
    await queue.send(Note(text="3", trace=large))
    assert len(await queue.waiting()) == 3


@on_tables
async def test_a_body_of_another_release_is_set_aside(
    queues: TableQueues, caplog: pytest.LogCaptureFixture
) -> None:
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
async def test_a_damaged_group_stops_no_other_one(
    queues: TableQueues, caplog: pytest.LogCaptureFixture
) -> None:
    """What an item has that cannot be read is set aside; then its group takes messages again."""
    queue = queues.queue()
    await queue.send(Note(text="1"))
    key = Key("QUEUE#Note.fifo", "GROUP#task")
    await queues.table.write(Update(key=key, values={"messages": "{torn", "version": "?"}))
    await queue.send(Note(task_id="other"))
    (handle,) = await queue.pull(10, PATIENCE_S)
    assert handle.message == Note(task_id="other")
    assert "damaged_group" in actions(caplog)
    assert [kept.body for kept in await aside(queue).waiting()] == ["{torn"]
    await queue.send(Note(text="2"))
    (handle,) = await queue.pull(10, PATIENCE_S)
    assert handle.message == Note(text="2")


@on_tables
async def test_a_large_damaged_group_is_set_aside_in_parts(queues: TableQueues) -> None:
    """Text that is too large for one message, escaped, is kept whole in several ones."""
    queue, text = queues.queue(), "{" + '"' * 2 * table._PART
    await queue.send(Note(text="1"))
    key = Key("QUEUE#Note.fifo", "GROUP#task")
    await queues.table.write(Update(key=key, values={"messages": text, "version": "?"}))
    await queue.send(Note(text="2"))
    kept = [kept.body for kept in await aside(queue).waiting()]
    assert sorted(map(len, kept)) == [1, table._PART, table._PART]
    assert "".join(kept).count('"') == len(text) - 1


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
async def test_a_shut_down_receiver_gives_back_what_it_still_gets(queues: SqsQueues) -> None:
    """A message that meets an abandoned long poll does not wait for the end of its lease."""
    left = queues.queue()
    waiting = await polling(queues, left)
    await left.shutdown()
    assert await waiting
    await meets_the_abandoned_poll(queues)


@on_sqs
async def test_a_cancelled_receiver_gives_back_what_it_still_gets(queues: SqsQueues) -> None:
    """A message that a cancelled receiver still gets is given back, as after a shutdown."""
    waiting = await polling(queues, queues.queue())
    waiting.cancel()
    await asyncio.wait({waiting})
    await meets_the_abandoned_poll(queues)


@on_sqs
async def test_an_undecodable_message_is_moved(
    queues: SqsQueues, caplog: pytest.LogCaptureFixture
) -> None:
    """An undecodable message is logged and moved to its queue; the next message is received."""
    queues.send("{not json")
    queue = queues.queue()
    await queue.send(Note())
    async with consuming(queue) as consumer:
        assert (await consumer.next()).message == Note()
    (moved,) = queues.take(queues.undecodable)
    assert moved["Body"] == "{not json"
    assert moved["MessageAttributes"]["reason"]["StringValue"].startswith("The message is no")
    assert queues.depth() == (0, 1)
    assert "undecodable" in actions(caplog)


@on_sqs
async def test_an_undecodable_message_is_left_to_the_redrive_policy(queues: SqsQueues) -> None:
    """Without an undecodable queue an undecodable message stays, and the consumer goes on."""
    queues.send('{"task_id": 1}')
    queue = queues.queue(undecodable_queue=None)
    await queue.send(Note())
    async with consuming(queue) as consumer:
        assert (await consumer.next()).message == Note()
    assert queues.depth() == (0, 2)


@on_moto
async def test_network_errors_do_not_end_receiving(
    queues: SqsQueues, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed receive is logged and waits longer each time, and the next one is tried."""
    clock = ManualClock()
    fail(queues.client, "ReceiveMessage", EndpointConnectionError(endpoint_url="x"), times=3)
    queue = queues.queue(clock=clock)
    await queue.send(Note())
    async with consuming(queue) as consumer:
        assert (await consumer.next()).message == Note()
    assert actions(caplog).count("receive_failed") == 3
    assert clock.monotonic() > 0


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
    queue = SqsFifoQueue(
        Note, names["main"], undecodable_queue=names["undecodable"], client=queues.client
    )
    with pytest.raises(ConfigurationError, match=r"^The queue nowhere\.fifo does not exist\.$"):
        await queue.check()
    use = queue.send(Note()) if missing == "main" else queue.keep_undecodable("", reason="")
    with pytest.raises(ConfigurationError, match=r"nowhere\.fifo"):
        await use


@on_moto
@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "RequestThrottled"}}, "SendMessage"),
        EndpointConnectionError(endpoint_url="x"),
    ],
    ids=["throttled", "unreachable"],
)
async def test_a_send_gives_up_in_the_end(queues: SqsQueues, error: Exception) -> None:
    """After a bounded time the caller gets UnavailableError."""
    clock = ManualClock()
    sends, began = fail(queues.client, "SendMessage", error, times=1000), clock.monotonic()
    with pytest.raises(UnavailableError):
        await queues.queue(clock=clock).send(Note())
    assert len(sends) >= 2
    assert aws.BUDGET_S <= clock.monotonic() - began <= aws.BUDGET_S + 2


@on_moto
async def test_a_refused_send_is_not_repeated(queues: SqsQueues) -> None:
    """A missing permission is for the deployment to mend: one attempt, and its name."""
    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "SendMessage")
    sends = fail(queues.client, "SendMessage", denied, times=1000)
    with pytest.raises(ConfigurationError, match="AccessDenied"):
        await queues.queue().send(Note())
    assert len(sends) == 1


# -- SQS: push mode --------------------------------------------------------------------------


@on_sqs
async def test_a_record_is_a_delivery(queues: SqsQueues) -> None:
    """A record of a Lambda event gives the message and the attempt."""
    queue = queues.queue()
    await queue.send(Note())
    (message,) = queues.take()
    handle = queue.decode_record(lambda_record(message))
    assert handle.message == Note()
    assert handle.attempt == 1


@on_sqs
async def test_a_record_is_given_back_by_its_visibility(queues: SqsQueues) -> None:
    """In push mode `nack` sets the visibility, so that a failure is retried on time."""
    queue = queues.queue()
    await queue.send(Note())
    (message,) = queues.take()
    handle = queue.decode_record(lambda_record(message))
    await handle.ack()  # Lambda deletes what is not reported as failed
    assert queues.depth() == (0, 1)
    await handle.nack()
    assert queues.depth() == (1, 0)


@on_moto
async def test_giving_back_an_expired_record_is_logged(
    queues: SqsQueues, caplog: pytest.LogCaptureFixture
) -> None:
    """Giving back an expired record is logged and raises nothing."""
    queue = queues.queue()
    await queue.send(Note())
    (message,) = queues.take()
    stale = {**lambda_record(message), "receiptHandle": "nonsense"}
    await queue.decode_record(stale).nack(delay_s=5)
    (line,) = [vars(r) for r in caplog.records if hasattr(r, "action")]
    assert (line["action"], line["task_id"], line["message_id"]) == (
        "nack_expired",
        "task",
        message["MessageId"],
    )


@on_sqs
async def test_undecodable_bodies_keep_a_fifo_queue_of_their_own_groups(queues: SqsQueues) -> None:
    """In a FIFO queue each undecodable body has a group of its own, so that none waits."""
    queue = queues.queue(undecodable_queue=queues.dead)
    for message_id in ("1", "2", None):
        assert await queue.keep_undecodable("poison", reason="no JSON", message_id=message_id)
    attributes = [kept["Attributes"] for kept in queues.take(queues.dead)]
    assert len({kept["MessageGroupId"] for kept in attributes}) == 3
    assert all(kept["MessageGroupId"] == kept["MessageDeduplicationId"] for kept in attributes)


@on_moto
async def test_without_a_place_for_it_a_body_is_not_kept(queues: SqsQueues) -> None:
    """The caller leaves the message where it is."""
    queue = queues.queue(undecodable_queue=None)
    await queue.check()
    assert not await queue.keep_undecodable("poison", reason="no JSON")


@on_moto
@pytest.mark.parametrize(
    ("elapsed_s", "asked_s", "given_s"),
    [
        (0, 0, 0),
        (0, -5, 0),
        (0, 1.2, 2),
        (0, 100_000, _LONGEST_LEASE_S),
        (40_000, 10_000, _LONGEST_LEASE_S - 40_000),
        (50_000, 10, 0),
    ],
)
async def test_a_delay_fits_what_is_left_of_twelve_hours(
    queues: SqsQueues, elapsed_s: float, asked_s: float, given_s: int
) -> None:
    """Visibility is whole seconds, and all of it together is bounded from the receive on."""
    clock = ManualClock()
    queue = queues.queue(clock=clock)
    await queue.send(Note())
    (message,) = queues.take()
    changes = recorded(queues.client, "ChangeMessageVisibility")
    handle = queue.decode_record(lambda_record(message))
    clock.advance(elapsed_s)
    await handle.nack(delay_s=asked_s)
    assert [change["VisibilityTimeout"] for change in changes] == [given_s]


@on_moto
async def test_a_lease_ends_after_twelve_hours(queues: SqsQueues) -> None:
    """`extend` gives what is left; then the delivery counts as expired."""
    clock = ManualClock()
    queue = queues.queue(clock=clock)
    await queue.send(Note())
    (message,) = queues.take()
    handle = queue.decode_record(lambda_record(message))
    changes = recorded(queues.client, "ChangeMessageVisibility")
    clock.advance(_LONGEST_LEASE_S - 20)
    await handle.extend(60)
    assert changes[0]["VisibilityTimeout"] == 20
    clock.advance(20)
    with pytest.raises(ConcurrencyError):
        await handle.extend(60)
    assert len(changes) == 1


def record_of(body: str | None) -> Mapping[str, Any]:
    """A record of a Lambda event."""
    attributes = {"ApproximateReceiveCount": "1"}
    return {"messageId": "m", "receiptHandle": "1.1", "body": body, "attributes": attributes}


async def polling(queues: SqsQueues, queue: FifoQueue[Note]) -> asyncio.Task[bool]:
    """A receiver whose long poll is under way."""
    begun = threading.Event()
    event = "before-send.sqs.ReceiveMessage"
    queues.client.meta.events.register_first(event, lambda **_: begun.set(), unique_id="begun")
    waiting = asyncio.create_task(Consumer(queue).ends())
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    queues.client.meta.events.unregister(event, unique_id="begun")
    return waiting


async def meets_the_abandoned_poll(queues: SqsQueues) -> None:
    """Send a note to a poll that has no receiver, and see the next receiver get it.

    It receives when the note was given back: moto keeps a receive waiting that began before.
    """
    given_back = threading.Event()
    queues.client.meta.events.register(
        "after-call.sqs.ChangeMessageVisibility", lambda **_: given_back.set()
    )
    queue = queues.queue()
    await queue.send(Note())
    assert await asyncio.to_thread(given_back.wait, PATIENCE_S)
    async with consuming(queue) as consumer:
        handle = await consumer.next()
        assert (handle.message, handle.attempt) == (Note(), 2)


def actions(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The actions logged so far."""
    return [record.action for record in caplog.records if hasattr(record, "action")]


def recorded(client: Any, operation: str) -> list[dict[str, Any]]:
    """The parameters of the calls of an operation, from now on."""
    calls: list[dict[str, Any]] = []
    client.meta.events.register(
        f"provide-client-params.sqs.{operation}", lambda params, **_: calls.append(params)
    )
    return calls


def fail(client: Any, operation: str, error: Exception, *, times: int) -> list[int]:
    """Let the next calls of an operation fail before they are sent; the list counts them."""
    calls: list[int] = []

    def refuse(**_: Any) -> None:
        calls.append(len(calls))
        if len(calls) <= times:
            raise error

    client.meta.events.register(f"before-call.sqs.{operation}", refuse)
    return calls

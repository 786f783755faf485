"""The Broker contract over memory, moto and fauxqs; then what only SQS can show.

Waits are for messages to come, never for time to pass.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from a2a_serverless import aws
from a2a_serverless.broker.base import Broker, OperationHandle
from a2a_serverless.broker.sqs import LONGEST_LEASE_S, SqsFifoBroker
from a2a_serverless.errors import (
    ConcurrencyError,
    ConfigurationError,
    UnavailableError,
    UndecodableOperationError,
)
from a2a_serverless.local.emulators import Emulator
from tests.clocks import ManualClock
from tests.contract.brokers import (
    MemoryQueues,
    SqsQueues,
    fauxqs_queues,
    lambda_record,
    moto_queues,
    params,
)

PATIENCE_S = 15
"""Below the 20 s of a long poll and the 60 s of a lease: what waits for these fails."""

FAUXQS = pytest.param("fauxqs", marks=pytest.mark.emulators)


@pytest.fixture
def queues(request: pytest.FixtureRequest) -> Iterator[MemoryQueues | SqsQueues]:
    """Fresh queues of the backend that the test is run over."""
    match request.param:
        case "memory":
            yield MemoryQueues()
        case "moto":
            with moto_queues() as moto:
                yield moto
        case _:
            emulator: Emulator = request.getfixturevalue("fauxqs")
            with fauxqs_queues(emulator) as fauxqs:
                yield fauxqs


everywhere = pytest.mark.parametrize("queues", ["memory", "moto", FAUXQS], indirect=True)
on_sqs = pytest.mark.parametrize("queues", ["moto", FAUXQS], indirect=True)
with_deduplication = pytest.mark.parametrize("queues", ["memory", FAUXQS], indirect=True)
with_expiring_receipts = with_deduplication


class Consumer:
    """Takes operations one by one, with a bound on the patience."""

    def __init__(self, broker: Broker) -> None:
        self._operations = broker.receive_task_operations()

    async def next(self) -> OperationHandle:
        async with asyncio.timeout(PATIENCE_S):
            return await anext(self._operations)

    async def ends(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            async for _ in self._operations:
                return False
        return True


async def extended(consumer: Consumer) -> OperationHandle:
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
async def consuming(broker: Broker) -> AsyncIterator[Consumer]:
    """A consumer that has ended when the test has."""
    consumer = Consumer(broker)
    yield consumer
    await broker.shutdown()
    assert await consumer.ends()


# -- the contract ----------------------------------------------------------------------------


@everywhere
async def test_an_operation_arrives_as_it_was_sent(queues: MemoryQueues | SqsQueues) -> None:
    """The receiver gets kind, ids, marker and trace context; the first delivery is attempt 1."""
    broker = queues.broker()
    async with consuming(broker) as consumer:
        await broker.run_task(params(), is_new_task=True, request_context={"traceparent": "00-1"})
        handle = await consumer.next()
        assert handle.operation.operation == "run"
        assert handle.operation.params == params()
        assert handle.operation.is_new_task
        assert handle.operation.request_context == {"traceparent": "00-1"}
        assert handle.attempt == 1


@everywhere
async def test_a_given_back_operation_comes_again(queues: MemoryQueues | SqsQueues) -> None:
    """`nack()` redelivers at once, as the next attempt."""
    broker = queues.broker()
    async with consuming(broker) as consumer:
        await broker.run_task(params())
        for attempt in (1, 2, 3):
            handle = await consumer.next()
            assert handle.attempt == attempt
            await handle.nack()


@everywhere
async def test_a_delay_holds_its_own_task_alone(queues: MemoryQueues | SqsQueues) -> None:
    """`nack(delay_seconds)` delays this task; another one comes meanwhile."""
    broker = queues.broker()
    async with consuming(broker) as consumer:
        await broker.run_task(params("slow"))
        await (await consumer.next()).nack(delay_seconds=60)
        await broker.run_task(params("other"))
        assert (await consumer.next()).operation.params.task_id == "other"


@everywhere
async def test_a_delayed_operation_comes_again(queues: MemoryQueues | SqsQueues) -> None:
    """By itself, as the next attempt, and not before its delay has passed."""
    broker = queues.broker()
    async with consuming(broker) as consumer:
        await broker.run_task(params())
        handle = await consumer.next()
        began = time.time()
        await handle.nack(delay_seconds=1)
        assert (await consumer.next()).attempt == 2
        assert time.time() - began >= 0.99


@everywhere
async def test_one_operation_of_a_task_at_a_time(queues: MemoryQueues | SqsQueues) -> None:
    """A task's next operation waits for the end of the one before; another task's does not."""
    broker = queues.broker()
    async with consuming(broker) as consumer:
        await broker.run_task(params("a"))
        first = await consumer.next()
        await broker.cancel_task(params("a"))
        await broker.run_task(params("b"))
        other = await consumer.next()
        assert other.operation.params.task_id == "b"
        await first.ack()
        second = await consumer.next()
        assert second.operation.operation == "cancel"
        assert second.operation.params.task_id == "a"


@everywhere
async def test_an_acknowledged_operation_is_gone(queues: MemoryQueues | SqsQueues) -> None:
    """After `ack()` the next operation of the task is the next one that was sent."""
    broker = queues.broker()
    async with consuming(broker) as consumer:
        for turn in (1, 2, 3):
            await broker.run_task(params(turn=turn))
        for turn in (1, 2, 3):
            handle = await consumer.next()
            assert (handle.operation.params.turn, handle.attempt) == (turn, 1)
            await handle.ack()


@with_deduplication
async def test_the_same_send_of_a_turn_counts_once(queues: MemoryQueues | SqsQueues) -> None:
    """A repeated send is dropped, also after the first was done; a new copy number is not."""
    broker = queues.broker()
    async with consuming(broker) as consumer:
        await broker.run_task(params())
        await broker.run_task(params())
        await (await consumer.next()).ack()
        await broker.run_task(params())
        await broker.run_task(params(copy_number=1))
        assert (await consumer.next()).operation.params.copy_number == 1


@with_deduplication
async def test_run_and_cancel_of_a_turn_are_two(queues: MemoryQueues | SqsQueues) -> None:
    """A cancel is no repetition of the run of the same turn."""
    broker = queues.broker()
    async with consuming(broker) as consumer:
        await broker.run_task(params())
        await broker.cancel_task(params())
        await (await consumer.next()).ack()
        assert (await consumer.next()).operation.operation == "cancel"


@everywhere
async def test_a_lost_delivery_comes_again(queues: MemoryQueues | SqsQueues) -> None:
    """What nobody acknowledges is delivered again when its visibility has run out."""
    broker = queues.broker(visibility_s=1)
    async with consuming(broker) as consumer:
        await broker.run_task(params())
        assert (await consumer.next()).attempt == 1
        assert (await consumer.next()).attempt == 2


@everywhere
async def test_an_extended_delivery_stays_away(queues: MemoryQueues | SqsQueues) -> None:
    """`extend` keeps an operation beyond its first visibility; one without it comes again."""
    broker = queues.broker(visibility_s=1)
    async with consuming(broker) as consumer:
        await broker.run_task(params("kept"))
        await extended(consumer)
        await broker.run_task(params("lost"))
        assert (await consumer.next()).operation.params.task_id == "lost"
        again = await consumer.next()
        assert (again.operation.params.task_id, again.attempt) == ("lost", 2)


@with_expiring_receipts
async def test_an_expired_delivery_has_no_say(queues: MemoryQueues | SqsQueues) -> None:
    """When another has the operation, `extend` raises, and `ack` and `nack` change nothing."""
    broker = queues.broker(visibility_s=1)
    async with consuming(broker) as consumer:
        await broker.run_task(params())
        expired, current = await consumer.next(), await extended(consumer)
        with pytest.raises(ConcurrencyError):
            await expired.extend(60)
        await expired.nack()
        await expired.ack()
        await current.nack()
        assert (await consumer.next()).attempt == current.attempt + 1


@everywhere
async def test_shutdown_ends_a_waiting_receiver(queues: MemoryQueues | SqsQueues) -> None:
    """A receiver that waits for messages ends at once, not with its long poll."""
    broker = queues.broker()
    waiting = asyncio.create_task(Consumer(broker).ends())
    await asyncio.sleep(0)
    await broker.shutdown()
    assert await waiting
    assert await Consumer(broker).ends()


@everywhere
async def test_leaving_the_broker_shuts_it_down(queues: MemoryQueues | SqsQueues) -> None:
    """The broker is a context manager: at its end receivers end."""
    async with queues.broker() as broker:
        pass
    assert await Consumer(broker).ends()


@everywhere
async def test_what_nobody_can_read_is_set_aside(queues: MemoryQueues | SqsQueues) -> None:
    """`set_aside` takes a body as it is."""
    assert await queues.broker().set_aside("poison", reason="no JSON")


# -- SQS: pull mode --------------------------------------------------------------------------


@on_sqs
async def test_a_shut_down_receiver_gives_back_what_it_still_gets(queues: SqsQueues) -> None:
    """A message that meets an abandoned long poll does not wait for the end of its lease."""
    left = queues.broker()
    waiting = await polling(queues, left)
    await left.shutdown()
    assert await waiting
    broker = queues.broker()
    async with giving_back(queues):
        await broker.run_task(params())
    async with consuming(broker) as consumer:
        assert (await consumer.next()).operation.params == params()


@on_sqs
async def test_a_cancelled_receiver_gives_back_what_it_still_gets(queues: SqsQueues) -> None:
    """As after a shutdown, when the receiving task was cancelled."""
    waiting = await polling(queues, queues.broker())
    waiting.cancel()
    await asyncio.wait({waiting})
    broker = queues.broker()
    async with giving_back(queues):
        await broker.run_task(params())
    async with consuming(broker) as consumer:
        assert (await consumer.next()).operation.params == params()


@on_sqs
async def test_an_undecodable_message_is_moved(
    queues: SqsQueues, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, leaves for the undecodable queue, and harms no other message."""
    queues.send("{not json")
    broker = queues.broker()
    await broker.run_task(params())
    async with consuming(broker) as consumer:
        assert (await consumer.next()).operation.params == params()
    (moved,) = queues.take(queues.undecodable)
    assert moved["Body"] == "{not json"
    assert moved["MessageAttributes"]["reason"]["StringValue"].startswith("The message is no")
    assert queues.depth() == (0, 1)
    assert "undecodable" in actions(caplog)


@on_sqs
async def test_an_undecodable_message_is_left_to_the_redrive_policy(queues: SqsQueues) -> None:
    """Without an undecodable queue it stays, and the loop goes on."""
    queues.send('{"operation": "dance"}')
    broker = queues.broker(undecodable_queue=None)
    await broker.run_task(params())
    async with consuming(broker) as consumer:
        assert (await consumer.next()).operation.params == params()
    assert queues.depth() == (0, 2)


@on_sqs
async def test_network_errors_do_not_end_receiving(
    queues: SqsQueues, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed receive is logged and waits longer each time, and the next one is tried."""
    clock = ManualClock()
    fail(queues.client, "ReceiveMessage", EndpointConnectionError(endpoint_url="x"), times=3)
    broker = queues.broker(clock=clock)
    await broker.run_task(params())
    async with consuming(broker) as consumer:
        assert (await consumer.next()).operation.params == params()
    assert actions(caplog).count("receive_failed") == 3
    assert clock.monotonic() > 0


@on_sqs
async def test_receiving_ends_where_there_is_no_queue(queues: SqsQueues) -> None:
    """A queue that was deleted is a matter of the deployment, not of the network."""
    broker = queues.broker()
    queues.client.delete_queue(QueueUrl=queues.operations)
    with pytest.raises(ConfigurationError, match="does not exist"):
        await Consumer(broker).next()


# -- SQS: sending ----------------------------------------------------------------------------


@on_sqs
async def test_a_queue_is_known_by_its_name(queues: SqsQueues) -> None:
    """A name is looked up once, at the first use."""
    lookups = recorded(queues.client, "GetQueueUrl")
    broker = SqsFifoBroker(queues.operations.rsplit("/", 1)[-1], client=queues.client)
    assert lookups == []
    await broker.run_task(params())
    await broker.run_task(params("other"))
    assert len(lookups) == 1
    assert queues.depth()[0] == 2


@on_sqs
@pytest.mark.parametrize("attribute", ["operations", "undecodable"])
async def test_a_missing_queue_is_named(queues: SqsQueues, attribute: str) -> None:
    """`check` and every use say in one sentence which queue is missing."""
    names = {"operations": queues.operations, "undecodable": queues.undecodable}
    names[attribute] = "nowhere.fifo"
    broker = SqsFifoBroker(
        names["operations"], undecodable_queue=names["undecodable"], client=queues.client
    )
    with pytest.raises(ConfigurationError, match=r"^The queue nowhere\.fifo does not exist\.$"):
        await broker.check()
    use = (
        broker.run_task(params()) if attribute == "operations" else broker.set_aside("", reason="")
    )
    with pytest.raises(ConfigurationError, match=r"nowhere\.fifo"):
        await use


@on_sqs
async def test_existing_queues_pass_the_check(queues: SqsQueues) -> None:
    """`check` says nothing where all is well."""
    await queues.broker().check()


@on_sqs
async def test_a_throttled_send_is_repeated(queues: SqsQueues) -> None:
    """A few refusals are waited out."""
    clock = ManualClock()
    throttled = ClientError({"Error": {"Code": "ThrottlingException"}}, "SendMessage")
    fail(queues.client, "SendMessage", throttled, times=3)
    await queues.broker(clock=clock).run_task(params())
    assert queues.depth() == (1, 0)


@on_sqs
@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "RequestThrottled"}}, "SendMessage"),
        EndpointConnectionError(endpoint_url="x"),
    ],
    ids=["throttled", "unreachable"],
)
async def test_a_send_gives_up_in_the_end(queues: SqsQueues, error: Exception) -> None:
    """After a bounded number of attempts the caller gets UnavailableError."""
    sends = fail(queues.client, "SendMessage", error, times=1000)
    with pytest.raises(UnavailableError):
        await queues.broker(clock=ManualClock()).run_task(params())
    assert 2 <= len(sends) <= aws.ATTEMPTS


@on_sqs
async def test_a_refused_send_is_not_repeated(queues: SqsQueues) -> None:
    """A missing permission is for the deployment to mend: one attempt, and its name."""
    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "SendMessage")
    sends = fail(queues.client, "SendMessage", denied, times=1000)
    with pytest.raises(ConfigurationError, match="AccessDenied"):
        await queues.broker().run_task(params())
    assert len(sends) == 1


# -- SQS: push mode --------------------------------------------------------------------------


@on_sqs
async def test_a_record_is_a_delivery(queues: SqsQueues) -> None:
    """A record of a Lambda event gives operation, attempt and the id for the batch response."""
    broker = queues.broker()
    await broker.run_task(params())
    (message,) = queues.take()
    handle = broker.decode_record(lambda_record(message))
    assert handle.operation.params == params()
    assert handle.attempt == 1
    assert handle.message_id == message["MessageId"]


@on_sqs
async def test_lambda_deletes_what_was_acknowledged(queues: SqsQueues) -> None:
    """In push mode `ack` sends nothing: the event source deletes what is not reported failed."""
    broker = queues.broker()
    await broker.run_task(params())
    (message,) = queues.take()
    await broker.decode_record(lambda_record(message)).ack()
    assert queues.depth() == (0, 1)


@on_sqs
async def test_a_record_is_given_back_by_its_visibility(queues: SqsQueues) -> None:
    """In push mode `nack` sets the visibility, so that the reported failure is retried on time."""
    broker = queues.broker()
    await broker.run_task(params())
    (message,) = queues.take()
    await broker.decode_record(lambda_record(message)).nack()
    assert queues.depth() == (1, 0)


@on_sqs
@pytest.mark.parametrize("body", ["", "{", "null", "[]", '{"operation": "run"}', None])
async def test_a_bad_record_is_undecodable(queues: SqsQueues, body: str | None) -> None:
    """A body that is no operation raises the error that says so, without its content."""
    record = {"messageId": "m", "receiptHandle": "r", "body": body}
    with pytest.raises(UndecodableOperationError):
        queues.broker().decode_record(record)


@on_sqs
async def test_an_undecodable_body_stays_out_of_the_error(queues: SqsQueues) -> None:
    """Error texts go to the log; what strangers send does not."""
    record = {"messageId": "m", "receiptHandle": "r", "body": '{"operation": "s3cret"}'}
    with pytest.raises(UndecodableOperationError) as raised:
        queues.broker().decode_record(record)
    assert "s3cret" not in str(raised.value)


@on_sqs
@pytest.mark.parametrize(
    ("elapsed_s", "asked_s", "given_s"),
    [
        (0, 0, 0),
        (0, -5, 0),
        (0, 1.2, 2),
        (0, 100_000, LONGEST_LEASE_S),
        (40_000, 10_000, LONGEST_LEASE_S - 40_000),
        (50_000, 10, 0),
    ],
)
async def test_a_delay_fits_what_is_left_of_twelve_hours(
    queues: SqsQueues, elapsed_s: float, asked_s: float, given_s: int
) -> None:
    """Visibility is whole seconds, and all of it together is bounded from the receive on."""
    clock = ManualClock()
    broker = queues.broker(clock=clock)
    await broker.run_task(params())
    (message,) = queues.take()
    changes = recorded(queues.client, "ChangeMessageVisibility")
    handle = broker.decode_record(lambda_record(message))
    clock.advance(elapsed_s)
    await handle.nack(delay_seconds=asked_s)
    assert [change["VisibilityTimeout"] for change in changes] == [given_s]


@on_sqs
async def test_a_lease_ends_after_twelve_hours(queues: SqsQueues) -> None:
    """`extend` gives what is left; then the delivery counts as expired."""
    clock = ManualClock()
    broker = queues.broker(clock=clock)
    await broker.run_task(params())
    (message,) = queues.take()
    handle = broker.decode_record(lambda_record(message))
    changes = recorded(queues.client, "ChangeMessageVisibility")
    clock.advance(LONGEST_LEASE_S - 20)
    await handle.extend(60)
    assert changes[0]["VisibilityTimeout"] == 20
    clock.advance(20)
    with pytest.raises(ConcurrencyError):
        await handle.extend(60)
    assert len(changes) == 1


@on_sqs
async def test_sqs_knows_the_trace_of_a_send(queues: SqsQueues) -> None:
    """The trace goes along in the operation, and as the attribute by which AWS links traces."""
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    sent = recorded(queues.client, "SendMessage")
    await queues.broker().run_task(params(), request_context={"x-amzn-trace-id": header})
    attribute = {"DataType": "String", "StringValue": header}
    assert sent[0]["MessageSystemAttributes"] == {"AWSTraceHeader": attribute}
    (message,) = queues.take()
    assert json.loads(message["Body"])["request_context"] == {"x-amzn-trace-id": header}


async def polling(queues: SqsQueues, broker: Broker) -> asyncio.Task[bool]:
    """A receiver whose long poll is under way."""
    begun = threading.Event()
    event = "before-send.sqs.ReceiveMessage"
    queues.client.meta.events.register_first(event, lambda **_: begun.set(), unique_id="begun")
    waiting = asyncio.create_task(Consumer(broker).ends())
    await asyncio.to_thread(begun.wait, PATIENCE_S)
    queues.client.meta.events.unregister(event, unique_id="begun")
    return waiting


@asynccontextmanager
async def giving_back(queues: SqsQueues) -> AsyncIterator[None]:
    """Wait at the block's end until a message was given back.

    On moto a receive that begins before that takes the message's group for busy to its own end.
    """
    done = threading.Event()
    event = "after-call.sqs.ChangeMessageVisibility"
    queues.client.meta.events.register(event, lambda **_: done.set(), unique_id="given-back")
    yield
    assert await asyncio.to_thread(done.wait, PATIENCE_S)
    queues.client.meta.events.unregister(event, unique_id="given-back")


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

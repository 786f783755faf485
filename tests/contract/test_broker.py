"""The Broker contract over tables, moto and fauxqs; what every queue promises is in test_queues.

Waits are for messages to come, never for time to pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from a2a_serverless.errors import UndecodableMessageError
from a2a_serverless_tools.contract import Broker, OperationHandle
from tests.contract.queues import (
    PATIENCE_S,
    SqsQueues,
    TableQueues,
    everywhere,
    lambda_record,
    on_sqs,
    params,
    with_deduplication,
)


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


@asynccontextmanager
async def consuming(broker: Broker) -> AsyncIterator[Consumer]:
    """A consumer that has ended when the test has."""
    consumer = Consumer(broker)
    yield consumer
    await broker.shutdown()
    assert await consumer.ends()


@everywhere
async def test_an_operation_arrives_as_it_was_sent(queues: TableQueues | SqsQueues) -> None:
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
async def test_the_operations_of_a_task_come_one_at_a_time(
    queues: TableQueues | SqsQueues,
) -> None:
    """What was given back comes again, and before the next one; another task waits for neither."""
    broker = queues.broker()
    async with consuming(broker) as consumer:
        await broker.run_task(params("a"))
        await (await consumer.next()).nack()
        await broker.cancel_task(params("a"))
        again = await consumer.next()
        assert (again.operation.operation, again.attempt) == ("run", 2)
        await again.extend(60)
        await broker.run_task(params("b"))
        other = await consumer.next()
        assert other.operation.params.task_id == "b"
        await again.ack()
        cancel = await consumer.next()
        assert (cancel.operation.operation, cancel.attempt) == ("cancel", 1)
        assert cancel.operation.params.task_id == "a"


@everywhere
async def test_a_delay_holds_its_own_task_alone(queues: TableQueues | SqsQueues) -> None:
    """`nack(delay_seconds)` delays this task; another one comes meanwhile."""
    broker = queues.broker()
    async with consuming(broker) as consumer:
        await broker.run_task(params("slow"))
        await (await consumer.next()).nack(delay_seconds=60)
        await broker.run_task(params("other"))
        assert (await consumer.next()).operation.params.task_id == "other"


@with_deduplication
async def test_the_same_send_of_a_turn_counts_once(queues: TableQueues | SqsQueues) -> None:
    """A repeated send is dropped, also after the first was done."""
    broker = queues.broker()
    async with consuming(broker) as consumer:
        await broker.run_task(params())
        await broker.run_task(params())
        await (await consumer.next()).ack()
        await broker.run_task(params())
        await broker.cancel_task(params())
        await broker.run_task(params(copy_number=1))
        cancel = await consumer.next()
        assert cancel.operation.operation == "cancel"
        await cancel.ack()
        assert (await consumer.next()).operation.params.copy_number == 1


@everywhere
async def test_leaving_the_broker_shuts_it_down(queues: TableQueues | SqsQueues) -> None:
    """The broker is a context manager: at its end receivers end, and its queue keeps bodies."""
    async with queues.broker() as broker:
        assert await broker.keep_undecodable("poison", reason="no JSON")
    assert await Consumer(broker).ends()


@on_sqs
async def test_a_record_is_a_delivery(queues: SqsQueues) -> None:
    """A record of a Lambda event gives operation and attempt."""
    broker = queues.broker()
    await broker.run_task(params())
    (message,) = queues.take()
    handle = broker.decode_record(lambda_record(message))
    assert handle.operation.params == params()
    assert handle.attempt == 1


@everywhere
@pytest.mark.parametrize("body", ["{", '{"operation": "run"}'])
async def test_a_bad_record_is_undecodable(queues: TableQueues | SqsQueues, body: str) -> None:
    """A body that is no operation raises the error that says so."""
    record: dict[str, Any] = {"messageId": "m", "receiptHandle": "r", "body": body}
    with pytest.raises(UndecodableMessageError):
        queues.broker().decode_record(record)

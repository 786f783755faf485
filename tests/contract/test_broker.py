"""The Broker contract over tables, moto and fauxqs; what every queue promises is in test_queues."""

from __future__ import annotations

import asyncio

import pytest

from a2a_serverless.errors import UndecodableMessageError
from tests.contract.queues import (
    PATIENCE_S,
    SqsQueues,
    TableQueues,
    everywhere,
    lambda_record,
    on_sqs,
    params,
)


@everywhere
async def test_the_operations_of_a_task_come_as_they_were_sent(
    queues: TableQueues | SqsQueues,
) -> None:
    """One at a time, what was given back before the next one; a delay holds its own task alone.

    At the end of the broker its receivers end, too.
    """
    async with queues.broker() as broker, asyncio.timeout(2 * PATIENCE_S):
        operations = broker.receive_task_operations()
        await broker.run_task(params(), is_new_task=True, request_context={"traceparent": "00-1"})
        first = await anext(operations)
        assert (first.operation.operation, first.attempt) == ("run", 1)
        assert (first.operation.params, first.operation.is_new_task) == (params(), True)
        assert first.operation.request_context == {"traceparent": "00-1"}
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


@on_sqs
async def test_a_record_is_a_delivery(queues: SqsQueues) -> None:
    """A record of a Lambda event gives operation and attempt; one of another kind is refused."""
    broker = queues.broker()
    await broker.run_task(params())
    record = lambda_record(queues.take()[0])
    handle = broker.decode_record(record)
    assert (handle.operation.params, handle.attempt) == (params(), 1)
    with pytest.raises(UndecodableMessageError):
        broker.decode_record({**record, "body": '{"operation": "run"}'})

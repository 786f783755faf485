from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from a2a_serverless import aws
from a2a_serverless.queues.sqs import SqsFifoQueue
from a2a_serverless.tasks.operations import Operation, OperationParams
from tests.support.queues import MemoryQueue
from tests.support.simulation import pumps
from tests.support.simulation.environments import Environments, Handler
from tests.support.simulation.pumps import QueuePump
from tests.support.simulation.simulated_aws import simulated_aws
from tests.support.simulation.sources import EventSource, SqsSource, TableSource

PARAMS = OperationParams(scope="scope", task_id="task", incarnation="incarnation", turn=1)
RECORDED = json.loads((Path(__file__).parents[3] / "events" / "worker-sqs-run.json").read_text())[
    "Records"
][0]

MakeFunction = Callable[..., Environments]


class ListSource(EventSource):
    """Records of a list; what was deleted is noted."""

    def __init__(self, *message_ids: str) -> None:
        self.waiting = list(message_ids)
        self.deleted: list[str] = []
        self.taken = 0
        self.change = asyncio.Event()

    async def records(self) -> AsyncIterator[dict[str, Any]]:
        for message_id in self.waiting:
            self.taken += 1
            yield {"messageId": message_id}
        await asyncio.Event().wait()

    async def delete(self, record: Mapping[str, Any]) -> None:
        self.deleted.append(record["messageId"])
        self.change.set()


@pytest.fixture
def make_function() -> Iterator[MakeFunction]:
    """Makes the environments of a handler, closed at the end of the test."""
    with ExitStack() as closing:

        def make(handler: Handler, limit: int = 2) -> Environments:
            function = Environments("worker", lambda _: handler, limit=limit, timeout_s=30)
            closing.callback(function.close)
            return function

        yield make


@asynccontextmanager
async def pumping(source: EventSource, function: Environments) -> AsyncIterator[None]:
    """A pump that runs for the block."""
    task = asyncio.create_task(QueuePump(lambda: source, function).run())
    try:
        async with asyncio.timeout(10):
            yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def message_id_of(event: Mapping[str, Any]) -> str:
    (record,) = event["Records"]
    return str(record["messageId"])


async def test_only_what_succeeded_is_deleted(make_function: MakeFunction) -> None:
    """A record that is reported as failed, or whose invocation raised, stays in the queue."""

    def handler(event: dict[str, Any], _: Any) -> dict[str, Any]:
        message_id = message_id_of(event)
        if message_id == "raises":
            raise LookupError(message_id)
        failures = [{"itemIdentifier": message_id}] if message_id == "fails" else []
        return {"batchItemFailures": failures}

    source = ListSource("raises", "fails", "good")
    async with pumping(source, make_function(handler)):
        await source.change.wait()

    assert source.deleted == ["good"]


async def test_no_more_is_taken_than_can_run(make_function: MakeFunction) -> None:
    """A message is received when an environment is free for it: its lease runs from then on."""
    go_on, started = threading.Event(), threading.Semaphore(0)

    def handler(_: dict[str, Any], __: Any) -> None:
        started.release()
        assert go_on.wait(10)

    source = ListSource("1", "2", "3")
    async with pumping(source, make_function(handler, limit=2)):
        for _ in range(2):
            assert await asyncio.to_thread(started.acquire, timeout=10)
        assert source.taken == 2
        go_on.set()
        assert await asyncio.to_thread(started.acquire, timeout=10)


async def test_failing_queue_is_read_again(
    make_function: MakeFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the queue does not end the pump."""
    monkeypatch.setattr(pumps, "QUEUE_RETRY_S", 0)
    broken = True

    class Flaky(ListSource):
        async def records(self) -> AsyncIterator[dict[str, Any]]:
            nonlocal broken
            if broken:
                broken = False
                raise ConnectionError
            async for record in super().records():
                yield record

    source = Flaky("1")
    async with pumping(source, make_function(lambda *_: None)):
        await source.change.wait()

    assert source.deleted == ["1"]


async def test_memory_speaks_in_records() -> None:
    """A delivery in memory becomes a record of the form that SQS has, and the same delivery."""
    queue = MemoryQueue(Operation)
    await queue.send(Operation.to_run(PARAMS))
    source = TableSource(queue)

    record = await anext(source.records())
    handle = queue.decode_record(record)
    await handle.extend(30)

    assert record.keys() <= RECORDED.keys()
    assert record["attributes"].keys() <= RECORDED["attributes"].keys()
    assert handle.message.params == PARAMS
    assert handle.attempt == 1
    await source.delete(record)
    await queue.send(Operation.to_run(PARAMS.model_copy(update={"turn": 2})))
    assert queue.decode_record(await anext(source.records())).message.params.turn == 2


async def test_queue_speaks_in_records() -> None:
    """A message of SQS becomes a record with the fields of one that Lambda's poller has made."""
    with simulated_aws() as names:
        queue = SqsFifoQueue(Operation, names.queue)
        await queue.send(Operation.to_run(PARAMS))
        source = SqsSource(names.queue.rsplit("/", 1)[-1], wait_s=0)

        record = await source.receive()

        assert record is not None
        assert record.keys() == RECORDED.keys()
        assert record["attributes"].keys() >= {"MessageGroupId", "ApproximateReceiveCount"}
        assert record["awsRegion"] == "us-east-1"
        assert queue.decode_record(record).message.params == PARAMS
        await source.delete(record)
        counts = aws.client("sqs").get_queue_attributes(
            QueueUrl=names.queue, AttributeNames=["ApproximateNumberOfMessagesNotVisible"]
        )["Attributes"]
        assert counts == {"ApproximateNumberOfMessagesNotVisible": "0"}

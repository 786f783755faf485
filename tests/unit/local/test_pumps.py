"""Event sources of the simulation, by which the page `cost` counts invocations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from a2a_serverless import aws
from a2a_serverless.queues.sqs import SqsFifoQueue
from a2a_serverless.tasks.head import Operation, OperationParams
from a2a_serverless_tools.local.sources import Consume, StreamSource
from tests.support.queues import MemoryQueue
from tests.support.simulation import pumps
from tests.support.simulation.environments import Environments, Handler
from tests.support.simulation.pumps import QueuePump, StreamFilter, StreamPump
from tests.support.simulation.simulated_aws import simulated_aws
from tests.support.simulation.sources import EventSource, SqsSource, TableSource

PARAMS = OperationParams(scope="scope", task_id="task", incarnation="incarnation", turn=1)
RECORDED = json.loads((Path(__file__).parents[3] / "events" / "worker-sqs-run.json").read_text())[
    "Records"
][0]

MakeFunction = Callable[[Handler], Environments]


@pytest.fixture
def make_function(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeFunction]:
    """Makes the two environments of a handler; what fails is tried again without a pause."""
    for pause in ("QUEUE_RETRY_S", "FIRST_RETRY_S", "LONGEST_RETRY_S"):
        monkeypatch.setattr(pumps, pause, 0)
    with ExitStack() as closing:

        def make(handler: Handler) -> Environments:
            function = Environments("function", lambda _: handler, limit=2, timeout_s=30)
            closing.callback(function.close)
            return function

        yield make


@asynccontextmanager
async def pumping(pump: QueuePump | StreamPump) -> AsyncIterator[None]:
    """A pump that runs for the block."""
    task = asyncio.create_task(pump.run())
    try:
        async with asyncio.timeout(10):
            yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Queue(EventSource):
    """Three messages, of which a reader gets the first ones at its second attempt alone."""

    def __init__(self) -> None:
        self.is_broken = True
        self.deleted: list[str] = []
        self.change = asyncio.Event()

    async def records(self) -> AsyncIterator[dict[str, Any]]:
        if self.is_broken:
            self.is_broken = False
            raise ConnectionError
        for message_id in ("raises", "fails", "good"):
            yield {"messageId": message_id}
        await asyncio.Event().wait()

    async def delete(self, record: Mapping[str, Any]) -> None:
        self.deleted.append(record["messageId"])
        self.change.set()


async def test_only_what_succeeded_is_deleted(make_function: MakeFunction) -> None:
    """A record that is reported as failed, or whose invocation raised, stays in the queue."""

    def handler(event: dict[str, Any], _: Any) -> dict[str, Any]:
        message_id = event["Records"][0]["messageId"]
        if message_id == "raises":
            raise LookupError(message_id)
        failures = [{"itemIdentifier": message_id}] if message_id == "fails" else []
        return {"batchItemFailures": failures}

    source = Queue()
    async with pumping(QueuePump(lambda: source, make_function(handler))):
        await source.change.wait()
    assert source.deleted == ["good"]


class Stream(StreamSource):
    """Two batches, one after the other."""

    def __init__(self) -> None:
        self.done = asyncio.Event()

    async def feed(self, consume: Consume) -> None:
        for batch in ("abc", "de"):
            await consume([{"dynamodb": {"SequenceNumber": number}} for number in batch])
        self.done.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ({"abc": ["b"]}, ["abc", "bc", "de"]),
        ({"abc": ["c", "b"], "bc": ["c"]}, ["abc", "bc", "c", "de"]),
        ({"abc": ["x"]}, ["abc", "abc", "de"]),
        ({"abc": LookupError()}, ["abc", "abc", "de"]),
        ({}, ["abc", "de"]),
    ],
)
async def test_a_batch_is_settled_before_the_next_one(
    make_function: MakeFunction, answers: dict[str, Any], calls: list[str]
) -> None:
    """A batch comes again from its first failed record; whole, if that is not known."""
    called: list[str] = []

    def handler(event: dict[str, Any], _: Any) -> dict[str, Any]:
        called.append("".join(each["dynamodb"]["SequenceNumber"] for each in event["Records"]))
        answer = answers.pop(called[-1], [])
        if isinstance(answer, Exception):
            raise answer
        return {"batchItemFailures": [{"itemIdentifier": number} for number in answer]}

    source = Stream()
    wanted = StreamFilter(['{"dynamodb": {"SequenceNumber": ["a", "b", "c", "d", "e"]}}'])
    async with pumping(StreamPump(lambda: source, make_function(handler), wanted)):
        await source.done.wait()
    assert called == calls


async def test_memory_speaks_in_records() -> None:
    """A delivery in memory becomes a record of the form that SQS has, and the same delivery."""
    queue = MemoryQueue(Operation)
    await queue.send(Operation.to_run(PARAMS))
    source = TableSource(queue)
    record = await anext(source.records())
    handle = queue.decode_record(record)
    assert record.keys() <= RECORDED.keys()
    assert record["attributes"].keys() <= RECORDED["attributes"].keys()
    assert (handle.message.params, handle.attempt) == (PARAMS, 1)


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

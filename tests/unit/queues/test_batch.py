"""Batches of an event source, what a queue is told, and receives whose answer is lost."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, cast
from unittest.mock import AsyncMock, Mock, call

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import ConnectionClosedError
from botocore.httpsession import URLLib3Session

from a2a_serverless import aws
from a2a_serverless.errors import UnavailableError
from a2a_serverless.observability import metrics
from a2a_serverless.observability.logs import log_context
from a2a_serverless.queues.batch import EventFunction, left_s, process_batch
from a2a_serverless.queues.fifo import DONE, LOST, DeliveryOutcome, EventRecord, acknowledge, again
from a2a_serverless.queues.sqs import SqsFifoQueue
from a2a_serverless.tasks.head import Operation, OperationParams
from tests.support.emulators import CREDENTIALS
from tests.support.handlers import LambdaContext
from tests.support.observed import counted, logged

logger = logging.getLogger(__name__)


def record(message_id: str, group: str | None = None) -> dict[str, Any]:
    """A record of an SQS event; a standard queue's has no group."""
    attributes = {"MessageGroupId": group} if group is not None else {}
    return {"messageId": message_id, "attributes": attributes}


def failed(response: Mapping[str, Any]) -> list[str]:
    assert set(response) == {"batchItemFailures"}
    return [failure["itemIdentifier"] for failure in response["batchItemFailures"]]


class Steps:
    """Processes records: notes each when it is done, fails those it is told to."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.done: list[str] = []

    async def __call__(self, record: EventRecord) -> bool:
        await asyncio.sleep(0)
        self.done.append(record["messageId"])
        return record["messageId"] not in self.failing


@pytest.mark.parametrize(
    ("batch", "failing", "reported", "done"),
    [
        ("a1 b1 a2", "", [], "a1 a2 b1"),
        ("a1 a2 b1 a3", "a2", ["a2", "a3"], "a1 a2 b1"),
        ("1 2", "1", ["1"], "1 2"),
    ],
    ids=["done", "after a failure", "without groups"],
)
async def test_what_is_done_is_not_reported(
    batch: str, failing: str, reported: list[str], done: str
) -> None:
    """Records of a group run once, in order, until one fails; without a group each is alone."""
    steps = Steps(failing)
    records = [record(name, name.rstrip("123") or None) for name in batch.split()]
    assert failed(await process_batch(records, steps)) == reported
    assert sorted(steps.done, key=lambda name: name[0]) == done.split()  # keeps a group's order


async def test_groups_run_at_the_same_time() -> None:
    """A group that waits for another one does not wait for ever."""
    met = asyncio.Barrier(2)

    async def meet(_: EventRecord) -> bool:
        async with asyncio.timeout(30):
            await met.wait()
        return True

    assert failed(await process_batch([record("1", "a"), record("2", "b")], meet)) == []


class Echo(EventFunction):
    def __init__(self, step: Callable[[], Awaitable[None]]) -> None:
        self.step = step
        super().__init__()

    async def _answer(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        await self.step()
        return {"event": event, "left_s": left_s(context)}


def test_an_invocation_ends_with_its_metrics() -> None:
    """An invocation writes its metrics, also if it raises; all use one loop until the close."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def count_and_fail() -> None:
        loops.append(asyncio.get_running_loop())
        metrics.count("Resends")
        if len(loops) == 1:
            raise ValueError

    function = Echo(count_and_fail)
    with counted() as caught:
        with pytest.raises(ValueError):  # noqa: PT011 - raised above
            function.handle({}, None)
        assert caught.values("Resends") == [1.0]
        assert function.handle({"a": 1}, None) == {"event": {"a": 1}, "left_s": None}
        assert caught.values("Resends") == [1.0, 1.0]
    assert loops[0] is loops[1]
    function.close()
    assert loops[0].is_closed()


def test_lines_of_an_invocation_name_it() -> None:
    """Log lines of an invocation have the context's request id; the context says the time left."""

    async def say() -> None:
        with log_context(task_id="t"):
            logger.warning("Said", extra={"action": "said"})

    function = Echo(say)
    with logged() as found:
        assert function.handle({}, LambdaContext(left_s=1.5))["left_s"] == 1.5
    function.close()
    (line,) = [line for line in found if line.get("action") == "said"]
    assert (line["request_id"], line["task_id"]) == ("request-1", "t")


async def told(outcome: DeliveryOutcome, error: Exception | None = None) -> list[Any]:
    """What is done for an outcome, at a queue that answers or fails."""
    noted: Any = Mock(ack=AsyncMock(side_effect=error), nack=AsyncMock(side_effect=error))
    is_done = await acknowledge(
        noted,
        outcome,
        before_ack=noted.before_ack,
        before_nack=noted.before_nack,
        on_error=noted.on_error,
    )
    assert is_done is outcome.is_done
    return list(noted.mock_calls)


@pytest.mark.parametrize(
    ("outcome", "calls"),
    [
        (DONE, [call.before_ack(), call.ack()]),
        (again(2.5), [call.before_nack(), call.nack(delay_s=2.5)]),
        (again(0), [call.before_nack(), call.nack(delay_s=0)]),
        (LOST, []),
    ],
)
async def test_a_queue_is_told_what_was_decided(outcome: DeliveryOutcome, calls: list[Any]) -> None:
    """Done is acknowledged, again is given back; a queue that is down changes no outcome."""
    assert await told(outcome) == calls
    failing = [*calls, call.on_error()] if calls else []
    assert await told(outcome, UnavailableError()) == failing


ID = "ReceiveRequestAttemptId"
MESSAGE = {
    "MessageId": "1",
    "ReceiptHandle": "receipt",
    "Body": Operation.to_run(
        OperationParams(scope="s", task_id="t", incarnation="i", turn=1)
    ).model_dump_json(),
    "Attributes": {"ApproximateReceiveCount": "1", "MessageGroupId": "t"},
}


class Wire:
    """Records the receives. It answers the first `lost` of them by ending the connection."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.lost = 0

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        self.received.append(json.loads(cast("bytes", request.body)))
        if len(self.received) <= self.lost:
            raise ConnectionClosedError(endpoint_url=request.url)
        answer: Any = AWSResponse(request.url, 200, HTTPHeaders(), None)
        answer._content = json.dumps({"Messages": [MESSAGE]}).encode()  # what was read off the wire
        return answer  # type: ignore[no-any-return]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """What is between the queue and SQS."""
    made = Wire()
    monkeypatch.setattr(URLLib3Session, "send", lambda _, request: made.send(request))
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    aws.forget_clients()
    yield made
    aws.forget_clients()


async def test_a_lost_answer_hides_no_message(wire: Wire) -> None:
    """A repeated receive is the same request; each other poll is a receive of its own."""
    wire.lost = 1
    queue = SqsFifoQueue(Operation, "https://sqs.us-east-1.amazonaws.com/1/queue.fifo")
    (handle,) = await queue.pull(10, 0)
    lost, repeated = wire.received
    assert (handle.message.params.task_id, repeated) == ("t", lost)
    assert 0 < len(lost[ID]) <= 128
    assert lost[ID].isalnum()
    for _ in range(2):
        await queue.pull(10, 0)
    assert len({received[ID] for received in wire.received}) == 3

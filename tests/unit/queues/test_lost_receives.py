"""The receives that a queue of SQS gets from a poll, one of whose answers is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import ConnectionClosedError
from botocore.httpsession import URLLib3Session

from a2a_serverless import aws
from a2a_serverless.queues.sqs import SqsFifoQueue
from a2a_serverless.tasks.head import Operation, OperationParams
from tests.support.emulators import CREDENTIALS

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
    assert handle.message.params.task_id == "t"
    assert repeated == lost
    assert 0 < len(lost[ID]) <= 128
    assert lost[ID].isalnum()
    for _ in range(2):
        await queue.pull(10, 0)
    assert len({received[ID] for received in wire.received}) == 3

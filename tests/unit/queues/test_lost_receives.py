"""The receives that a queue of SQS gets from a poll, one of whose answers is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from a2a_serverless import aws
from a2a_serverless.queues.sqs import SqsFifoQueue
from a2a_serverless.tasks.head import Operation, OperationParams
from tests.support.emulators import CREDENTIALS

ID = "ReceiveRequestAttemptId"


class Server(ThreadingHTTPServer):
    """An SQS that records receives. It answers `lost` of them by ending the connection."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.received: list[dict[str, Any]] = []
        self.lost = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    """One message for each receive whose answer is not lost."""

    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append(body)
        if len(self.server.received) <= self.server.lost:
            self.close_connection = True
            return
        params = OperationParams(scope="s", task_id="t", incarnation="i", turn=1)
        message = {
            "MessageId": "1",
            "ReceiptHandle": "receipt",
            "Body": Operation.to_run(params).model_dump_json(),
            "Attributes": {"ApproximateReceiveCount": "1", "MessageGroupId": "t"},
        }
        answer = json.dumps({"Messages": [message]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def queue(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsFifoQueue[Operation]]:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_SQS": server.url}.items():
        monkeypatch.setenv(name, value)
    aws.forget_clients()
    yield SqsFifoQueue(Operation, f"{server.url}/queue.fifo")
    aws.forget_clients()


async def test_a_lost_answer_hides_no_message(
    server: Server, queue: SqsFifoQueue[Operation]
) -> None:
    """The repeated receive is the same request, so that SQS returns what the lost answer held."""
    server.lost = 1
    (handle,) = await queue.pull(10, 0)
    lost, repeated = server.received
    assert handle.message.params.task_id == "t"
    assert repeated == lost
    assert 0 < len(lost[ID]) <= 128
    assert lost[ID].isalnum()


async def test_each_poll_is_a_receive_of_its_own(
    server: Server, queue: SqsFifoQueue[Operation]
) -> None:
    """No poll is answered with the messages of another one."""
    for _ in range(3):
        await queue.pull(10, 0)
    assert len({received[ID] for received in server.received}) == 3

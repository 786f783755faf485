"""A task's life as an operator sees it, through the handlers of all functions."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from a2a_serverless.observability import metrics
from tests.support.a2a_calls import message
from tests.support.gateway import rest_event
from tests.support.handlers import LambdaContext, cold_start, event_file
from tests.support.observed import Line, Metrics, root_logger
from tests.support.simulation.simulated_aws import simulated_aws
from tests.support.simulation.sources import SqsSource

EVENT = event_file("api-rest-send-message")
EVENT["headers"] |= {"traceparent": "00-67891233abcdef012345678912345678-53995c3f42cd8ad8-01"}
ADDRESS = {"host", "x-forwarded-for", "x-forwarded-port", "x-forwarded-proto"}
"""Headers that `rest_event` makes itself: a second Host would be joined with the first one."""
CONTENT = ("Lisbon", "Alfama", "Belém")
"""Words of the message and of the answer."""

VARIABLES = {
    "AWS_LAMBDA_FUNCTION_NAME": "observed",
    "POWERTOOLS_SERVICE_NAME": "agent",
    "POWERTOOLS_METRICS_NAMESPACE": "A2AServerless",
    "POWERTOOLS_LOG_LEVEL": "DEBUG",
    "AGENT_CHUNK_DELAY_S": "0",
    "A2A_AUTH": "none",
}

Handler = Callable[[dict[str, Any], Any], dict[str, Any]]


@dataclass
class Deployment:
    """The functions of a deployment, invoked one at a time."""

    api: Handler
    worker: Handler
    operations: SqsSource
    capsys: pytest.CaptureFixture[str]
    out: str = ""
    metrics: Metrics = field(default_factory=Metrics)
    lines: list[Line] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def invoke(self, handler: Handler, event: dict[str, Any]) -> dict[str, Any]:
        """Invoke a function as Lambda does, and read what it has printed."""
        answer = handler(event, LambdaContext(f"{next(self._numbers):08d}-0000"))
        printed = self.capsys.readouterr().out
        self.out += printed
        for line in map(json.loads, printed.splitlines()):
            (self.metrics.lines if "_aws" in line else self.lines).append(line)
        return answer

    def send(self, text: str) -> dict[str, Any]:
        said = message(text, messageId=uuid.uuid4().hex)
        request = {"message": said, "configuration": {"returnImmediately": True}}
        answer = self.invoke(self.api, EVENT | {"body": json.dumps(request)})
        assert answer["statusCode"] == 200, answer
        task: dict[str, Any] = json.loads(answer["body"])["task"]
        return task

    def work(self) -> None:
        async def receive() -> Line:
            return dict(await anext(self.operations.records()))

        record = asyncio.get_event_loop().run_until_complete(receive())
        assert self.invoke(self.worker, {"Records": [record]}) == {"batchItemFailures": []}


TRACE = "67891233abcdef012345678912345678"
"""The trace that the client of `EVENT` names."""


@pytest.fixture
def on_aws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Deployment]:
    """The handlers in functions/, over a simulated AWS, with the variables of template.yaml."""
    with (
        simulated_aws() as made,
        root_logger() as root,
        asyncio.Runner() as runner,
        ExitStack() as cleanup,
    ):
        asyncio.set_event_loop(runner.get_loop())  # Mangum finds it in a Lambda environment
        cleanup.callback(asyncio.set_event_loop, None)
        for name, value in (VARIABLES | made.environment()).items():
            monkeypatch.setenv(name, value)
        root.handlers.clear()
        # The root's level is not set here: pytest sets it anew for every phase of a test.
        for name in ("a2a_serverless", "agent"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        cleanup.callback(gc.unfreeze)  # what the handlers' starts have frozen
        cleanup.callback(metrics.stop)
        api, worker = (cold_start(name) for name in ("api", "worker"))
        cleanup.callback(worker.function.close)
        source = SqsSource(made.queue, wait_s=0)
        yield Deployment(api=api.handler, worker=worker.handler, operations=source, capsys=capsys)


def test_what_the_functions_say_of_a_task(on_aws: Deployment) -> None:
    """One search for a task's id finds its way, step by step; each step is counted once.

    A task that asks back is neither ended nor queued any more, and of a refused request only the
    protocol's reason is told.
    """
    task = on_aws.send("Two days in Lisbon")
    on_aws.work()
    found = [line for line in on_aws.lines if line.get("task_id") == task["id"]]
    _, begun, ended = found
    assert [line["action"] for line in found] == ["send_turn", "attempt", "turn_ended"]
    for line in found:
        assert (line["service"], line["level"]) == ("agent", "INFO")
        assert line["context_id"] == task["contextId"]
        assert (line["turn"], line["trace_id"]) == (1, TRACE)
    invocations = ["00000001-0000", "00000002-0000", "00000002-0000"]
    assert [line["request_id"] for line in found] == invocations
    assert begun["attempt"] == ended["attempt"] == 1
    assert ended["state"] == "completed"
    seen = on_aws.metrics
    assert seen.values("TurnsAccepted") == seen.values("Attempts") == [1.0]
    assert seen.values("TasksEnded", state="completed") == [1.0]
    (queued_ms,), (to_end_ms,) = seen.values("TimeQueued"), seen.values("TimeToEnd")
    assert 0 <= queued_ms <= to_end_ms < 60_000
    assert seen.values("FencedWrites") == seen.values("Retries") == []

    on_aws.send("A journey, please")
    on_aws.work()
    *_, paused = (line for line in on_aws.lines if line.get("action") == "turn_ended")
    assert (paused["state"], len(seen.values("TimeToEnd"))) == ("input_required", 1)

    refused = {"/tasks/none-Lisbon": "TaskNotFound", "/tasks?status=LISBON": "InvalidParams"}
    for target, reason in refused.items():
        headers = {n: v for n, v in EVENT["headers"].items() if n.lower() not in ADDRESS}
        answer = on_aws.invoke(on_aws.api, rest_event("GET", target, None, headers))
        assert answer["statusCode"] >= 400
        assert seen.values("RequestsRefused", reason=reason) == [1.0]
    said = [line["reason"] for line in on_aws.lines if line.get("action") == "refused"]
    assert said == [*refused.values()]
    # Once: the SDK's own lines about it stay away.
    assert not [line for line in on_aws.lines if line.get("level") in {"WARNING", "ERROR"}]
    assert [word for word in CONTENT if word.lower() in on_aws.out.lower()] == []

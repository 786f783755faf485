"""The functions of a deployment in one process, on emulators, with everything counted.

The handlers are the deployed ones, with their log lines and metrics. The work of AWS itself is
added by rule: the event sources' requests to SQS, and Lambda's own log lines.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx

from a2a_serverless import aws
from a2a_serverless.settings import load_settings
from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.provision import Names, provision
from a2a_serverless_tools.local.sockets import bind
from benchmarks.cost_prices import billed_requests
from benchmarks.meter import Meter, Usage, item_bytes
from tests.support.emulators import dynamodb_local, fauxqs
from tests.support.gateway import adapted, response_of, rest_event
from tests.support.simulation.environments import Environments
from tests.support.template import Template, routes_of, stream_filter

HERE = Path(__file__).parent
FUNCTIONS = HERE.parent / "functions"

DELIVERY_S = 0.2
"""Seconds that SQS and Lambda take to bring a message from the queue to the worker."""

LOG_EVENT_BYTES = 26
"""Bytes that CloudWatch adds to each log line."""
ITEM_OVERHEAD_BYTES = 100
"""Bytes that DynamoDB adds to each stored item, and to each entry of an index."""

CALLER = {"A2A-Version": "1.0", "Content-Type": "application/json"}


class LogLines(io.TextIOBase):
    """Replaces stdout, and keeps what the functions write there."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> int:
        """Keep whole lines, as Lambda does."""
        self.lines += [line for line in text.split("\n") if line]
        return len(text)

    def bytes(self) -> int:
        """Return the bytes that CloudWatch charges for the lines."""
        return sum(len(line.encode()) + LOG_EVENT_BYTES for line in self.lines)

    def values(self, name: str) -> list[float]:
        """Return all values of a custom metric, under all its dimensions."""
        contents = map(json.loads, self.lines)
        return [value for one in contents if "_aws" in one for value in one.get(name, [])]

    def metrics(self) -> set[str]:
        """Return the custom metrics in the lines: each name under each set of dimensions is one."""
        found: set[str] = set()
        for line in self.lines:
            content = json.loads(line)
            for directive in content.get("_aws", {}).get("CloudWatchMetrics", []):
                names = [metric["Name"] for metric in directive["Metrics"]]
                for dimensions in directive["Dimensions"]:
                    values = ",".join(str(content[d]) for d in sorted(dimensions))
                    found |= {f"{name} {values}" for name in names}
        return found


@dataclass(kw_only=True)
class Tally:
    """The counts, besides the table's own usage."""

    table: Usage
    sqs: Counter[str] = field(default_factory=Counter)
    invocations: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    """Requests as API Gateway bills them."""
    sent_bytes: int = 0
    stored_bytes: int = 0
    logs: LogLines = field(default_factory=LogLines)

    def logged_bytes(self) -> int:
        """Return the bytes of the functions' log lines; Lambda itself logs failures alone."""
        return self.logs.bytes()


class System:
    """A deployment whose parts are driven one by one."""

    def __init__(
        self, made: Names, dynamodb: Any, sqs: Any, stack: ExitStack, logs: LogLines
    ) -> None:
        self._made = made
        self._dynamodb = dynamodb
        self._sqs = sqs
        self._logs = logs
        self._lock = threading.Lock()
        self._meter = Meter(aws.client("dynamodb"), dynamodb, made.table)
        self._tally = Tally(table=Usage())
        for long_poll in (False, True):
            events = aws.client("sqs", long_poll=long_poll).meta.events
            events.register("before-send.sqs.*", self._count_sqs)
        self._filter = stream_filter(load_settings().push_events)
        self._routes = routes_of(Template())
        server = HttpServer(import_module("stream").app, bind(0))
        self._stream_url = stack.enter_context(server).url
        self._to_stream = stack.enter_context(httpx.Client(trust_env=False, timeout=120))
        self._functions = {name: _environment(name, stack) for name in _HANDLERS}

    @contextmanager
    def counting(self) -> Iterator[Tally]:
        """Count what happens in the block."""
        before = self._stored()
        self._logs.lines.clear()
        with self._meter.measure() as usage:
            self._tally = tally = Tally(table=usage)
            yield tally
        tally.logs.lines = list(self._logs.lines)
        tally.stored_bytes = self._stored() - before

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Make a request through API Gateway; return the JSON of its answer."""
        return self._ask(method, path, body).json()

    def stream(self, body: Any) -> str:
        """Send with a stream, and read it to its end; return the task's id."""
        lines = self._ask("POST", "/message:stream", body).text.splitlines()
        first = next(line for line in lines if line.startswith("data:"))
        return str(json.loads(first.removeprefix("data:"))["task"]["id"])

    def _ask(self, method: str, path: str, body: Any) -> httpx.Response:
        """Make a request to the function of its route."""
        event = rest_event(method, path, None if body is None else json.dumps(body), CALLER)
        route = self._routes.find(method, path)
        assert route is not None, f"{method} {path} has no route"
        if route.streams:
            self.invoked("stream")
            response = self._to_stream.send(adapted(event, server=self._stream_url))
            billed = billed_requests(len(response.content))
        else:
            status, answered, content = response_of(self._invoke("api", event))
            response = httpx.Response(status, headers=answered, content=content)
            billed = 1
        assert response.status_code == httpx.codes.OK, response.text
        headers = sum(len(name) + len(value) + 4 for name, value in response.headers.raw)
        with self._lock:
            self._tally.requests += billed
            self._tally.sent_bytes += len(response.content) + headers
        return response

    def work(self) -> None:
        """Deliver the next message of the queue to the worker; wait for it if need be."""
        answer = self._sqs.receive_message(
            QueueUrl=self._made.queue, WaitTimeSeconds=20, MessageSystemAttributeNames=["All"]
        )
        (message,) = answer["Messages"]
        time.sleep(DELIVERY_S)
        record = {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message["Attributes"],
            "messageAttributes": {},
            "eventSource": "aws:sqs",
        }
        answer = self._invoke("worker", {"Records": [record]})
        assert answer == {"batchItemFailures": []}, answer
        self._tally.sqs["ReceiveMessage by Lambda"] += 1
        self._tally.sqs["DeleteMessage by Lambda"] += 1
        receipt = message["ReceiptHandle"]
        self._sqs.delete_message(QueueUrl=self._made.queue, ReceiptHandle=receipt)

    def wake(self, *task_ids: str) -> None:
        """Hand the stream records of each task that pass the filter to the push function."""
        items = list(self._items())
        for task_id in task_ids:
            records = [_record(item) for item in items if _is_commit(item, task_id)]
            self._wake([record for record in records if self._filter(record)])

    def _wake(self, passed: list[dict[str, Any]]) -> None:
        if passed:
            answer = self._invoke("push", {"Records": passed})
            assert answer == {"batchItemFailures": []}, answer

    def sweep(self) -> None:
        """Run a round of the sweeper."""
        self._invoke("sweeper", {"detail-type": "Scheduled Event"})

    def _invoke(self, name: str, event: dict[str, Any]) -> Any:
        self.invoked(name)
        return self._functions[name].invoke(event).result()

    def invoked(self, name: str) -> None:
        """Count an invocation."""
        with self._lock:
            self._tally.invocations[name] += 1

    def _count_sqs(self, event_name: str, **_: Any) -> None:
        with self._lock:
            self._tally.sqs[event_name.rpartition(".")[2]] += 1

    def _items(self) -> Iterator[Mapping[str, Any]]:
        pages = self._dynamodb.get_paginator("scan").paginate(TableName=self._made.table)
        return (item for page in pages for item in page["Items"])

    def _stored(self) -> int:
        """Return the bytes of all items and their index entries, as DynamoDB charges them."""
        total = 0
        for item in self._items():
            total += item_bytes(item) + ITEM_OVERHEAD_BYTES
            total += sum(
                item_bytes(entry) + ITEM_OVERHEAD_BYTES for entry in self._meter.entries(item)
            )
        return total


_HANDLERS = ("api", "push", "sweeper", "worker")
"""The worker is last: it puts the agent's folder on the path, with modules of the same names."""


def _environment(name: str, stack: ExitStack) -> Environments:
    handler = import_module(name).handler
    function = Environments(name, lambda _: handler, limit=1, timeout_s=900)
    stack.callback(function.close)
    return function


def _is_commit(item: Mapping[str, Any], task_id: str) -> bool:
    partition, sort = str(item["PK"]["S"]), str(item["SK"]["S"])
    return partition.endswith(f"#{task_id}") and sort.startswith("EVENT#")


def _record(item: Mapping[str, Any]) -> dict[str, Any]:
    image = {name: value for name, value in item.items() if "B" not in value}
    keys = {"PK": item["PK"], "SK": item["SK"]}
    content = {"Keys": keys, "NewImage": image, "SequenceNumber": item["SK"]["S"]}
    return {"eventSource": "aws:dynamodb", "eventName": "INSERT", "dynamodb": content}


@contextmanager
def counted_system() -> Iterator[System]:
    """Yield a deployment on its own emulators; only one in a process, as handlers are modules."""
    with ExitStack() as stack:
        emulators = stack.enter_context(dynamodb_local()), stack.enter_context(fauxqs())
        observers = [emulator.client() for emulator in emulators]
        made = provision(observers[0], observers[1], names=Names.with_prefix("cost"), stream=False)
        for emulator in emulators:
            os.environ |= emulator.environment()
        os.environ |= made.environment() | {
            "A2A_AUTH": "none",
            "A2A_AGENT": f"{HERE / 'cost_agent.py'}:agent",
            "A2A_CARD": str(HERE / "stream_card.json"),
            "AWS_LAMBDA_FUNCTION_NAME": "cost",
            "POWERTOOLS_SERVICE_NAME": "a2a-serverless",
            "POWERTOOLS_METRICS_NAMESPACE": "A2AServerless",
        }
        sys.path[:0] = [str(folder) for folder in FUNCTIONS.iterdir()]
        stdout, logs = sys.stdout, LogLines()
        stack.callback(setattr, sys, "stdout", stdout)
        sys.stdout = logs
        yield System(made, observers[0], observers[1], stack, logs)

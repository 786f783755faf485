"""The commands, in this process, and a table that they find by their environment."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from a2a.types import TaskState
from botocore.stub import Stubber
from moto import mock_aws

from a2a_serverless import aws, wiring
from a2a_serverless.clock import Clock
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.table import Table
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless_tools import cli
from tests.support.clocks import ManualClock
from tests.support.commits import FAILED, to
from tests.support.databases import TABLE, Dictionaries, Stored
from tests.support.emulators import CREDENTIALS, REGION
from tests.support.messages import request
from tests.support.scripted_aws import REGION as SCRIPTED
from tests.support.scripted_aws import ScriptedAws

ANN = Scope.of("", "ann")
BOB = Scope.of("acme", "bob")

START_MS = 1_795_313_640_000
"""2026-11-22T02:14:00Z"""


@pytest.fixture
def clock() -> ManualClock:
    """The clock of those who write tasks, and of the command."""
    return ManualClock(START_MS)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, clock: ManualClock, tmp_path: Path) -> Iterator[None]:
    """A folder without a file of its own, and an environment that names a table."""
    aws.forget_clients()
    monkeypatch.chdir(tmp_path)
    for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": REGION, "A2A_TABLE": TABLE}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL_DYNAMODB", raising=False)
    for module in ("clock", "wiring"):
        monkeypatch.setattr(f"a2a_serverless.{module}.SystemClock", lambda: clock)
    yield
    aws.forget_clients()


@pytest.fixture
def account(place: None) -> Iterator[None]:
    """The same, and an account on moto."""
    with mock_aws():
        yield


@pytest.fixture
def operations(account: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """The queue of operations, without a worker; a cancel waits 1 s for its agent."""
    monkeypatch.setenv("A2A_CANCEL_TIMEOUT_S", "1")
    return queue_of(monkeypatch, "A2A_QUEUE")


@pytest.fixture
def database(place: None, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Stored:
    """The table that `A2A_TABLE` names, in dictionaries; one of another name is on AWS."""
    kept, opened = Dictionaries(clock), wiring.open_table

    def open_table(name: str, clock: Clock) -> Table:
        return kept.storage().table if name == TABLE else opened(name, clock)

    monkeypatch.setattr(wiring, "open_table", open_table)
    return kept


@pytest.fixture
def storage(database: Stored, clock: ManualClock) -> DurableStorage:
    """The table, in the scope of ann."""
    return database.storage(clock=clock, scope=ANN)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAws]:
    """An account with moto's Secrets Manager and a scripted CloudFormation; no region is named."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_REGION", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, REGION)  # so that it is as before at the end
        monkeypatch.delenv(name)
    scripted, others = ScriptedAws(), aws.client
    aws.forget_clients()
    clients = defaultdict(lambda: others, cloudformation=scripted.client)
    monkeypatch.setattr(aws, "client", lambda service: clients[service](service))
    with mock_aws():
        yield scripted
    aws.forget_clients()


def secrets_manager() -> Any:
    """The Secrets Manager of moto, in the region of the scripted CloudFormation."""
    return boto3.client("secretsmanager", region_name=SCRIPTED)


OF_TABLE = re.compile(r"\Atable \w+, which A2A_TABLE names\n")


class Said(NamedTuple):
    """The exit code of a command, and what it has said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def jsons(self) -> list[Any]:
        """Of each line."""
        return [json.loads(line) for line in self.out.splitlines()]

    def refuses(self, *texts: str) -> None:
        """Check that one sentence has these texts, and that nothing else is said."""
        assert (self.code, self.out, self.err.count("\n")) == (2, "", 1), self
        for text in texts:
            assert text in self.err, self.err


Run = Callable[..., Said]


_parser = cache(cli._parser)  # it is a third of what a command costs here


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command; not in a test's event loop, because it has its own."""
    monkeypatch.setattr(cli, "_parser", _parser)

    def running(*arguments: str) -> Said:
        code = cli.main(arguments)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        # The line about the table of the environment: test_arguments.py shows when it comes.
        return Said(code, said.out, OF_TABLE.sub("", said.err))

    return running


def wait(awaitable: Any) -> Any:
    """Run to the end; a test of a command has no event loop."""
    return asyncio.run(awaitable)


def typing(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """A person at a terminal who answers this; the questions that are asked."""
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return answers[len(asked) - 1]

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    return asked


def queue_of(monkeypatch: pytest.MonkeyPatch, variable: str) -> str:
    """The URL of a queue that the environment names."""
    fifo = {"QueueName": f"{variable.lower()}.fifo", "Attributes": {"FifoQueue": "true"}}
    queue = aws.client("sqs").create_queue(**fifo)
    monkeypatch.setenv(variable, queue["QueueUrl"])
    return str(queue["QueueUrl"])


def send(url: str, *bodies: str, **more: Any) -> None:
    """Put messages on a queue."""
    for number, body in enumerate(bodies):
        ids = dict.fromkeys(("MessageGroupId", "MessageDeduplicationId"), str(number))
        aws.client("sqs").send_message(QueueUrl=url, MessageBody=body, **ids, **more)


def opened(storage: DurableStorage, task_id: str, context: str = "c") -> Head:
    """A task with its first message."""
    said = request("hi", message_id=task_id)
    head: Head = wait(storage.open_task(context, said, task_id=task_id)).head
    return head


def ended(storage: DurableStorage, head: Head, state: TaskState = FAILED) -> Head:
    """The task at its end."""
    after: Head = wait(storage.commit(head, to(state)))
    return after


def answering(outputs: dict[str, str] | None, **parameters: str) -> Stubber:
    """CloudFormation with one stack, or none."""
    stub = Stubber(aws.client("cloudformation"))
    if outputs is None:
        message = "Stack with id gone does not exist"
        stub.add_client_error("describe_stacks", "ValidationError", message)
        return stub
    stack = {
        "StackName": "mine",
        "CreationTime": datetime(2026, 11, 22, tzinfo=UTC),
        "StackStatus": "CREATE_COMPLETE",
        "Outputs": [{"OutputKey": key, "OutputValue": value} for key, value in outputs.items()],
        "Parameters": [{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()],
    }
    stub.add_response("describe_stacks", {"Stacks": [stack]}, {"StackName": "mine"})
    return stub

"""WorkerFunction, driven by the files in events/, over moto; and the agent that comes with it."""

import asyncio
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from a2a.types import Task, TaskState

from a2a_serverless import aws
from a2a_serverless.settings import load_settings
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends, aws_backends
from a2a_serverless_tools.local.provision import Names
from tests.support.handlers import ALL_DONE, LambdaContext, cold_start, event_file
from tests.support.messages import request, texts
from tests.support.present import present
from tests.support.simulation.sources import SqsSource
from tests.support.workers import status_text

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "functions" / "worker"
FUNCTION = "worker"


@pytest.fixture
def deployed(provisioned: Names, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("AGENT_CHUNK_DELAY_S", "0")
    return monkeypatch


@pytest.fixture
def function(deployed: pytest.MonkeyPatch, function: ModuleType) -> ModuleType:
    return function


def event(name: str, head: Head | None = None) -> dict[str, Any]:
    """An event as AWS sends it, about the task of `head`."""
    loaded = event_file(name)
    if head is not None:
        for record in loaded["Records"]:
            body = json.loads(record["body"])
            params = OperationParams.of(head, head.turn.number)
            record["body"] = json.dumps(body | {"params": params.model_dump()})
    return loaded


def send(backends: Backends, text: str) -> Head:
    return asyncio.run(backends.storage.open_task("ctx", request(text))).head


def task_of(backends: Backends, head: Head) -> Task:
    return present(asyncio.run(backends.storage.load_task(head.task_id)))


def deliverable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the event's made-up receipt pass: moto knows only receipts that it has given out."""

    async def extend(*_: object) -> None:
        return

    monkeypatch.setattr("a2a_serverless.queues.sqs._SqsHandle.extend", extend)


def test_the_turn_of_a_dead_worker_runs_from_the_quarantine(deployed: pytest.MonkeyPatch) -> None:
    """Where turns share workers it is sent there, and an event from there runs it."""
    for name, value in {"WORKER_TURNS": "5", "TURN_LIMIT_S": "60"}.items():
        deployed.setenv(f"A2A_{name}", value)
    function, backends = cold_start("worker"), aws_backends(load_settings())
    head = send(backends, "Two days in Oslo, please")
    asyncio.run(backends.storage.commit(head, Commit(token="dead", claims=True)))
    operation = Operation.to_run(OperationParams.of(head, head.turn.number))
    asyncio.run(backends.operations.send(operation))

    for queue in ("A2A_QUEUE", "A2A_QUARANTINE_QUEUE"):
        assert task_of(backends, head).status.state != TaskState.TASK_STATE_COMPLETED
        record = asyncio.run(SqsSource(os.environ[queue], wait_s=0).receive())
        answer = function.handler({"Records": [record]}, LambdaContext())
        assert answer == ALL_DONE

    assert task_of(backends, head).status.state == TaskState.TASK_STATE_COMPLETED
    function.function.close()


def test_a_delivery_of_the_event_source_is_kept_before_its_agent_starts(
    function: ModuleType, backends: Backends
) -> None:
    """Otherwise the turn of a worker that dies at once would wait for the queue's visibility."""
    head = send(backends, "Two days in Oslo, please")
    operation = Operation.to_run(OperationParams.of(head, head.turn.number))
    asyncio.run(backends.operations.send(operation))
    record = asyncio.run(SqsSource(os.environ["A2A_QUEUE"], wait_s=0).receive())
    kept: list[int] = []
    aws.client("sqs").meta.events.register(
        "provide-client-params.sqs.ChangeMessageVisibility",
        lambda params, **_: kept.append(params["VisibilityTimeout"]),
    )
    assert function.handler({"Records": [record]}, LambdaContext()) == ALL_DONE
    assert kept == [load_settings().visibility_s]


@pytest.mark.parametrize(("name", "state"), [("run", "COMPLETED"), ("cancel", "CANCELED")])
def test_an_event_is_done(
    function: ModuleType, backends: Backends, monkeypatch: pytest.MonkeyPatch, name: str, state: str
) -> None:
    """When its record is done the agent's answer is in the table, or its task is canceled."""
    deliverable(monkeypatch)
    head = send(backends, "Two days in Oslo, please")
    assert function.handler(event(f"worker-sqs-{name}", head), LambdaContext()) == ALL_DONE
    task = task_of(backends, head)
    assert TaskState.Name(task.status.state) == f"TASK_STATE_{state}"
    text = "".join(texts(task, "itinerary"))
    assert text.startswith("# Oslo in 2 days\n\nDay 1\n") is (name == "run")


def test_undecodable_records_fail(function: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    """A record that is no operation is logged, and reported failed; one of no task is done."""
    for name in ("worker-sqs-run", "worker-sqs-cancel"):
        assert function.handler(event(name), LambdaContext()) == ALL_DONE
    caplog.clear()
    undecodable = event("worker-sqs-undecodable")
    answer = function.handler(undecodable, LambdaContext())
    message_id = undecodable["Records"][0]["messageId"]
    assert answer == {"batchItemFailures": [{"itemIdentifier": message_id}]}
    assert [record.__dict__["action"] for record in caplog.records] == ["undecodable"]


KEYED = """
import os

from a2a_serverless.worker import TaskContext, Worker

KEY = os.environ["MODEL_KEY"]

class Keyed(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.respond(f"{len(KEY)} characters, {os.environ['REGION_OF_MODEL']}")

agent = Keyed()
"""


def test_the_agents_secret_is_there_before_its_import(
    deployed: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The variables of AgentSecretArn and AgentEnvironment are set when the agent is imported."""
    deliverable(deployed)
    (tmp_path / "keyed.py").write_text(KEYED)
    deployed.setenv("A2A_AGENT", str(tmp_path / "keyed.py:agent"))
    deployed.setenv("A2A_AGENT_SECRET", "agent-key")
    deployed.setenv("A2A_AGENT_ENVIRONMENT", "REGION_OF_MODEL=eu")
    for name in ("MODEL_KEY", "REGION_OF_MODEL"):
        deployed.setenv(name, "")  # to be put back after the test
        deployed.delenv(name)
    function = cold_start("worker")
    assert "MODEL_KEY" not in os.environ
    key = "sk-0123456789abcdef"
    stored = json.dumps({"MODEL_KEY": key})
    aws.client("secretsmanager").create_secret(Name="agent-key", SecretString=stored)
    backends = aws_backends(load_settings())
    head = send(backends, "Who are you?")

    answer = function.handler(event("worker-sqs-run", head), LambdaContext())
    function.function.close()

    assert answer == ALL_DONE
    task = task_of(backends, head)
    assert status_text(task) == f"{len(key)} characters, eu"
    reasons = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.__dict__["action"] for record in reasons] == ["agent_not_loaded"]
    assert "The secret agent-key cannot be read: ResourceNotFoundException." in caplog.text
    assert key not in caplog.text

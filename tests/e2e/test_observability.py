"""A task's life as an operator sees it, through the handlers of all functions."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_serverless import observability
from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_card
from a2a_serverless.http.function import lambda_handler
from a2a_serverless.observability import metrics
from a2a_serverless.observability.json_lines import _WITHHELD
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.agents import load_agent
from a2a_serverless.worker.function import WorkerFunction
from tests.e2e.commands import deployed, environment
from tests.e2e.conftest import AGENT, CARD
from tests.support.a2a_calls import Agent
from tests.support.gateway import rest_event
from tests.support.handlers import LambdaContext, cold_start, event_file
from tests.support.observed import (
    Line,
    Metrics,
    root_logger,
)
from tests.support.secrecy import spoken
from tests.support.simulation.simulated_aws import simulated_aws
from tests.support.simulation.sources import EventSource, SqsSource, TableSource
from tests.unit.push.receivers import OK, Receiver, status

FUNCTIONS = Path(__file__).parents[2] / "functions"
EVENT = event_file("api-rest-send-message")
EVENT["headers"] |= {"traceparent": "00-67891233abcdef012345678912345678-53995c3f42cd8ad8-01"}
ADDRESS = {"host", "x-forwarded-for", "x-forwarded-port", "x-forwarded-proto"}
"""Headers that `rest_event` makes itself: a second Host would be joined with the first one."""
CONTENT = ("Lisbon", "Alfama", "Belém", "hook-token", "hook-secret")
"""Words of the message, of the answer and of the push configuration."""

Handler = Callable[[dict[str, Any], Any], dict[str, Any]]


@dataclass
class Deployment:
    """The functions of a deployment, invoked one at a time."""

    api: Handler
    worker: Handler
    operations: EventSource
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    out: str = ""
    metrics: Metrics = field(default_factory=Metrics)
    lines: list[Line] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def invoke(self, handler: Handler, event: dict[str, Any]) -> dict[str, Any]:
        """Invoke a function as Lambda does, and read what it has printed."""
        number = next(self._numbers)
        answer = handler(event, LambdaContext(f"{number:08d}-0000"))
        printed = self.capsys.readouterr().out
        self.out += printed
        for line in map(json.loads, printed.splitlines()):
            (self.metrics.lines if "_aws" in line else self.lines).append(line)
        return answer

    def send(self, text: str, **configuration: Any) -> dict[str, Any]:
        """Send a message through the API; its task."""
        request = {
            "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]},
            "configuration": {"returnImmediately": True, **configuration},
        }
        event = EVENT | {"body": json.dumps(request)}
        answer = self.invoke(self.api, event)
        assert answer["statusCode"] == 200, answer
        task: dict[str, Any] = json.loads(answer["body"])["task"]
        return task

    def work(self, *, fails: bool = False) -> Line:
        """Pass the next operation to the worker; the record as SQS had it."""

        async def receive() -> Line:
            return dict(await anext(self.operations.records()))

        record = asyncio.run(receive())
        failures = [{"itemIdentifier": record["messageId"]}] if fails else []
        answer = self.invoke(self.worker, {"Records": [record]})
        assert answer == {"batchItemFailures": failures}
        return record

    def actions(self, **fields: object) -> list[str]:
        """The actions of the lines that have these fields, in order."""
        found = [line for line in self.lines if fields.items() <= line.items()]
        return [line["action"] for line in found]


TRACE = "67891233abcdef012345678912345678"
"""The trace that the client of `EVENT` names."""


@pytest.fixture
def lambda_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The variables that Lambda and template.yaml set for every function."""
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "observed")
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "agent")
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "A2AServerless")
    monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("AGENT_CHUNK_DELAY_S", "0")
    monkeypatch.setenv("A2A_AUTH", "none")
    with root_logger() as root:
        root.handlers.clear()
        # The root's level is not set here: pytest sets it anew for every phase of a test.
        logging.getLogger("a2a_serverless").setLevel(logging.DEBUG)
        logging.getLogger("agent").setLevel(logging.DEBUG)
        try:
            yield monkeypatch
        finally:
            metrics.stop()
            gc.unfreeze()  # what the handlers' starts have frozen


@pytest.fixture
def loop() -> Iterator[None]:
    """The event loop that Mangum finds in a Lambda environment."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield
    asyncio.set_event_loop(None)


@pytest.fixture
def on_aws(
    lambda_variables: pytest.MonkeyPatch, loop: None, capsys: pytest.CaptureFixture[str]
) -> Iterator[Deployment]:
    """The handlers in functions/, over a simulated AWS."""
    with simulated_aws() as made, ExitStack() as cleanup:
        for name, value in made.environment().items():
            lambda_variables.setenv(name, value)
        api, worker = (cold_start(name) for name in ("api", "worker"))
        cleanup.callback(worker.function.close)
        yield Deployment(
            api=api.handler,
            worker=worker.handler,
            operations=SqsSource(made.queue, wait_s=0),
            monkeypatch=lambda_variables,
            capsys=capsys,
        )


@pytest.fixture
def in_memory(
    lambda_variables: pytest.MonkeyPatch, loop: None, capsys: pytest.CaptureFixture[str]
) -> Iterator[Deployment]:
    """The same handlers over backends in memory."""
    observability.start()
    agent = load_agent(f"{FUNCTIONS}/worker/agent.py:agent")
    with in_memory_functions(agent, Settings(auth="none"), lambda_variables, capsys) as made:
        yield made


@contextmanager
def in_memory_functions(
    agent: AgentExecutor,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Deployment]:
    """A deployment of `agent` in this process."""
    backends = memory_backends(settings)
    assert isinstance(backends.operations, TableQueue)
    card = load_card(str(FUNCTIONS / "api" / "agent_card.json"))
    worker = WorkerFunction(backends, agent, settings)
    yield Deployment(
        api=lambda_handler(create_app(settings, backends, card)),
        worker=worker.handle,
        operations=TableSource(backends.operations),
        monkeypatch=monkeypatch,
        capsys=capsys,
    )
    worker.close()


@pytest.mark.parametrize("made", ["in_memory", "on_aws"])
def test_the_log_of_one_tasks_life(made: str, request: pytest.FixtureRequest) -> None:
    """One search for a task's id finds its way through the functions, step by step."""
    deployment: Deployment = request.getfixturevalue(made)
    task = deployment.send("Two days in Lisbon")
    deployment.work()

    assert deployment.actions(task_id=task["id"]) == ["send_turn", "attempt", "turn_ended"]
    sent, begun, ended = (line for line in deployment.lines if line.get("task_id") == task["id"])
    for line in (sent, begun, ended):
        assert (line["service"], line["level"]) == ("agent", "INFO")
        assert line["context_id"] == task["contextId"]
        assert line["turn"] == 1
        assert line["trace_id"] == TRACE
    assert [line["request_id"] for line in (sent, begun, ended)] == [
        "00000001-0000",
        "00000002-0000",
        "00000002-0000",
    ]
    assert begun["attempt"] == ended["attempt"] == 1
    assert ended["state"] == "completed"
    assert [word for word in CONTENT if word in deployment.out] == []


def test_the_metrics_of_one_tasks_life(in_memory: Deployment) -> None:
    """Accepted, queued, attempted, ended: each is counted once, by the function that sees it."""
    in_memory.send("Two days in Lisbon")
    in_memory.work()

    seen = in_memory.metrics
    counts = {name: seen.values(name) for name in ("TurnsAccepted", "Attempts")}
    assert counts == {"TurnsAccepted": [1.0], "Attempts": [1.0]}
    assert seen.values("TasksEnded", state="completed") == [1.0]
    (queued_ms,), (to_end_ms,) = seen.values("TimeQueued"), seen.values("TimeToEnd")
    assert 0 <= queued_ms <= to_end_ms < 60_000
    assert seen.values("FencedWrites") == seen.values("Retries") == []


PROBED = ("the patient is Ada", "You said", "What exactly", "the answer is Bob", "hook-")
"""Words of messages, of the probe's answers and of a push configuration."""


@pytest.mark.emulators
async def test_what_processes_say_of_a_task(own_queues: dict[str, str], tmp_path: Path) -> None:
    """`api`, `worker` and `push` tell on a terminal what they do, and not what a task is about."""
    env = environment(
        **own_queues,
        A2A_AUTH="none",
        A2A_PUSH_ALLOWED_HOSTS="127.0.0.1",
        A2A_PUSH_RETRY_BASE_S="0.05",
        PROBE_FOLDER=str(tmp_path),
    )
    answers = iter([status(503)])
    verbose = {
        "api": ("-v", "--card", CARD, "--port", "0"),
        "worker": ("-v", "--agent", AGENT),
        "push": ("-v",),
    }
    with (
        Receiver(lambda _: next(answers, OK)) as receiver,
        deployed(env, tmp_path, **verbose) as started,
    ):
        configuration = {
            "url": receiver.url(path="/hook-path"),
            "token": "hook-token",
            "authentication": {"scheme": "Bearer", "credentials": "hook-secret"},
        }
        hook = {"taskPushNotificationConfig": configuration}
        async with httpx.AsyncClient(base_url=started.url, trust_env=False, timeout=60) as http:
            agent = Agent(http)
            sent = await agent.send(PROBED[0], messageId="1", configuration=hook)
            asked = await agent.send("ask", messageId="2")
            ids = {"taskId": asked.task["id"], "contextId": asked.task["contextId"]}
            answered = await agent.send(PROBED[3], messageId="3", **ids)
        states = [sent.state, asked.state, answered.state]
        assert states == ["COMPLETED", "INPUT_REQUIRED", "COMPLETED"]
        started.commands["push"].wait_for("Receiver told")
        started.end()
    said = {name: command.said() for name, command in started.commands.items()}
    of_turn = f"; task {sent.task['id']}; turn 1; "
    assert f"turn sent{of_turn}" in said["api"]
    assert f"Turn ended{of_turn}attempt 1; attempts 1; state completed" in said["worker"]
    assert re.search(f"Receiver not told{of_turn}attempt 1; webhook .*; reason ", said["push"])
    assert [spoken(text, PROBED) for text in said.values()] == [[]] * 3


def test_a_pause_is_no_end(in_memory: Deployment) -> None:
    """A task that asks back has ended a turn, and is neither ended nor queued any more."""
    in_memory.send("A journey, please")
    in_memory.work()
    (ended,) = (line for line in in_memory.lines if line.get("action") == "turn_ended")
    assert ended["state"] == "input_required"
    assert in_memory.metrics.values("TimeToEnd") == []


def test_a_refused_request_is_counted_by_its_reason(in_memory: Deployment) -> None:
    """A refusal is logged and counted once, by the protocol's error, without the client's words."""
    refused = {
        "/tasks/no-such-task-Lisbon": "TaskNotFound",
        "/tasks?status=LISBON": "InvalidParams",
    }
    for target, reason in refused.items():
        sent = {n: v for n, v in EVENT["headers"].items() if n.lower() not in ADDRESS}
        event = rest_event("GET", target, None, sent)
        assert in_memory.invoke(in_memory.api, event)["statusCode"] >= 400
        assert in_memory.metrics.values("RequestsRefused", reason=reason) == [1.0]
    assert "lisbon" not in in_memory.out.lower()
    said = [line for line in in_memory.lines if line.get("action") == "refused"]
    assert [line["reason"] for line in said] == list(refused.values())
    # Once: the SDK's own lines about it stay away.
    assert [line for line in in_memory.lines if line.get("level") in {"WARNING", "ERROR"}] == []


class Indiscreet(AgentExecutor):
    """Raises the user's words."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        logging.getLogger("agent").info("about to fail")
        raise ValueError(context.get_user_input())

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


def test_an_agents_exception_is_logged_without_its_text(
    lambda_variables: pytest.MonkeyPatch, loop: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Type, frames and the client's correlation id are in the log; what the text quotes is not."""
    settings = Settings(auth="none", max_attempts=2, retry_base_s=0.001)
    observability.start()
    with in_memory_functions(Indiscreet(), settings, lambda_variables, capsys) as deployment:
        task = deployment.send("Two days in Lisbon")
        deployment.work(fails=True)
        deployment.work()

    attempts = [line for line in deployment.lines if line["message"] == "about to fail"]
    assert [line["attempt"] for line in attempts] == [1, 2]
    assert {line["task_id"] for line in attempts} == {task["id"]}
    (gave_up,) = (line for line in deployment.lines if line.get("action") == "gave_up")
    assert re.fullmatch("[0-9a-f]{16}", gave_up["correlation_id"])
    assert f"ValueError: {_WITHHELD}" in gave_up["exception"]
    assert "in execute" in gave_up["exception"]
    assert deployment.metrics.total("Retries") == 1
    assert deployment.metrics.total("Attempts") == 2
    assert deployment.metrics.values("TasksEnded", state="failed") == [1.0]
    assert len(deployment.metrics.values("TimeQueued")) == 1
    assert [word for word in CONTENT if word in deployment.out] == []

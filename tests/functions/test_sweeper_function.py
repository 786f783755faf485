"""SweeperFunction, driven by the files in events/, over moto."""

from __future__ import annotations

import json
import uuid
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from a2a.types import TaskState
from moto import mock_aws

import sweeper
from a2a_serverless import aws
from a2a_serverless.broker.base import operation_of
from a2a_serverless.errors import ConfigurationError, InvalidArgumentError
from a2a_serverless.local.emulators import CREDENTIALS
from a2a_serverless.local.provision import Names, Provisioned, provision
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.operations import OperationParams
from a2a_serverless.wiring import Backends
from tests.clocks import ManualClock
from tests.messages import message, request

EVENTS = Path(__file__).parents[2] / "events"


def event(name: str) -> dict[str, Any]:
    """An event as AWS sends it."""
    loaded: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return loaded


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The handler's module as a fresh process has it, without settings."""
    for name in ("A2A_TABLE", "A2A_QUEUE", "A2A_UNDECODABLE_QUEUE"):
        monkeypatch.delenv(name, raising=False)
    yield sweeper
    sweeper._loop().close()
    sweeper._loop.cache_clear()
    sweeper._backends.cache_clear()
    aws.forget_clients()


@pytest.fixture
def deployed(function: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provisioned]:
    """Table and queues on moto, and the settings that name them."""
    assert function is sweeper
    with mock_aws():
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        aws.forget_clients()
        names = Names.with_prefix(uuid.uuid4().hex[:8])
        stack = provision(aws.client("dynamodb"), aws.client("sqs"), names=names, stream=False)
        for name, value in stack.environment().items():
            monkeypatch.setenv(name, value)
        yield stack


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run in the function's own loop, between its invocations."""
    return sweeper._loop().run_until_complete(coroutine)


def backends() -> Backends:
    """What the function works on."""
    return sweeper._backends()


def open_task() -> Head:
    """A task whose message was never sent."""
    head: Head = run(backends().storage.open_task("context", request())).head
    return head


def state_of(head: Head) -> TaskState:
    """The task's state now."""
    current: Head = run(backends().storage.head(head.task_id))
    return current.state


def record_of(body: str, *, group: str = "group", message_id: str = "") -> dict[str, Any]:
    """A record like that of events/sweeper-dead-letter.json."""
    record: dict[str, Any] = event("sweeper-dead-letter")["Records"][0]
    record["attributes"]["MessageGroupId"] = group
    return record | {"body": body, "messageId": message_id or uuid.uuid4().hex}


def dead(head: Head, **options: Any) -> dict[str, Any]:
    """The dead letter of a task's turn."""
    params = OperationParams(
        scope=head.scope, task_id=head.task_id, incarnation=head.incarnation, turn=head.turn
    )
    return record_of(operation_of("run", params).model_dump_json(), **options)


def test_a_schedule_event_sweeps(deployed: Provisioned, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overdue turn is sent to the operations queue, and the counts are returned."""
    clock = ManualClock()
    monkeypatch.setattr(backends().storage, "clock", clock)
    head = open_task()
    clock.advance(61)
    assert sweeper.handler(event("sweeper-schedule"), None) == {
        "sent": 1,
        "passed": 0,
        "canceled": 0,
        "removed": 0,
        "failed": 0,
    }
    answer = aws.client("sqs").receive_message(QueueUrl=deployed.queue)
    assert json.loads(answer["Messages"][0]["Body"])["params"]["task_id"] == head.task_id


def test_an_idle_schedule_event_does_nothing(deployed: Provisioned) -> None:
    """Most runs find nothing; the loop serves the next one as well."""
    for _ in range(3):
        assert set(sweeper.handler(event("sweeper-schedule"), None).values()) == {0}
    assert "Messages" not in aws.client("sqs").receive_message(QueueUrl=deployed.queue)


@pytest.mark.usefixtures("deployed")
def test_a_dead_letter_of_no_task_is_dropped() -> None:
    """The operation in the event file is about a task that is gone: the message may be deleted."""
    assert sweeper.handler(event("sweeper-dead-letter"), None) == {"batchItemFailures": []}


@pytest.mark.usefixtures("deployed")
def test_a_dead_letter_fails_its_task() -> None:
    """The task ends, and no record is kept."""
    head = open_task()
    assert sweeper.handler({"Records": [dead(head)]}, None) == {"batchItemFailures": []}
    assert state_of(head) == TaskState.TASK_STATE_FAILED


def test_an_undecodable_dead_letter_is_moved(deployed: Provisioned) -> None:
    """It goes to the queue without consumer, and the other records of the batch are handled."""
    head = open_task()
    poison = event("worker-sqs-undecodable")["Records"][0]
    assert sweeper.handler({"Records": [poison, dead(head)]}, None) == {"batchItemFailures": []}
    assert state_of(head) == TaskState.TASK_STATE_FAILED
    answer = aws.client("sqs").receive_message(QueueUrl=deployed.undecodable_queue)
    assert answer["Messages"][0]["Body"] == poison["body"]


def test_a_failure_keeps_the_rest_of_its_group(
    deployed: Provisioned, caplog: pytest.LogCaptureFixture
) -> None:
    """From the failed record on its group stays in the queue, in order; other groups are done."""
    aws.client("sqs").delete_queue(QueueUrl=deployed.undecodable_queue)
    first, behind, other = open_task(), open_task(), open_task()
    records = [
        dead(first, group="a", message_id="a1"),
        record_of("poison", group="a", message_id="a2"),
        dead(other, group="b", message_id="b1"),
        dead(behind, group="a", message_id="a3"),
    ]
    assert sweeper.handler({"Records": records}, None) == {
        "batchItemFailures": [{"itemIdentifier": "a2"}, {"itemIdentifier": "a3"}]
    }
    assert [state_of(head) for head in (first, other, behind)] == [
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_SUBMITTED,
    ]
    (logged,) = [r for r in caplog.records if getattr(r, "action", "") == "dead_letter_error"]
    assert logged.__dict__["message_id"] == "a2"


@pytest.mark.usefixtures("deployed")
def test_an_overdue_cancel_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule event finishes the cancel of an API process that died."""
    clock = ManualClock()
    monkeypatch.setattr(backends().storage, "clock", clock)
    monkeypatch.setattr(backends().registry, "_clock", clock)
    head: Head = run(backends().storage.open_task("context", request(str(message())))).head
    run(backends().registry.request_cancel(head.task_id))
    clock.advance(11)
    assert sweeper.handler(event("sweeper-schedule"), None)["canceled"] == 1
    assert state_of(head) == TaskState.TASK_STATE_CANCELED


@pytest.mark.usefixtures("deployed")
def test_an_event_of_another_source_is_refused() -> None:
    """What nobody meant to send here is an error, not a sweep."""
    with pytest.raises(InvalidArgumentError):
        sweeper.handler({"source": "aws.s3"}, None)


@pytest.mark.parametrize("name", ["sweeper-schedule", "sweeper-dead-letter"])
def test_missing_settings_are_named(function: ModuleType, name: str) -> None:
    """Without a table the invocation fails with one sentence that names the variable."""
    with pytest.raises(ConfigurationError, match=r"^A2A_TABLE is not set"):
        function.handler(event(name), None)

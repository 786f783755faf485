"""SweeperFunction, driven by the files in events/, over moto."""

import json
from collections.abc import Coroutine
from types import ModuleType
from typing import Any

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState

from a2a_serverless import aws
from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.tasks.head import Head, Operation, OperationParams
from a2a_serverless.tasks.push import LONG_WAIT_MS
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.local.provision import Names
from tests.support.clocks import ManualClock
from tests.support.handlers import ALL_DONE, cold_start, event_file
from tests.support.messages import request

FUNCTION = "sweeper"


def run(function: ModuleType, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run in the function's own loop, between its invocations."""
    return function.function._loop.run_until_complete(coroutine)


def open_task(function: ModuleType) -> Head:
    """A task whose message was never sent."""
    head: Head = run(function, function.backends.storage.open_task("context", request())).head
    return head


def used_up(function: ModuleType) -> Head:
    """A task whose turn has had all its attempts."""
    head = open_task(function)
    for attempt in range(function.settings.max_attempts):
        claim = Commit(token=f"attempt-{attempt}", claims=True)
        head = run(function, function.backends.storage.commit(head, claim))
    return head


def dead(head: Head) -> dict[str, Any]:
    """The dead letter of a task's turn."""
    operation = Operation.to_run(OperationParams.of(head, head.turn.number))
    record: dict[str, Any] = event_file("sweeper-dead-letter")["Records"][0]
    return record | {"body": operation.model_dump_json(), "messageId": "of-the-task"}


def test_a_schedule_event_wakes_webhooks(
    function: ModuleType, provisioned: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of a webhook whose wait is over is sent to the push queue."""
    clock, storage = ManualClock(), function.backends.storage
    monkeypatch.setattr(storage, "clock", clock)
    hook = TaskPushNotificationConfig(id="mine", url="https://receiver.example/hook")
    head = run(function, storage.open_task("context", request(), push=hook)).head
    push = run(function, storage.webhooks.get(head.task_id, "mine"))
    now_ms = clock.now_ms()
    waiting = push.answered("status 503", now_ms, next_at=now_ms + LONG_WAIT_MS)
    assert run(function, storage.webhooks.move(push, waiting))
    clock.advance(LONG_WAIT_MS / 1000)
    assert function.handler(event_file("sweeper-schedule"), None)["pushed"] == 1
    (sent,) = aws.client("sqs").receive_message(QueueUrl=provisioned.push_queue)["Messages"]
    assert PushJob.model_validate_json(sent["Body"]).config_id == "mine"


def test_a_schedule_event_sweeps(
    function: ModuleType, provisioned: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overdue turn is sent to the operations queue, and the counts are returned."""
    clock = ManualClock()
    monkeypatch.setattr(function.backends.storage, "clock", clock)
    head = open_task(function)
    clock.advance(61)
    counts = function.handler(event_file("sweeper-schedule"), None)
    assert {name: count for name, count in counts.items() if count} == {"sent": 1}
    assert counts.keys() > {"requeued", "passed", "given_up", "canceled", "failed", "pushed"}
    answer = aws.client("sqs").receive_message(QueueUrl=provisioned.queue)
    assert json.loads(answer["Messages"][0]["Body"])["params"]["task_id"] == head.task_id


def test_a_dead_letter_of_no_task_is_dropped(function: ModuleType) -> None:
    """The operation in the event file is about a task that is gone: the message may be deleted."""
    assert function.handler(event_file("sweeper-dead-letter"), None) == ALL_DONE


def test_a_setting_gives_a_turn_up(provisioned: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `A2A_GIVE_UP_HOURS` without a claim its task fails, with these hours in the reason."""
    monkeypatch.setenv("A2A_GIVE_UP_HOURS", "1")
    function = cold_start("sweeper")
    clock = ManualClock()
    monkeypatch.setattr(function.backends.storage, "clock", clock)
    head = open_task(function)
    clock.advance(3600)
    assert function.handler(event_file("sweeper-schedule"), None)["given_up"] == 1
    task = run(function, function.backends.storage.load_task(head.task_id))
    assert task.status.state == TaskState.TASK_STATE_FAILED
    assert "within 1 hour," in task.status.message.parts[0].text
    function.function.close()


def test_an_undecodable_dead_letter_is_moved(function: ModuleType, provisioned: Names) -> None:
    """An undecodable message goes to the queue without consumer; other records are handled."""
    head = used_up(function)
    poison = event_file("worker-sqs-undecodable")["Records"][0]
    assert function.handler({"Records": [poison, dead(head)]}, None) == ALL_DONE
    head = run(function, function.backends.storage.head(head.task_id))
    assert head.state == TaskState.TASK_STATE_FAILED
    answer = aws.client("sqs").receive_message(QueueUrl=provisioned.undecodable_queue)
    assert answer["Messages"][0]["Body"] == poison["body"]


def test_an_event_of_another_source_is_refused(function: ModuleType) -> None:
    """An event of another source raises InvalidArgumentError."""
    with pytest.raises(InvalidArgumentError):
        function.handler({"source": "aws.s3"}, None)

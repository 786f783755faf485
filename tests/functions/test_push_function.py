"""PushFunction, driven by the files in events/, over moto and a webhook on this machine."""

import asyncio
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState

from a2a_serverless import aws
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.push.signing import _signing_key
from a2a_serverless.tasks.head import Head
from a2a_serverless.wiring import Backends
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.local.provision import Names
from tests.support.handlers import ALL_DONE, LambdaContext, event_file
from tests.support.messages import request
from tests.support.present import present
from tests.support.simulation.sources import SqsSource
from tests.unit.push.receivers import Receiver, status

FUNCTION = "push"
SECRET = "k" * 64


@pytest.fixture
def provisioned(provisioned: Names, monkeypatch: pytest.MonkeyPatch) -> Names:
    """Beside it the secret with which notifications are signed."""
    secret = aws.client("secretsmanager").create_secret(Name="signing", SecretString=SECRET)
    monkeypatch.setenv("A2A_PUSH_SIGNING_SECRET", secret["ARN"])
    monkeypatch.setenv("A2A_PUSH_ALLOWED_HOSTS", "127.0.0.1")
    monkeypatch.setenv("A2A_PUSH_ISSUER", "https://agent.example.com")
    return provisioned


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening


def ended_task(backends: Backends, receiver: Receiver) -> Head:
    """A completed task of whose end its receiver has not been told."""
    config = TaskPushNotificationConfig(id="mine", url=receiver.url())
    completed = TaskState.TASK_STATE_COMPLETED

    async def end() -> Head:
        opened = await backends.storage.open_task("context", request(), push=config)
        await Storage(backends.storage).update_task(opened.head.task_id, completed)
        return present(await backends.storage.head(opened.head.task_id))

    return asyncio.run(end())


def committed(head: Head) -> dict[str, Any]:
    """The stream's event about the end of a task."""
    told = event_file("push-dynamodb-commit")
    change = told["Records"][0]["dynamodb"]
    keys = {
        "PK": {"S": f"TASK#{head.scope}#{head.task_id}"},
        "SK": {"S": f"EVENT#{head.incarnation}#{head.version:012d}#000"},
    }
    change["Keys"] = keys
    change["NewImage"] |= keys
    return told


def next_job(provisioned: Names) -> dict[str, Any]:
    """The event of the push queue's next message."""
    source = SqsSource(provisioned.push_queue, wait_s=0)
    return {"Records": [present(asyncio.run(source.receive()))]}


def messages(queue: str) -> list[str]:
    answer = aws.client("sqs").receive_message(QueueUrl=queue, MaxNumberOfMessages=10)
    return [message["Body"] for message in answer.get("Messages", [])]


def cursor(backends: Backends, head: Head) -> int:
    """Up to which version the receiver has been told."""
    return present(asyncio.run(backends.storage.webhooks.get(head.task_id, "mine"))).version


def test_a_commit_becomes_a_job(
    function: ModuleType, backends: Backends, provisioned: Names, receiver: Receiver
) -> None:
    """The stream's record puts ids on the queue, in the form of the event file, and no content."""
    head = ended_task(backends, receiver)
    assert function.handler(committed(head), LambdaContext()) == ALL_DONE

    (body,) = messages(provisioned.push_queue)
    recorded = json.loads(event_file("push-sqs-job")["Records"][0]["body"])
    assert json.loads(body).keys() == recorded.keys()
    names = ("scope", "task_id", "incarnation", "version")
    ids: dict[str, Any] = {name: getattr(head, name) for name in names}
    assert PushJob.model_validate_json(body) == PushJob(config_id="mine", **ids)
    assert receiver.requests == []


def test_a_job_tells_the_webhook(
    function: ModuleType, backends: Backends, provisioned: Names, receiver: Receiver
) -> None:
    """The webhook is told of the end, signed by the secret's key, which is published."""
    head = ended_task(backends, receiver)
    function.handler(committed(head), LambdaContext())
    assert function.handler(next_job(provisioned), LambdaContext()) == ALL_DONE

    (told,) = receiver.requests
    assert told.state == "COMPLETED"
    assert cursor(backends, head) == head.version
    published = asyncio.run(backends.pushing().keys.jwks())
    assert [key["kid"] for key in published["keys"]] == [_signing_key(SECRET).kid]


def test_a_job_comes_again_while_the_webhook_fails(
    function: ModuleType, backends: Backends, provisioned: Names, receiver: Receiver
) -> None:
    """The record is reported as failed, hidden for a while, and the cursor stays."""
    receiver.script = lambda _: status(503, Retry_After="59")
    head = ended_task(backends, receiver)
    function.handler(committed(head), LambdaContext())
    job = next_job(provisioned)
    failed = [{"itemIdentifier": job["Records"][0]["messageId"]}]
    assert function.handler(job, LambdaContext()) == {"batchItemFailures": failed}
    assert cursor(backends, head) < head.version
    assert messages(provisioned.push_queue) == []


def test_what_is_gone_is_done(function: ModuleType, provisioned: Names) -> None:
    """The task of the event files does not exist: no job, no request, and nothing to repeat."""
    assert function.handler(event_file("push-dynamodb-commit"), LambdaContext()) == ALL_DONE
    assert function.handler(event_file("push-sqs-job"), LambdaContext()) == ALL_DONE
    assert messages(provisioned.push_queue) == []


def test_a_message_that_is_no_job_is_kept(function: ModuleType, provisioned: Names) -> None:
    """A message that is no job leaves the queue and is kept in the dead letter queue."""
    undecodable = event_file("push-sqs-undecodable")
    assert function.handler(undecodable, LambdaContext()) == ALL_DONE
    assert messages(provisioned.push_dead_letter_queue) == [undecodable["Records"][0]["body"]]

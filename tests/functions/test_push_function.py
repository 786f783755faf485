"""PushFunction, driven by the files in events/, over moto and a webhook on this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from a2a.types import (
    Message,
    Part,
    Role,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.push.jobs import PushJob
from a2a_serverless.push.signing import _signing_key
from a2a_serverless.settings import load_settings
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends, aws_backends
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.local.provision import Names
from tests.support.handlers import ALL_DONE, LambdaContext, cold_start, event_file
from tests.support.messages import request
from tests.support.simulation.simulated_aws import simulated_aws
from tests.support.simulation.sources import SqsSource
from tests.unit.push.receivers import Receiver, status

SECRET = "k" * 64


@pytest.fixture
def provisioned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """The variables of template.yaml, over a simulated AWS with a secret."""
    with simulated_aws() as made:
        for name, value in made.environment().items():
            monkeypatch.setenv(name, value)
        secret = aws.client("secretsmanager").create_secret(Name="signing", SecretString=SECRET)
        monkeypatch.setenv("A2A_PUSH_SIGNING_SECRET", secret["ARN"])
        monkeypatch.setenv("A2A_PUSH_ALLOWED_HOSTS", "127.0.0.1")
        monkeypatch.setenv("A2A_PUSH_ISSUER", "https://agent.example.com")
        yield made


@pytest.fixture
def function(provisioned: Names) -> Iterator[ModuleType]:
    """The handler's module after its cold start."""
    assert provisioned is not None
    module = cold_start("push")
    yield module
    module.function.close()


@pytest.fixture
def backends(function: ModuleType) -> Backends:
    """The backends that the function works on."""
    assert function is not None
    return aws_backends(load_settings())


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A webhook that answers 200."""
    with Receiver() as listening:
        yield listening


def ended_task(backends: Backends, receiver: Receiver | str) -> Head:
    """A completed task of whose end no receiver, or its URL, has been told."""
    url = receiver if isinstance(receiver, str) else receiver.url()
    config = TaskPushNotificationConfig(id="mine", url=url)

    async def end() -> Head:
        opened = await backends.storage.open_task("context", request(), push=config)
        await Storage(backends.storage).update_task(
            opened.head.task_id, TaskState.TASK_STATE_COMPLETED
        )
        head = await backends.storage.head(opened.head.task_id)
        assert head is not None
        return head

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
    record = asyncio.run(SqsSource(provisioned.push_queue, wait_s=0).receive())
    assert record is not None
    return {"Records": [record]}


def messages(queue: str) -> list[str]:
    """The bodies that a queue holds."""
    answer = aws.client("sqs").receive_message(QueueUrl=queue, MaxNumberOfMessages=10)
    return [message["Body"] for message in answer.get("Messages", [])]


def cursor(backends: Backends, head: Head) -> int:
    """Up to which version the receiver has been told."""
    push = asyncio.run(backends.storage.webhooks.get(head.task_id, "mine"))
    assert push is not None
    return push.version


def test_a_commit_becomes_a_job(
    function: ModuleType, backends: Backends, provisioned: Names, receiver: Receiver
) -> None:
    """The stream's record puts ids on the queue, in the form of the event file, and no content."""
    head = ended_task(backends, receiver)
    assert function.handler(committed(head), LambdaContext()) == ALL_DONE

    (body,) = messages(provisioned.push_queue)
    recorded = json.loads(event_file("push-sqs-job")["Records"][0]["body"])
    assert json.loads(body).keys() == recorded.keys()
    assert PushJob.model_validate_json(body) == PushJob(
        scope=head.scope,
        task_id=head.task_id,
        incarnation=head.incarnation,
        config_id="mine",
        version=head.version,
    )
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


def test_a_webhook_gets_long_texts_and_links(
    function: ModuleType, backends: Backends, provisioned: Names, receiver: Receiver
) -> None:
    """The text of a status comes whole out of the bucket, and its file as a new link."""
    storage, text = backends.storage, "long " * 20_000
    config = TaskPushNotificationConfig(id="mine", url=receiver.url())
    head = asyncio.run(storage.open_task("context", request(), push=config)).head
    said = Message(
        message_id="m",
        role=Role.ROLE_AGENT,
        parts=[Part(text=text), Part(raw=b"x" * 300_000, media_type="image/png")],
    )
    ended = StatusChanged(TaskStatus(state=TaskState.TASK_STATE_COMPLETED, message=said))
    head = asyncio.run(storage.commit(head, Commit(entries=(ended,), ends_turn=True)))
    function.handler(committed(head), LambdaContext())
    assert function.handler(next_job(provisioned), LambdaContext()) == ALL_DONE
    (told,) = receiver.requests
    long, linked = json.loads(told.body)["statusUpdate"]["status"]["message"]["parts"]
    assert long["text"] == text
    assert "X-Amz-Signature=" in linked["url"]


def test_a_job_comes_again_while_the_webhook_fails(
    function: ModuleType, backends: Backends, provisioned: Names, receiver: Receiver
) -> None:
    """The record is reported as failed, hidden for a while, and the cursor stays."""
    receiver.script = lambda _: status(503, Retry_After="59")
    head = ended_task(backends, receiver)
    function.handler(committed(head), LambdaContext())
    job = next_job(provisioned)
    assert function.handler(job, LambdaContext()) == {
        "batchItemFailures": [{"itemIdentifier": job["Records"][0]["messageId"]}]
    }
    assert cursor(backends, head) < head.version
    assert messages(provisioned.push_queue) == []


def test_a_receiver_that_is_not_listed_is_looked_up(
    function: ModuleType, backends: Backends, provisioned: Names
) -> None:
    """One request reads its consent and its host; one at a private address is given up."""
    head = ended_task(backends, "https://10.1.2.3/hook")
    function.handler(committed(head), LambdaContext())
    assert function.handler(next_job(provisioned), LambdaContext()) == ALL_DONE
    assert cursor(backends, head) == head.version
    items = aws.client("dynamodb").scan(TableName=provisioned.table)["Items"]
    assert [item["SK"]["S"] for item in items if item["PK"]["S"].startswith("HOOK#")] == ["CONSENT"]


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


@pytest.mark.parametrize("name", ["A2A_PUSH_QUEUE", "A2A_PUSH_DEAD_LETTER_QUEUE"])
def test_a_missing_queue_is_named(
    provisioned: Names, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without its queues the function does not start, and says which variable is missing."""
    assert provisioned.push_queue
    monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match=rf"^{name} is not set: it names [^.]+\.$"):
        cold_start("push")

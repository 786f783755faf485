"""The queue of wakes, in memory and on SQS."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from moto import mock_aws

from a2a_serverless.errors import ConfigurationError, UndecodableOperationError
from a2a_serverless.local.emulators import CREDENTIALS, REGION
from a2a_serverless.push.memory_wakes import MemoryPushQueue
from a2a_serverless.push.sqs_wakes import SqsPushQueue
from a2a_serverless.push.wakes import PushLetter, PushQueue, PushWake
from tests.clocks import ManualClock

TRACE = {"x-amzn-trace-id": "Root=1-67891233-abcdef012345678912345678;Sampled=1"}
FIFO = {"FifoQueue": "true", "VisibilityTimeout": "60"}


def wake(config_id: str = "hook", version: int = 1, **fields: Any) -> PushWake:
    given = {"scope": "s", "task_id": "t", "incarnation": "i", **fields}
    return PushWake(config_id=config_id, version=version, **given)


LETTER = PushLetter(
    wake=wake(),
    event_id="event",
    version=1,
    index=0,
    reason="status 404",
    attempts=1,
    failing_since=None,
)


@dataclass
class Queues:
    """Two FIFO queues, and what Lambda's event source does with one."""

    client: Any
    wakes: str
    dead: str

    def queue(self, **options: Any) -> SqsPushQueue:
        return SqsPushQueue(self.wakes, dead_letter_queue=self.dead, client=self.client, **options)

    def take(self, url: str | None = None) -> list[dict[str, Any]]:
        """The next delivery, as a record."""
        answer = self.client.receive_message(
            QueueUrl=url or self.wakes,
            MaxNumberOfMessages=1,
            MessageSystemAttributeNames=["All"],
        )
        return [
            {
                "messageId": message["MessageId"],
                "receiptHandle": message["ReceiptHandle"],
                "body": message["Body"],
                "attributes": message["Attributes"],
            }
            for message in answer.get("Messages", [])
        ]


def create(client: Any) -> Queues:
    names = [f"{uuid.uuid4().hex[:12]}-{name}.fifo" for name in ("wakes", "dead")]
    urls = [client.create_queue(QueueName=name, Attributes=FIFO)["QueueUrl"] for name in names]
    return Queues(client, *urls)


@pytest.fixture(params=["moto", pytest.param("fauxqs", marks=pytest.mark.emulators)])
def queues(request: pytest.FixtureRequest) -> Iterator[Queues]:
    """Queues on moto and on the emulator."""
    if request.param == "fauxqs":
        client = request.getfixturevalue("fauxqs").client(read_timeout=30)
        yield create(client)
        client.close()
        return
    with mock_aws():
        yield create(
            boto3.client(
                "sqs",
                region_name=REGION,
                aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
                aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            )
        )


async def test_a_wake_arrives_as_it_was_sent(queues: Queues) -> None:
    """In its configuration's group; to acknowledge it is the event source's part."""
    queue = queues.queue()
    await queue.check()
    sent = wake(trace=TRACE)
    await queue.send(sent)
    [record] = queues.take()
    handle = queue.decode_record(record)
    assert (handle.wake, handle.attempt) == (sent, 1)
    assert record["attributes"]["MessageGroupId"] == sent.group
    await handle.ack()
    assert queues.client.get_queue_attributes(
        QueueUrl=queues.wakes, AttributeNames=["ApproximateNumberOfMessagesNotVisible"]
    )["Attributes"] == {"ApproximateNumberOfMessagesNotVisible": "1"}


@pytest.mark.parametrize("queues", ["moto"], indirect=True)
async def test_a_trace_is_where_sqs_looks_for_one(queues: Queues) -> None:
    """So that the consumer's own trace is linked to that of the commit."""
    await queues.queue().send(wake(trace=TRACE))
    [record] = queues.take()
    assert record["attributes"]["AWSTraceHeader"] == TRACE["x-amzn-trace-id"]


async def test_a_wake_that_is_given_back_holds_up_its_group_alone(queues: Queues) -> None:
    """Its configuration's later wakes wait for it; others do not."""
    queue = queues.queue()
    await queue.send(wake("slow", 1))
    await queue.send(wake("slow", 2))
    [record] = queues.take()
    await queue.decode_record(record).nack(delay_s=30.2)
    await queue.send(wake("quick", 1))
    [other] = queues.take()
    assert queue.decode_record(other).wake == wake("quick", 1)
    await queue.decode_record(record).nack(delay_s=0)
    [again] = queues.take()
    handle = queue.decode_record(again)
    assert (handle.wake, handle.attempt) == (wake("slow", 1), 2)


async def test_a_delivery_that_has_expired_is_not_given_back(
    queues: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    """It is somebody else's by now, and comes again by itself."""
    queue = queues.queue()
    await queue.send(wake())
    [record] = queues.take()
    queues.client.delete_message(QueueUrl=queues.wakes, ReceiptHandle=record["receiptHandle"])
    stale = {**record, "receiptHandle": "nonsense"}
    with caplog.at_level(logging.WARNING):
        await queue.decode_record(stale).nack(delay_s=5)
    assert [vars(r)["action"] for r in caplog.records if "action" in vars(r)] == ["nack_expired"]


async def test_a_letter_is_kept_in_its_configurations_group(queues: Queues) -> None:
    """By ids and a reason; a repetition of the same letter is one."""
    await queues.queue().bury(LETTER)
    [record] = queues.take(queues.dead)
    assert PushLetter.model_validate_json(record["body"]) == LETTER
    assert record["attributes"]["MessageGroupId"] == LETTER.wake.group
    assert record["attributes"]["MessageDeduplicationId"] == LETTER.deduplication_id


async def test_what_nobody_can_read_is_kept(queues: Queues) -> None:
    """Beside the letters, as it came."""
    queue = queues.queue()
    queues.client.send_message(
        QueueUrl=queues.wakes,
        MessageBody="no wake",
        MessageGroupId="g",
        MessageDeduplicationId="d",
    )
    [record] = queues.take()
    with pytest.raises(UndecodableOperationError):
        queue.decode_record(record)
    assert await queue.set_aside(record)
    assert [kept["body"] for kept in queues.take(queues.dead)] == ["no wake"]


async def test_without_a_dead_letter_queue(queues: Queues) -> None:
    """Letters are in the log alone, and what cannot be read stays where it is."""
    queue = SqsPushQueue(queues.wakes, client=queues.client)
    await queue.check()
    await queue.bury(LETTER)
    assert not await queue.set_aside({"messageId": "m", "body": "b"})


async def test_a_queue_that_does_not_exist(queues: Queues) -> None:
    """The sentence names it."""
    with pytest.raises(ConfigurationError, match=r"nowhere\.fifo"):
        await SqsPushQueue("nowhere.fifo", client=queues.client).send(wake())


# -- in memory -------------------------------------------------------------------------------


async def test_memory_behaves_like_the_queue() -> None:
    """One of a group at a time, in order; deduplication; visibility as the back-off."""
    clock = ManualClock()
    queue = MemoryPushQueue(visibility_s=90, clock=clock)
    for sent in (wake("slow", 1), wake("slow", 2), wake("slow", 1), wake("quick", 1)):
        await queue.send(sent)
    first, other = queue.take(), queue.take()
    assert first is not None
    assert other is not None
    assert queue.take() is None
    await queue.decode_record(first).nack(delay_s=30)
    await queue.decode_record(other).ack()
    clock.advance(29)
    assert queue.take() is None
    clock.advance(1)
    again = queue.take()
    assert again is not None
    handle = queue.decode_record(again)
    assert (handle.wake, handle.attempt) == (wake("slow", 1), 2)
    await queue.delete(again)
    last = queue.take()
    assert last is not None
    assert queue.decode_record(last).wake == wake("slow", 2)
    clock.advance(91)
    await queue.decode_record(last).ack()  # has expired
    assert not queue.is_empty


async def test_memory_speaks_in_records() -> None:
    """As SQS's event source does, until it is closed."""
    queue = MemoryPushQueue()
    records = queue.records()
    waiting = asyncio.ensure_future(anext(records))
    await asyncio.sleep(0)
    await queue.send(wake())
    record = await waiting
    assert record["eventSource"] == "aws:sqs"
    assert json.loads(record["body"])["config_id"] == "hook"
    queue.close()
    assert [record async for record in records] == []


async def test_memory_keeps_what_is_given_up() -> None:
    """For tests, and for whoever develops."""
    queue: PushQueue = MemoryPushQueue()
    await queue.bury(LETTER)
    assert await queue.set_aside({"body": "no wake"})
    assert isinstance(queue, MemoryPushQueue)
    assert (queue.letters, queue.undecodable) == ([LETTER], ["no wake"])


# -- wakes -----------------------------------------------------------------------------------


def test_groups_and_deduplication() -> None:
    """A group per configuration of one incarnation; a deduplication id per commit."""
    others = [
        wake(version=2),
        wake("other"),
        wake(scope="other"),
        wake(task_id="other"),
        wake(incarnation="other"),
    ]
    ids = {w.deduplication_id for w in (wake(), *others)}
    groups = [w.group for w in (wake(), *others)]
    assert len(ids) == 6
    assert groups[0] == groups[1]
    assert len(set(groups)) == 5
    assert wake(trace={"traceparent": "x"}).deduplication_id == wake().deduplication_id


@pytest.mark.parametrize(
    "body",
    [
        None,
        "",
        "secret text",
        "[]",
        "{}",
        '{"scope": "s", "task_id": "secret", "incarnation": "i", "config_id": "c", "version": 0}',
        '{"scope": "s", "task_id": "", "incarnation": "i", "config_id": "c", "version": 1}',
    ],
)
def test_a_message_that_is_no_wake(body: str | None) -> None:
    """The error names the field, and repeats nothing."""
    record = {
        "messageId": "m",
        "receiptHandle": "1.1",
        "body": body,
        "attributes": {"ApproximateReceiveCount": "1"},
    }
    for queue in (SqsPushQueue("https://queue/q.fifo", client=None), MemoryPushQueue()):
        with pytest.raises(UndecodableOperationError) as error:
            queue.decode_record(record)
        assert "secret" not in str(error.value)

"""The queues as a person sees them: how full they are, and what was set aside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from a2a_serverless import aws
from a2a_serverless.errors import A2AServerlessError, ConfigurationError
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.layout import queue_partition
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.tasks.head import Operation
from a2a_serverless.wiring import Backends, Name, queue_on

DeadLetterQueue: TypeAlias = Literal[
    "dead_letter_queue", "undecodable_queue", "push_dead_letter_queue"
]
"""A dead letter queue, by the setting that names it: what was set aside, for a person."""

DEAD_LETTER_QUEUES: Final[Mapping[DeadLetterQueue, str]] = {
    "dead_letter_queue": "operations whose deliveries ran out",
    "undecodable_queue": "messages that cannot be read",
    "push_dead_letter_queue": "notifications that were given up",
}
"""What each of these queues holds, for sentences."""

Working: TypeAlias = Literal["queue", "quarantine_queue", "push_queue"]
"""A queue that workers consume, by the setting that names the queue."""

WORKING: Final[Mapping[Working, str]] = {
    "queue": "operations, which are turns and cancels",
    "quarantine_queue": "operations of turns that run alone, as a worker has died with them",
    "push_queue": "push jobs",
}
"""What each of these queues holds, for sentences."""

QUEUES: Final[Mapping[Working | DeadLetterQueue, str]] = dict(
    (*WORKING.items(), *DEAD_LETTER_QUEUES.items())
)

AGES_S: Final = 600
"""Seconds within which a figure about the oldest message counts."""
_HELD_S: Final = 20
"""Seconds for which a look hides the messages from other looks."""
_AT_ONCE: Final = 10
WAIT_S: Final = 1
"""Seconds that a look may wait: only then does SQS ask all of its servers."""
_MOST: Final = 1_000
"""The most messages that a look takes."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was set aside."""

    message_id: str
    sent_at: int
    """Milliseconds since the epoch."""
    body: str
    attributes: Mapping[str, str]
    """Its attributes, such as `reason`: why it was set aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """How many messages a queue holds; SQS counts them approximately.

    The numbers are None if that is not known: no setting names the queue, or `fault` says why.
    """

    name: str
    what: str
    """What it holds, for sentences."""
    waiting: int | None = None
    """Those that a consumer would get."""
    received: int | None = None
    """Those that are hidden: a consumer has received them, and they are not deleted. It works on
    them, has died, or has given them back for a later try."""
    oldest_at: int | None = None
    """When the oldest of those that wait was sent, in milliseconds since the epoch; None: none
    waits, or it is unknown."""
    fault: str = ""
    is_off: bool = False
    """Operations wait, and Lambda's event source for them is switched off."""

    @property
    def has_dead_letters(self) -> bool:
        """Return True if its messages were set aside, for a person."""
        return self.name in DEAD_LETTER_QUEUES


async def dead_letters(
    setting: DeadLetterQueue, settings: Settings, backends: Backends | None = None
) -> list[DeadLetter] | None:
    """Return the messages of a queue, the oldest first; None if there is no such queue.

    It is on the table of `backends`, or is the one that `settings` name. After a look at SQS others
    can see the messages again at once.

    Raises:
        ConfigurationError: the queue cannot be used; one sentence says why.
    """
    if (queue := _on_table(setting, settings, backends)) is not None:
        return [
            DeadLetter(
                message_id=one.message_id,
                sent_at=one.sent_at,
                body=one.body,
                attributes={"reason": one.reason} if one.reason else {},
            )
            for one in await queue.waiting()
        ]
    name: str = getattr(settings, setting)
    return await _received(name, DEAD_LETTER_QUEUES[setting]) if name else None


async def queues_of(
    names: Iterable[Working | DeadLetterQueue],
    settings: Settings,
    backends: Backends | None = None,
    *,
    now_ms: int | None = None,
) -> list[Queue]:
    """Return how full queues are, on the table of `backends` or as `settings` name them.

    Those of a file that hold something, and that no setting names, are among them. With `now_ms`
    CloudWatch is asked how old the oldest message of each queue of SQS is, and Lambda whether it
    takes operations that wait.
    """
    asked = [_queue_of(name, QUEUES[name], name, settings, backends) for name in names]
    table = None if backends is None else backends.storage.table
    if isinstance(table, SqliteTable):
        start = queue_partition("")
        known = {getattr(settings, name) or name for name in QUEUES}
        held = {one.removeprefix(start) for one in await table.partitions(start)}
        for own in sorted(held - known):
            what = f"messages of {own}, a queue that no setting names here"
            named = settings.model_copy(update={"queue": own})
            asked.append(_queue_of("queue", what, own, named, backends))
    found = await asyncio.gather(*asked)
    found = [one for one in found if one.name in QUEUES or one.waiting or one.received]
    if now_ms is None:
        return found
    unknown = [one for one in found if one.waiting and one.oldest_at is None]
    urls = {one.name: str(getattr(settings, one.name)) for one in unknown}
    ages, is_off = await asyncio.gather(
        _oldest_of(urls.values(), now_ms), _is_off(urls.get("queue", ""))
    )
    return [
        replace(
            one,
            oldest_at=ages.get(urls.get(one.name, ""), one.oldest_at),
            is_off=is_off and one.name == "queue",
        )
        for one in found
    ]


async def _queue_of(
    setting: Working | DeadLetterQueue,
    what: str,
    name: str,
    settings: Settings,
    backends: Backends | None,
) -> Queue:
    """Return how full the queue of a setting is."""
    found = Queue(name=name, what=what)
    try:
        if (on_table := _on_table(setting, settings, backends)) is not None:
            waiting, received, oldest_at = await on_table.depth()
            return replace(found, waiting=waiting, received=received, oldest_at=oldest_at)
        if url := getattr(settings, setting):
            names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
            answer = await _sqs("get_queue_attributes", url, what, AttributeNames=list(names))
            waiting, received = (int(answer["Attributes"][name]) for name in names)
            return replace(found, waiting=waiting, received=received)
    except A2AServerlessError as error:
        return replace(found, fault=str(error))
    return found


async def _oldest_of(queues: Collection[str], now_ms: int) -> dict[str, int]:
    """Return when the oldest message of each queue was sent, in milliseconds since the epoch.

    One request asks CloudWatch, whose newest figure is a minute or more old. It is about messages
    that are not deleted, also those that a worker has received. A queue without a figure within
    `AGES_S` is left out, and so are all if CloudWatch does not answer: a line of the log says so.

    Args:
        queues: their URLs or names; none: nothing is asked.
        now_ms: the time.
    """
    asked = list(dict.fromkeys(queues))
    if not asked or not aws.is_aws(aws.client("sqs")):
        return {}
    metric = {"Namespace": "AWS/SQS", "MetricName": "ApproximateAgeOfOldestMessage"}
    queries = [
        {
            "Id": f"q{number}",
            "MetricStat": {
                "Metric": metric
                | {"Dimensions": [{"Name": "QueueName", "Value": queue.rpartition("/")[2]}]},
                "Period": 60,
                "Stat": "Maximum",
            },
        }
        for number, queue in enumerate(asked)
    ]
    try:
        answer = await aws.call(
            aws.client("cloudwatch").get_metric_data,
            MetricDataQueries=queries,
            StartTime=datetime.fromtimestamp(now_ms / 1000 - AGES_S, UTC),
            EndTime=datetime.fromtimestamp(now_ms / 1000, UTC),
            ScanBy="TimestampDescending",
        )
    except (ConfigurationError, *aws.ERRORS) as error:
        logger.warning(
            "How old the oldest messages are is unknown (%s): it needs cloudwatch:GetMetricData.",
            aws.error_code(error),
        )
        return {}
    return {
        asked[int(one["Id"][1:])]: round(
            (one["Timestamps"][0].timestamp() - one["Values"][0]) * 1000
        )
        for one in answer["MetricDataResults"]
        if one["Values"]
    }


def _on_table(
    name: Name, settings: Settings, backends: Backends | None
) -> TableQueue[Operation] | None:
    """Return a queue if it is on the table of `backends`; bodies of any kind are read as texts."""
    if backends is None or not isinstance(backends.operations, TableQueue):
        return None
    return queue_on(backends.storage.table, Operation, settings, name, clock=backends.storage.clock)


async def _is_off(queue: str) -> bool:
    """Return True if Lambda has event sources for a queue of SQS, and all are switched off.

    False without a queue, where SQS is an emulator and Lambda is not, and where Lambda does not
    answer: a line of the log says so.
    """
    if not queue:
        return False
    sqs, functions = aws.client("sqs"), aws.client("lambda")
    if aws.is_aws(sqs) is not aws.is_aws(functions):
        return False
    try:
        names = ["QueueArn"]
        found = await _sqs("get_queue_attributes", queue, WORKING["queue"], AttributeNames=names)
        arn = found["Attributes"]["QueueArn"]
        answer = await aws.call(functions.list_event_source_mappings, EventSourceArn=arn)
    except (ConfigurationError, *aws.ERRORS) as error:
        logger.warning(
            "Whether Lambda takes operations is unknown (%s): it needs"
            " lambda:ListEventSourceMappings.",
            error if isinstance(error, ConfigurationError) else aws.error_code(error),
            extra={"action": "event_sources_unknown"},
        )
        return False
    states = {it["State"] for it in answer["EventSourceMappings"]}
    return bool(states) and states <= {"Disabled", "Disabling"}


async def _sqs(method: str, queue: str, what: str, **request: Any) -> Any:
    """Do a request about a queue of SQS, by its URL or name.

    Raises:
        ConfigurationError: it cannot be used; one sentence says why.
    """
    client = aws.client("sqs")
    try:
        if "://" not in queue:
            queue = (await aws.call(client.get_queue_url, QueueName=queue))["QueueUrl"]
        return await aws.call(getattr(client, method), QueueUrl=queue, **request)
    except aws.ERRORS as error:
        reason = aws.error_code(error) or str(error).rstrip(".")
        raise ConfigurationError(
            f"The queue of {what} cannot be used ({reason}): check its name, the region and the"
            " credentials."
        ) from error


async def _received(queue: str, what: str) -> list[DeadLetter]:
    """Return the messages of a queue of SQS, which are hidden from others only for the look."""
    found: dict[str, DeadLetter] = {}
    receipts: dict[str, str] = {}
    while len(found) < _MOST:
        answer = await _sqs(
            "receive_message",
            queue,
            what,
            MaxNumberOfMessages=_AT_ONCE,
            VisibilityTimeout=_HELD_S,
            WaitTimeSeconds=WAIT_S,
            MessageSystemAttributeNames=["SentTimestamp"],
            MessageAttributeNames=["All"],
        )
        page = {one["MessageId"]: one for one in answer.get("Messages", ())}
        if page.keys() <= found.keys():
            break
        found |= {message_id: _dead_letter(one) for message_id, one in page.items()}
        receipts |= {message_id: one["ReceiptHandle"] for message_id, one in page.items()}
    for receipt in receipts.values():
        again = {"ReceiptHandle": receipt, "VisibilityTimeout": 0}
        await _sqs("change_message_visibility", queue, what, **again)
    return sorted(found.values(), key=lambda one: (one.sent_at, one.message_id))


def _dead_letter(message: Mapping[str, Any]) -> DeadLetter:
    attributes = message.get("MessageAttributes", {})
    return DeadLetter(
        message_id=message["MessageId"],
        sent_at=int(message.get("Attributes", {}).get("SentTimestamp", 0)),
        body=message["Body"],
        attributes={name: str(of.get("StringValue", "")) for name, of in attributes.items()},
    )

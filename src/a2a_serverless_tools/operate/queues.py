"""The queues as a person sees them: how full they are, and what was set aside, also to delete."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
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

Aside: TypeAlias = Literal["dead_letter_queue", "undecodable_queue", "push_dead_letter_queue"]
"""A queue of messages that were set aside, by the setting that names the queue."""

ASIDE: Final[Mapping[Aside, str]] = {
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

QUEUES: Final[Mapping[Working | Aside, str]] = dict((*WORKING.items(), *ASIDE.items()))

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
class Letter:
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
    waits, or it is unknown, as SQS does not tell: see `oldest_of`."""
    fault: str = ""

    @property
    def is_aside(self) -> bool:
        """Return True if its messages were set aside, for a person."""
        return self.name in ASIDE


class Letters(ABC):
    """The messages of one queue.

    Every method raises:
        ConfigurationError: the queue cannot be used; one sentence says why.
    """

    @abstractmethod
    async def all(self) -> list[Letter]:
        """Return the messages, the oldest first; afterwards others can see them again at once."""

    @abstractmethod
    async def delete(self, message_id: str) -> bool:
        """Delete a message for good; False if there is none with this id."""


def letters_of(
    aside: Aside, settings: Settings, backends: Backends | None = None
) -> Letters | None:
    """Return the messages set aside on the table of `backends`, or in the queue of `settings`.

    Return None if there is no such queue.
    """
    if (on_table := _on_table(aside, settings, backends)) is not None:
        return _TableLetters(on_table)
    queue: str = getattr(settings, aside)
    return SqsLetters(queue, ASIDE[aside]) if queue else None


async def queues_of(
    names: Iterable[Working | Aside], settings: Settings, backends: Backends | None = None
) -> list[Queue]:
    """Return how full queues are, on the table of `backends` or as `settings` name them.

    Those of a file that hold something, and that no setting names, are among them.
    """
    asked = [queue_of(name, settings, backends) for name in names]
    table = None if backends is None else backends.storage.table
    if isinstance(table, SqliteTable):
        start = queue_partition("")
        known = {getattr(settings, name) or name for name in QUEUES}
        held = {one.removeprefix(start) for one in await table.partitions(start)}
        asked += [queue_of("queue", settings, backends, own=one) for one in sorted(held - known)]
    found = await asyncio.gather(*asked)
    return [one for one in found if one.name in QUEUES or one.waiting or one.received]


async def queue_of(
    queue: Working | Aside, settings: Settings, backends: Backends | None = None, *, own: str = ""
) -> Queue:
    """Return how full one queue is; `own` is its name in a file where no setting names it."""
    found = Queue(name=queue, what=QUEUES[queue])
    if own:
        settings = settings.model_copy(update={queue: own})
        found = Queue(name=own, what=f"messages of {own}, a queue that no setting names here")
    try:
        if (on_table := _on_table(queue, settings, backends)) is not None:
            waiting, received, oldest_at = await on_table.depth()
            return replace(found, waiting=waiting, received=received, oldest_at=oldest_at)
        if name := getattr(settings, queue):
            waiting, received = await SqsLetters(name, QUEUES[queue]).depth()
            return replace(found, waiting=waiting, received=received)
    except A2AServerlessError as error:
        return replace(found, fault=str(error))
    return found


async def oldest_of(queues: Collection[str], now_ms: int) -> dict[str, int]:
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


class _TableLetters(Letters):
    def __init__(self, queue: TableQueue[Operation]) -> None:
        self._queue = queue

    async def all(self) -> list[Letter]:
        return [
            Letter(
                message_id=one.message_id,
                sent_at=one.sent_at,
                body=one.body,
                attributes={"reason": one.reason} if one.reason else {},
            )
            for one in await self._queue.waiting()
        ]

    async def delete(self, message_id: str) -> bool:
        return await self._queue.forget(message_id)


_HeldLetter: TypeAlias = tuple[Letter, str]
"""A letter, and the receipt by which it is deleted or made visible again."""


class SqsLetters(Letters):
    """A queue of SQS as a person looks at it.

    Args:
        queue: the queue's URL or name.
        name: what the queue holds, for sentences.
    """

    def __init__(self, queue: str, name: str) -> None:
        self._queue = queue
        self._name = name
        self._client = aws.client("sqs")

    async def depth(self) -> tuple[int, int]:
        """Return how many messages wait, and how many were received and are not deleted.

        Raises:
            ConfigurationError: the queue cannot be used; one sentence says why.
        """
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        answer = await self._call(
            self._client.get_queue_attributes,
            QueueUrl=await self._url(),
            AttributeNames=list(names),
        )
        waiting, received = (int(answer["Attributes"][name]) for name in names)
        return waiting, received

    async def all(self) -> list[Letter]:
        url = await self._url()
        found = await self._hold(url)
        await self._release(url, found)
        letters = (letter for letter, _ in found)
        return sorted(letters, key=lambda letter: (letter.sent_at, letter.message_id))

    async def delete(self, message_id: str) -> bool:
        url = await self._url()
        found = await self._hold(url)
        asked = [held for held in found if held[0].message_id == message_id]
        for _, receipt in asked:  # a FIFO queue takes no receipt that has expired
            await self._call(self._client.delete_message, QueueUrl=url, ReceiptHandle=receipt)
        await self._release(url, [held for held in found if held not in asked])
        return bool(asked)

    async def _url(self) -> str:
        if "://" in self._queue:
            return self._queue
        answer = await self._call(self._client.get_queue_url, QueueName=self._queue)
        return str(answer["QueueUrl"])

    async def _call(self, method: Any, **kwargs: Any) -> Any:
        try:
            return await aws.call(method, **kwargs)
        except aws.ERRORS as error:
            reason = aws.error_code(error) or str(error).rstrip(".")
            msg = (
                f"The queue of {self._name} cannot be used ({reason}): check its name, the region"
                " and the credentials."
            )
            raise ConfigurationError(msg) from error

    async def _hold(self, url: str) -> list[_HeldLetter]:
        """Return the messages, hidden from others for a while."""
        found: dict[str, _HeldLetter] = {}
        while len(found) < _MOST:
            page = await self._receive(url)
            if all(letter.message_id in found for letter, _ in page):
                break
            found |= {held[0].message_id: held for held in page}
        return list(found.values())

    async def _release(self, url: str, found: list[_HeldLetter]) -> None:
        for _, receipt in found:
            await self._call(
                self._client.change_message_visibility,
                QueueUrl=url,
                ReceiptHandle=receipt,
                VisibilityTimeout=0,
            )

    async def _receive(self, url: str) -> list[_HeldLetter]:
        answer = await self._call(
            self._client.receive_message,
            QueueUrl=url,
            MaxNumberOfMessages=_AT_ONCE,
            VisibilityTimeout=_HELD_S,
            WaitTimeSeconds=WAIT_S,
            MessageSystemAttributeNames=["SentTimestamp"],
            MessageAttributeNames=["All"],
        )
        return [_held(message) for message in answer.get("Messages", ())]


def _held(message: Mapping[str, Any]) -> _HeldLetter:
    attributes = {
        name: str(value.get("StringValue", ""))
        for name, value in message.get("MessageAttributes", {}).items()
    }
    letter = Letter(
        message_id=message["MessageId"],
        sent_at=int(message.get("Attributes", {}).get("SentTimestamp", 0)),
        body=message["Body"],
        attributes=attributes,
    )
    return letter, message["ReceiptHandle"]

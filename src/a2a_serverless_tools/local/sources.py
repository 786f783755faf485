"""The records of a table's stream, as Lambda's event source makes them."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from boto3.session import Session
from botocore.exceptions import ClientError

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.dynamodb import typed
from a2a_serverless.storage.layout import event_position, tells_of_push
from a2a_serverless.storage.table import Check, Item, Key, Put, Streamed, key_of

logger = logging.getLogger(__name__)

BATCH = 100
"""Records that a function gets at once, as in template.yaml."""
POLL_S = 0.25
"""Seconds between two looks at an idle shard: Lambda looks four times a second."""
ADDED_S = 0.1
"""Seconds between two looks for new items of a table that tells of them."""
CURSOR_EVERY = 1000
"""Rows without a commit after which the cursor is written all the same."""
SHARDS_S = 10.0
"""Seconds between two looks for new shards, while no shard ends."""
RETRY_S = 1.0
"""Seconds between two attempts to read a stream that does not answer."""

_ENDPOINT = "AWS_ENDPOINT_URL_DYNAMODB"
_OWN_ENDPOINT = "AWS_ENDPOINT_URL_DYNAMODB_STREAMS"

Records = list[dict[str, Any]]
Consume = Callable[[Records], Awaitable[None]]
"""Takes records, and returns when they are settled; the shard's next records wait for that."""


class StreamSource(ABC):
    """Records as Lambda's event source for DynamoDB streams makes them."""

    @abstractmethod
    async def feed(self, consume: Consume) -> None:
        """Hand all records to `consume`, those of a shard in their order; without end."""


class AddedStream(StreamSource):
    """The commits, and push configurations that were set, in a table that tells of its new items.

    It begins with the oldest that is left. How far it has read stands in the table: so none is lost
    while nothing reads, and after a crash those of the last batch come again.

    Args:
        table: the table.
    """

    def __init__(self, table: Streamed) -> None:
        self._table = table

    async def feed(self, consume: Consume) -> None:
        stored = await self._table.get(_CURSOR)
        seen = told = int(stored["seen"]) if stored is not None else 0
        while True:
            added = await self._table.added(seen, limit=BATCH)
            records = [_record_of(n, item) for n, item in added if _is_told(item)]
            if records:
                await consume(records)
            seen = added[-1][0] if added else seen
            # Not for other rows alone: the cursor's own row is one of them.
            if records or seen > told + CURSOR_EVERY:
                told = seen
                behind = [[Check("seen", "absent"), Check("seen", "<", seen)]]
                await self._table.did(Put(item={**_CURSOR._asdict(), "seen": seen}, when=behind))
            if len(added) < BATCH:
                await asyncio.sleep(ADDED_S)


_CURSOR: Final = Key("STREAM#push", "CURSOR")


def _is_told(item: Item) -> bool:
    return bool(event_position(item["SK"])) or tells_of_push(item["SK"], item)


def _record_of(number: int, item: Item) -> dict[str, Any]:
    """Return the record of a new item, as a stream of DynamoDB has it."""
    return {
        "eventID": str(number),
        "eventName": "INSERT",
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": "local",
        "dynamodb": {
            "Keys": typed(key_of(item)._asdict()),
            "NewImage": typed(item),
            "SequenceNumber": str(number),
            "StreamViewType": "NEW_IMAGE",
        },
        "eventSourceARN": "arn:aws:dynamodb:local:000000000000:table/tasks/stream/local",
    }


@dataclass(frozen=True, slots=True)
class _Shard:
    name: str
    parent: str | None


class TableStream(StreamSource):
    """The stream of a table, from its oldest record on; a shard is read after its parent.

    Args:
        table: the table's name.
        dynamodb, streams: clients; by default those of the environment.
    """

    def __init__(
        self,
        table: str,
        *,
        dynamodb: Any = None,
        streams: Any = None,
    ) -> None:
        self._table = table
        self._dynamodb = dynamodb or aws.client("dynamodb")
        self._streams = streams or _client()

    async def arn(self) -> str:
        """Return the stream's ARN.

        Raises:
            ConfigurationError: the table has no stream.
            ClientError, BotoCoreError: as boto3 raises them.
        """
        answer = await aws.call(self._dynamodb.describe_table, TableName=self._table)
        if "LatestStreamArn" not in answer["Table"]:
            raise ConfigurationError(f"The table {self._table} has no stream.")
        return str(answer["Table"]["LatestStreamArn"])

    async def feed(self, consume: Consume) -> None:
        arn = await self.arn()
        begun: set[str] = set()
        ended: set[str] = set()
        one_ended = asyncio.Event()

        async def follow(shard: _Shard) -> None:
            await self._read(arn, shard.name, consume)
            ended.add(shard.name)
            one_ended.set()

        async with asyncio.TaskGroup() as reading:
            while True:
                one_ended.clear()
                shards = await self._shards(arn)
                waiting = {shard.name for shard in shards} - ended
                for shard in shards:
                    if shard.name not in begun and shard.parent not in waiting:
                        begun.add(shard.name)
                        reading.create_task(follow(shard))
                # Not `wait_for`: in Python 3.11 it can swallow a cancellation.
                with suppress(TimeoutError):
                    async with asyncio.timeout(SHARDS_S):
                        await one_ended.wait()

    async def _read(self, arn: str, shard: str, consume: Consume) -> None:
        """Read one shard to its end; an open shard is read until cancelled."""
        read_to: str | None = None
        iterator: str | None = None
        while True:
            try:
                answer = await aws.call(
                    self._get, arn=arn, shard=shard, read_to=read_to, iterator=iterator
                )
            except aws.ERRORS as error:
                if _is_trimmed(error):
                    read_to = None
                iterator = None
                logger.warning(
                    "The stream cannot be read: %s", error, extra={"action": "stream_read"}
                )
                await asyncio.sleep(RETRY_S)
                continue
            records = [_json(raw) | {"eventSourceARN": arn} for raw in answer["Records"]]
            if records:
                await consume(records)
                read_to = records[-1]["dynamodb"]["SequenceNumber"]
            iterator = answer.get("NextShardIterator")
            if iterator is None:
                return
            if not records:
                await asyncio.sleep(POLL_S)

    def _get(self, arn: str, shard: str, read_to: str | None, iterator: str | None) -> Any:
        """Return the next records of a shard; runs in a thread."""
        if iterator is None:
            start = {"ShardIteratorType": "TRIM_HORIZON"}
            if read_to is not None:
                start = {
                    "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                    "SequenceNumber": read_to,
                }
            iterator = self._streams.get_shard_iterator(StreamArn=arn, ShardId=shard, **start)[
                "ShardIterator"
            ]
        return self._streams.get_records(ShardIterator=iterator, Limit=BATCH)

    async def _shards(self, arn: str) -> list[_Shard]:
        shards: list[_Shard] = []
        request: dict[str, Any] = {"StreamArn": arn}
        while True:
            answer = await aws.repeat(self._streams.describe_stream, **request)
            described = answer["StreamDescription"]
            shards += [_Shard(s["ShardId"], s.get("ParentShardId")) for s in described["Shards"]]
            if "LastEvaluatedShardId" not in described:
                return shards
            request["ExclusiveStartShardId"] = described["LastEvaluatedShardId"]


def _client() -> Any:
    """Return a client for streams; if the table is in an emulator, at the emulator's endpoint."""
    is_ignored = os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    table_endpoint = os.environ.get(_ENDPOINT)
    if is_ignored or _OWN_ENDPOINT in os.environ or not table_endpoint:
        return aws.client("dynamodbstreams")
    return Session().client("dynamodbstreams", endpoint_url=table_endpoint)


def _is_trimmed(error: Exception) -> bool:
    """Return True if the position is older than the oldest record of the stream."""
    return isinstance(error, ClientError) and aws.error_code(error) == "TrimmedDataAccessException"


def _json(value: Any) -> Any:
    """Return a value of boto3 in the form that Lambda passes on: base64 bytes, times in seconds."""

    def plain(odd: Any) -> Any:
        return base64.b64encode(odd).decode() if isinstance(odd, bytes) else odd.timestamp()

    return json.loads(json.dumps(value, default=plain))

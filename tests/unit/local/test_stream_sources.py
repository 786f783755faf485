from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState
from botocore.exceptions import ClientError

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import INDEXES, event_position
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.storage.table import Key
from a2a_serverless_tools.contract import Storage
from a2a_serverless_tools.local import sources
from a2a_serverless_tools.local.sources import AddedStream, Records, StreamSource, TableStream
from tests.support.messages import request


class Reader:
    """Takes what a source feeds."""

    def __init__(self) -> None:
        self.records: Records = []
        self._more = asyncio.Event()

    async def consume(self, records: Records) -> None:
        self.records += records
        self._more.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for records that make `condition` true."""
        async with asyncio.timeout(10):
            while not condition():
                self._more.clear()
                await self._more.wait()

    def numbers(self) -> list[str]:
        return [record["dynamodb"]["SequenceNumber"] for record in self.records]

    def commits(self) -> list[int]:
        """The versions of the commits in the stream."""
        return [place[1] for record in self.records if (place := is_commit(record)) is not None]


def is_commit(record: Mapping[str, Any]) -> tuple[str, int, int] | None:
    """The place of a commit's part, if the record is of one."""
    return event_position(record["dynamodb"]["Keys"]["SK"]["S"])


@asynccontextmanager
async def reading(source: StreamSource) -> AsyncIterator[Reader]:
    """A reader of a source that feeds for the block."""
    reader = Reader()
    feeding = asyncio.create_task(source.feed(reader.consume))
    try:
        yield reader
    finally:
        feeding.cancel()
        with suppress(asyncio.CancelledError):
            await feeding


class Streams:
    """A `dynamodbstreams` client over shards that a test fills, closes and continues."""

    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        self.records: defaultdict[str, list[str]] = defaultdict(list)
        self.closed: set[str] = set()
        self.refusals: list[str] = []
        """Error codes of the next reads."""
        self.reads: list[str] = []

    def describe_table(self, TableName: str) -> Any:  # noqa: N803 - as boto3 has it
        return {"Table": {"LatestStreamArn": f"arn/{TableName}"}}

    def describe_stream(self, StreamArn: str, ExclusiveStartShardId: str = "") -> Any:  # noqa: N803
        names = [name for name in self.parents if name > ExclusiveStartShardId]
        shards = [
            {"ShardId": name}
            | ({"ParentShardId": parent} if (parent := self.parents[name]) else {})
            for name in names[:1]
        ]
        more = {"LastEvaluatedShardId": names[0]} if len(names) > 1 else {}
        return {"StreamDescription": {"Shards": shards, **more}}

    def get_shard_iterator(self, **given: str) -> Any:
        return {"ShardIterator": f"{given['ShardId']}/{given.get('SequenceNumber', '')}"}

    def get_records(self, ShardIterator: str, Limit: int) -> Any:  # noqa: N803
        if self.refusals:
            code = self.refusals.pop(0)
            raise ClientError({"Error": {"Code": code, "Message": ""}}, "GetRecords")
        self.reads.append(ShardIterator)
        shard, after = ShardIterator.split("/")
        found = [number for number in self.records[shard] if number > after][:Limit]
        answer: dict[str, Any] = {"Records": [_raw(number) for number in found]}
        if shard not in self.closed:
            answer["NextShardIterator"] = f"{shard}/{found[-1] if found else after}"
        return answer


def _raw(number: str) -> dict[str, Any]:
    """A record as boto3 returns it."""
    at = datetime.fromtimestamp(1_763_766_725, tz=UTC)
    image = {"body": {"B": b"\x00\xff"}, "list": {"L": [{"B": b"x"}]}}
    what = {"ApproximateCreationDateTime": at, "NewImage": image, "SequenceNumber": number}
    return {"eventName": "INSERT", "dynamodb": what}


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Shards that are looked at without pauses."""
    for pause in ("POLL_S", "SHARDS_S", "RETRY_S"):
        monkeypatch.setattr(sources, pause, 0.001)
    return Streams()


def stream_of(streams: Streams) -> TableStream:
    return TableStream("tasks", dynamodb=streams, streams=streams)


@asynccontextmanager
async def reading_one(streams: Streams) -> AsyncIterator[Reader]:
    """A reader of one shard, whose first record has been read."""
    streams.parents = {"a": None}
    streams.records["a"] = ["01"]
    async with reading(stream_of(streams)) as reader:
        await reader.until(lambda: reader.numbers() == ["01"])
        yield reader


async def test_a_shard_is_read_after_the_one_that_it_continues(streams: Streams) -> None:
    """Children wait for the end of their parent; siblings do not wait for each other."""
    streams.parents = {"a": None, "b": "a", "c": "a", "d": "b", "other": "gone"}
    streams.records |= {"a": ["01", "02"], "b": ["03"], "c": ["04"], "d": ["05"], "other": ["06"]}
    streams.closed = {"b"}
    async with reading(stream_of(streams)) as reader:
        await reader.until(lambda: len(reader.records) == 3)
        assert sorted(reader.numbers()) == ["01", "02", "06"]

        streams.closed.add("a")
        await reader.until(lambda: len(reader.records) == 6)

    order = reader.numbers()
    assert order.index("01") < order.index("02") < order.index("03") < order.index("05")
    assert order.index("02") < order.index("04")
    assert len(order) == 6


async def test_new_shards_are_found(streams: Streams) -> None:
    """A shard that appears while others are read is read, too."""
    async with reading_one(streams) as reader:
        streams.records["b"] = ["02"]
        streams.parents["b"] = None
        await reader.until(lambda: reader.numbers() == ["01", "02"])


async def test_a_stop_as_a_shard_ends(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a shard swallows no cancellation, as `asyncio.wait_for` of Python 3.11 lets it."""
    monkeypatch.setattr(sources, "SHARDS_S", 30)
    streams.parents, streams.closed = {"a": None}, {"a"}
    streams.records["a"] = ["01"]
    stopping: list[asyncio.Task[None]] = []

    async def stop() -> None:
        await asyncio.sleep(0)
        feeding.cancel()

    async def consume(_: Records) -> None:
        stopping.append(asyncio.create_task(stop()))

    feeding = asyncio.create_task(stream_of(streams).feed(consume))
    await asyncio.wait({feeding}, timeout=10)
    assert feeding.cancelled()


@pytest.mark.parametrize("code", ["ExpiredIteratorException", "InternalServerError"])
async def test_reading_goes_on_where_it_stood(streams: Streams, code: str) -> None:
    """A lost iterator or an error skips nothing and repeats nothing."""
    async with reading_one(streams) as reader:
        streams.refusals = [code, code]
        streams.records["a"].append("02")
        await reader.until(lambda: reader.numbers() == ["01", "02"])


async def test_a_forgotten_position_starts_at_the_oldest_record(streams: Streams) -> None:
    """If the stream has trimmed the position, reading goes on with the oldest record left."""
    async with reading_one(streams) as reader:
        streams.reads.clear()
        streams.records["a"] = ["05"]
        streams.refusals = ["TrimmedDataAccessException"]
        await reader.until(lambda: "05" in reader.numbers())
        assert "a/" in streams.reads


async def test_records_are_json_as_lambda_has_it(streams: Streams) -> None:
    """Bytes in base64, times in seconds, and the stream that the record is from."""
    async with reading_one(streams) as reader:
        (record,) = reader.records
    assert json.loads(json.dumps(record)) == record
    assert record["eventSourceARN"] == "arn/tasks"
    assert record["dynamodb"]["ApproximateCreationDateTime"] == 1_763_766_725
    image = {"body": {"B": "AP8="}, "list": {"L": [{"B": "eA=="}]}}
    assert record["dynamodb"]["NewImage"] == image


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteTable]:
    """A table in a file."""
    with closing(SqliteTable(tmp_path / "file", INDEXES)) as table:
        yield table


async def test_a_file_tells_of_webhooks_that_were_set(file: SqliteTable) -> None:
    """A new one, and one that replaces it; none whose cursor has moved since."""
    storage = DurableStorage(file)
    await storage.open_task("context", request(), task_id="task-1")
    hook = TaskPushNotificationConfig(id="mine", task_id="task-1", url="https://example.com/")
    async with reading(AddedStream(file)) as reader:
        seen: list[str] = []
        for url in ("https://example.com/", "https://example.com/2"):
            hook.url = url
            push = await storage.webhooks.put(hook)
            await reader.until(lambda: str(push.set_mark) in marks(reader.records))  # noqa: B023
            assert await storage.webhooks.move(push, replace(push, version=1, set_mark=0))
            seen.append(str(push.set_mark))
        await Storage(storage).update_task("task-1", TaskState.TASK_STATE_COMPLETED)
        await reader.until(lambda: reader.commits() == [1, 2])
    assert {*marks(reader.records)} == {*seen}


def marks(records: list[Any]) -> list[str]:
    """The marks of the configurations that were set."""
    images = [record["dynamodb"]["NewImage"] for record in records]
    return [image["set_mark"]["N"] for image in images if image["SK"]["S"].startswith("PUSH#")]


async def test_a_file_tells_of_each_commit_at_least_once(file: SqliteTable) -> None:
    """Commits become records; a reader goes on where the last one ended, and repeats at most."""
    storage = DurableStorage(file)
    await storage.open_task("context", request(), task_id="task-1")
    async with reading(AddedStream(file)) as reader:
        await reader.until(lambda: reader.commits() == [1])
        await Storage(storage).update_task("task-1", TaskState.TASK_STATE_WORKING)
        await reader.until(lambda: reader.commits() == [1, 2])
        assert all(map(is_commit, reader.records))
        cursor = Key("STREAM#push", "CURSOR")
        while not await file.get(cursor):  # noqa: ASYNC110 - written behind the records
            await asyncio.sleep(0.01)
    await Storage(storage).update_task("task-1", TaskState.TASK_STATE_COMPLETED)
    async with reading(AddedStream(file)) as again:
        await again.until(lambda: again.commits()[-1:] == [3])
    assert again.commits() in ([3], [2, 3])


async def test_a_batch_that_was_not_settled_comes_again(file: SqliteTable) -> None:
    """A reader that dies before its records are settled leaves them to the next one."""
    storage = DurableStorage(file)
    await storage.open_task("context", request(), task_id="task-1")

    async def dies(_: Records) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await AddedStream(file).feed(dies)
    async with reading(AddedStream(file)) as reader:
        await reader.until(lambda: reader.commits() == [1])

"""The requests that storage makes of its table, and what a refused one says."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest
from botocore.exceptions import ClientError

from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.storage.dynamodb import _BATCH_ATTEMPTS, DynamoTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Delete, Key, Range, RefusedError
from a2a_serverless.storage.tail import Tail
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.operate.finding import created_in, find_tasks
from tests.support.clocks import ManualClock
from tests.support.databases import dynamo_storage, dynamo_table, key, moto_database
from tests.support.messages import artifact, request

FOUND = Key("p", "found")._asdict()


class EmptyPages:
    """A client whose Query drops all by its filter, page after page, before it finds one item."""

    def __init__(self, empty: int) -> None:
        self.limits: list[int | None] = []
        self._empty = empty

    def query(self, **request: Any) -> dict[str, Any]:
        self.limits.append(request.get("Limit"))
        if len(self.limits) <= self._empty:
            return {"Items": [], "Count": 0, "LastEvaluatedKey": key("p", "last")}
        return {"Items": [key("p", "found")], "Count": 1}


async def test_a_query_looks_at_more_per_page_up_to_a_limit() -> None:
    """What a filter lets through rarely is found in few pages, none larger than DynamoDB takes."""
    client = EmptyPages(20)
    table = dynamo_table(client=client, clock=ManualClock())
    pages = [page async for page in table.query(Range(partition="p", page=51))]
    assert pages == [[]] * 20 + [[FOUND]]
    assert client.limits[:3] == [51, 204, 816]
    assert client.limits[3:] == [1000] * 18


async def test_a_query_without_a_limit_gets_none() -> None:
    """DynamoDB's own page of 1 MB is the limit then."""
    client = EmptyPages(2)
    table = dynamo_table(client=client, clock=ManualClock())
    assert [page async for page in table.query(Range(partition="p"))][-1] == [FOUND]
    assert client.limits == [None] * 3


class Throttled:
    """A client that leaves the keys of a batch unprocessed, so many times, and refuses a look."""

    def __init__(self, times: int) -> None:
        self.asked = 0
        self._times = times

    def batch_get_item(self, **_: Any) -> dict[str, Any]:
        raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "BatchGetItem")

    def batch_write_item(self, *, RequestItems: Any, **_: Any) -> dict[str, Any]:  # noqa: N803
        self.asked += 1
        return {"UnprocessedItems": RequestItems if self.asked <= self._times else {}}


async def test_what_a_batch_leaves_is_sent_again_after_a_pause() -> None:
    """A few times; then the caller reads that DynamoDB has not taken it."""
    for times, asked in ((2, 3), (99, _BATCH_ATTEMPTS)):
        client, clock = Throttled(times), ManualClock()
        began, table = clock.monotonic(), dynamo_table(client=client, clock=clock)
        with (
            nullcontext() if times < asked else pytest.raises(UnavailableError, match="unprocessed")
        ):
            await table.delete([Key("p", "s")])
        assert client.asked == asked
        assert clock.monotonic() > began


async def test_a_look_is_asked_for_once() -> None:
    """What refuses it is told as no answer; for no task there is no request."""
    storage = dynamo_storage("tasks", client=Throttled(0), clock=ManualClock())
    assert await storage.look([]) == {}
    with pytest.raises(UnavailableError, match=r"^No answer from AWS: AccessDeniedException\.$"):
        await storage.look([("scope", "task")])


async def test_a_poll_of_a_tail_is_one_request_whatever_it_finds() -> None:
    """HEAD and the new events come with one consistent Query; nothing else is asked."""
    with moto_database() as moto:
        storage, asked = moto.storage(clock=ManualClock()), list[tuple[str, bool]]()
        head = (await storage.open_task("context", request())).head
        tail = await Tail.open(storage, head.task_id)

        def note(model: Any, params: dict[str, Any], **_: Any) -> None:
            asked.append((model.name, json.loads(params["body"])["ConsistentRead"]))

        for found in ("", "x", "x" * 400_000):
            if found:
                entry = ArtifactWritten(artifact("a", found))
                head = await storage.commit(head, Commit(entries=(entry,)))
            moto.client.meta.events.register("before-call.dynamodb.*", note)
            await tail.poll()
            moto.client.meta.events.unregister("before-call.dynamodb.*", note)
            assert tail.head == head
        assert asked == [("Query", True)] * 3


class Refusing:
    """A client that refuses every Query with one ValidationException."""

    def __init__(self, message: str) -> None:
        self._message = message

    def query(self, **_: Any) -> None:
        raise ClientError(
            {"Error": {"Code": "ValidationException", "Message": self._message}}, "Query"
        )


async def test_a_search_without_the_index_says_what_to_deploy() -> None:
    """With no index by id, or one not yet filled, one sentence says so; others are quoted."""
    for message in (
        "The table does not have the specified index: by-id",
        "Cannot read from backfilling global secondary index: by-id",
        "Invalid index: by-id for table: tasks. Available indexes are: by-due",
    ):
        storage = dynamo_storage("tasks", client=Refusing(message), clock=ManualClock())
        for search in (find_tasks(storage, "task"), created_in(storage, 0)):
            with pytest.raises(
                ConfigurationError, match=r"^The table has no index by-id yet: [^.]*\.$"
            ):
                await search
    message = "Query condition missed key schema element: id_key"
    storage = dynamo_storage("tasks", client=Refusing(message), clock=ManualClock())
    with pytest.raises(RefusedError, match=message):
        await find_tasks(storage, "task")


async def test_no_error_of_boto3_leaves_the_table() -> None:
    """Without its table each request is a ConfigurationError; what boto3 refuses a RefusedError."""
    place = Key("p", "s")
    with moto_database() as database:
        table = DynamoTable("missing", INDEXES, client=database.client)
        for request in (
            table.load([place]),
            table.load([place, Key("p", "t")]),
            table.all(Range(partition="p")),
            table.count(Range(partition="p", index="by-due")),
            table.write(Delete(key=place)),
            table.write(Delete(key=place), exactly=True),
            table.delete([place]),
        ):
            with pytest.raises(
                ConfigurationError,
                match=r"^The table missing cannot be used: .*ResourceNotFoundException.*; check",
            ):
                await request
        with pytest.raises(RefusedError, match="TableName"):
            await DynamoTable("", INDEXES, client=database.client).load([place])

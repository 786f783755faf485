"""The requests that storage makes of its table."""

from __future__ import annotations

from typing import Any

from a2a_serverless.storage.table import Key, Range
from tests.support.clocks import ManualClock
from tests.support.databases import dynamo_table, key

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

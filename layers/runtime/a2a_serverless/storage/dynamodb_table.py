"""The few requests that storage makes of its table, each repeated until it has an answer.

`TableStorage` is what the parts of `DynamoStorage` have in common, one for each kind of item.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from a2a_serverless import aws
from a2a_serverless.aws import ConditionFailedError
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import UnavailableError, UnreadableTaskError
from a2a_serverless.storage import dynamodb_layout as layout
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.dynamodb_attributes import Item, attribute, due_of, plain
from a2a_serverless.storage.dynamodb_heads import head_of
from a2a_serverless.storage.dynamodb_layout import key
from a2a_serverless.storage.log import Due, Place
from a2a_serverless.storage.reading import tell_left_out
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import ANONYMOUS, Scope, is_task_id, new_token
from a2a_serverless.tasks.rules import Timing

_KEYS_A_READ: Final = 100
_KEYS_A_DELETE: Final = 25
_BATCH_ATTEMPTS: Final = 12

_LARGEST_LIMIT: Final = 1000
"""Items that one page of a Query looks at, at most: about as many index entries as 1 MB holds."""

Action = dict[str, dict[str, Any]]
"""One action of a transaction, without its table: `{"Put": {…}}`."""


class Table:
    """One DynamoDB table. There is no Scan here, and none is needed.

    Every method but `look` and `note` raises UnavailableError when DynamoDB does not answer within
    the retry budget.
    """

    def __init__(self, name: str, client: Any, clock: Clock) -> None:
        self._name = name
        self._client = client
        self._clock = clock

    async def get(self, key: Item) -> Item | None:
        """Return one item, read consistently."""
        answer = await self._request("get_item", Key=key, ConsistentRead=True)
        item: Item | None = answer.get("Item")
        return item

    async def query(self, **request: Any) -> AsyncIterator[list[Item]]:
        """Yield the pages of a Query."""
        async for answer in self._pages(**request):
            yield answer["Items"]

    async def count(self, **request: Any) -> tuple[int, int]:
        """Return how many items a Query finds, and how many it reads before its filter."""
        pages = [answer async for answer in self._pages(Select="COUNT", **request)]
        return sum(page["Count"] for page in pages), sum(page["ScannedCount"] for page in pages)

    async def load(
        self, keys: Sequence[Item], *, consistent: bool = True, only: Sequence[str] = ()
    ) -> list[Item]:
        """Return the items under `keys` as far as they exist, in no order.

        If not `consistent`, for half the price, what was just written may be missing. `only` names
        the attributes that are wanted; the price is the same, but boto3 spends less time on them.
        """
        found: list[Item] = []
        options = _projection(only) if only else {}

        async def read(pending: list[Any]) -> list[Any]:
            wanted = {self._name: {"Keys": pending, "ConsistentRead": consistent, **options}}
            answer = await self._repeat("batch_get_item", RequestItems=wanted)
            found.extend(answer["Responses"].get(self._name, []))
            return _unread(answer, self._name)

        await self._in_batches(keys, _KEYS_A_READ, read)
        return found

    async def look(self, keys: Sequence[Item]) -> tuple[list[Item], list[Item]]:
        """Return the items under `keys`, at most 100, and the keys that were not read.

        Half the price of `load`: what is found may be out of date, and the request is not repeated.

        Raises:
            ClientError, BotoCoreError: as boto3 does.
        """
        wanted = {self._name: {"Keys": keys}}
        answer = await aws.call(self._client.batch_get_item, RequestItems=wanted)
        return answer["Responses"].get(self._name, []), _unread(answer, self._name)

    async def delete_one(self, **request: Any) -> bool:
        """Delete one item; return False if its condition failed, as `update` does."""
        return await self._has_held("delete_item", request)

    async def delete(self, keys: Sequence[Item]) -> None:
        """Delete the items under `keys`; not as one step."""

        async def write(pending: list[Any]) -> list[Any]:
            answer = await self._repeat("batch_write_item", RequestItems={self._name: pending})
            left: list[Any] = answer.get("UnprocessedItems", {}).get(self._name, [])
            return left

        deletes = [{"DeleteRequest": {"Key": key}} for key in keys]
        await self._in_batches(deletes, _KEYS_A_DELETE, write)

    async def update(self, **request: Any) -> bool:
        """Update one item; return False if its condition failed.

        After a lost answer the condition may have failed because this same update was applied.
        """
        return await self._has_held("update_item", request)

    async def note(self, **request: Any) -> None:
        """Update one item, in one request that is not repeated; what it says may be lost."""
        with suppress(*aws.ERRORS):
            await aws.call(self._client.update_item, TableName=self._name, **request)

    async def transact(self, actions: Sequence[Action]) -> None:
        """Do all actions or none.

        All repetitions carry one token, so that DynamoDB applies them once.

        Raises:
            ConditionFailedError: a condition failed; the error's items have the places of
                `actions`. The transaction may have been applied all the same: its answer was lost,
                and another writer has changed its items since.
        """
        await self._repeat(
            "transact_write_items",
            TransactItems=[
                {kind: {"TableName": self._name, **action}}
                for step in actions
                for kind, action in step.items()
            ],
            ClientRequestToken=new_token(),
        )

    async def _pages(self, **request: Any) -> AsyncIterator[Any]:
        while True:
            answer = await self._request("query", **request)
            yield answer
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
            if "Limit" in request:
                # The first page had too few matches: they may be rare, so look at more at once.
                request["Limit"] = min(request["Limit"] * 4, _LARGEST_LIMIT)

    async def _in_batches(
        self, wanted: Sequence[Any], size: int, step: Callable[[list[Any]], Awaitable[list[Any]]]
    ) -> None:
        """Do `step` with `size` of `wanted` at a time; repeat it for what it left unprocessed."""
        for start in range(0, len(wanted), size):
            pending = await step(list(wanted[start : start + size]))
            attempt = 1
            while pending:
                if attempt == _BATCH_ATTEMPTS:
                    msg = f"DynamoDB left items of a batch unprocessed {attempt} times."
                    raise UnavailableError(msg)
                await self._clock.sleep(aws.pause_s(attempt))
                pending = await step(pending)
                attempt += 1

    async def _has_held(self, operation: str, request: dict[str, Any]) -> bool:
        """Make a conditional request; return False if its condition failed."""
        try:
            await self._request(operation, **request)
        except ConditionFailedError:
            return False
        return True

    async def _request(self, operation: str, **request: Any) -> Any:
        return await self._repeat(operation, TableName=self._name, **request)

    async def _repeat(self, operation: str, **request: Any) -> Any:
        return await aws.repeat(getattr(self._client, operation), clock=self._clock, **request)


def _projection(names: Sequence[str]) -> dict[str, Any]:
    """Return the parameters that ask for some attributes; aliases, as names may be reserved."""
    aliases = {f"#{number}": name for number, name in enumerate(names)}
    return {"ProjectionExpression": ", ".join(aliases), "ExpressionAttributeNames": aliases}


def _unread(answer: Any, table: str) -> list[Item]:
    """Return the keys that a BatchGetItem had no capacity for."""
    unread: list[Item] = answer.get("UnprocessedKeys", {}).get(table, {"Keys": []})["Keys"]
    return unread


class TableStorage(DurableStorage):
    """A table seen through one scope.

    `client` is a boto3 client of DynamoDB, by default the process's own.
    """

    def __init__(
        self,
        table: str,
        *,
        client: Any = None,
        scope: Scope = ANONYMOUS,
        clock: Clock | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.scope = scope
        self.clock = clock or SystemClock()
        self.timing = timing or Timing()
        self._name = table
        self._client = client or aws.client("dynamodb")
        self._table = Table(table, self._client, self.clock)

    def for_scope(self, scope: Scope) -> Self:
        return type(self)(
            self._name, client=self._client, scope=scope, clock=self.clock, timing=self.timing
        )

    async def head(self, task_id: str) -> Head | None:
        if not is_task_id(task_id):
            return None
        return self._live(await self._table.get(key(self._partition(task_id), layout.HEAD)))

    async def _overdue(
        self, kind: str, now_ms: int, limit: int, after: Due | None, *, only_live: bool = False
    ) -> list[Item]:
        """Return the first entries of the due index behind `after`, the longest overdue first.

        `kind` is that of `due_keys`. The index lags behind the table. If more than `limit` entries
        of one shard have the same due time, the page behind them may miss some.
        """
        values = {
            ":since": attribute(after.due_at if after else 0),
            ":due": attribute(now_ms),
        }
        options = {}
        if only_live:
            values[":now"] = attribute(now_ms // 1000)
            options = {"FilterExpression": "expires_at > :now"}
        shards = [
            self._first(
                limit,
                lambda entry: after is None or _place_of(entry) > after.place,
                IndexName=layout.BY_DUE,
                KeyConditionExpression="due_key = :due_key AND due_at BETWEEN :since AND :due",
                ExpressionAttributeValues={":due_key": attribute(due_key), **values},
                **options,
            )
            for due_key in layout.due_keys(kind)
        ]
        entries = [entry for shard in await asyncio.gather(*shards) for entry in shard]
        return sorted(entries, key=_place_of)[:limit]

    async def _first(
        self, limit: int, is_wanted: Callable[[Item], bool], **request: Any
    ) -> list[Item]:
        """Return the first `limit` wanted entries that pass the query's filter."""
        found: list[Item] = []
        # One more: a key range includes its end, which is not wanted.
        async for page in self._table.query(Limit=limit + 1, **request):
            found += filter(is_wanted, page)
            if len(found) >= limit:
                break
        return found[:limit]

    def _partition(self, task_id: str) -> str:
        return layout.task_partition(self.scope.digest, task_id)

    def _now_s(self) -> int:
        """Return the present second: an item is live while its `expires_at` is greater."""
        return self.clock.now_ms() // 1000

    def _is_live(self, item: Item) -> bool:
        """Return True unless the item says that it has expired; the rest may be damaged."""
        expires_at = plain(item).get("expires_at")
        return not isinstance(expires_at, int) or expires_at > self._now_s()

    def _live(self, item: Item | None) -> Head | None:
        head = head_of(item) if item else None
        return None if head is None or head.has_expired(self.clock.now_ms()) else head

    def _readable(self, item: Item | None) -> Head | None:
        """Return the item's HEAD if it is live; None, with a line in the log, if it is damaged.

        For reads of many tasks, in which a damaged one must not hide the others.
        """
        try:
            return self._live(item)
        except UnreadableTaskError as error:
            tell_left_out(error)
            return None


def _place_of(entry: Item) -> Place:
    """Return the place of an entry of the due index, as `Due.place`."""
    scope, task_id = layout.owner_of(entry["PK"]["S"])
    return due_of(entry), task_id, scope

"""The few requests that storage makes of its table, each repeated until it has an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.clock import Clock
from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage.dynamodb_items import Item
from a2a_serverless.tasks.identity import new_token

_KEYS_A_READ: Final = 100
_KEYS_A_DELETE: Final = 25
_BATCH_ATTEMPTS: Final = 12

_LARGEST_LIMIT: Final = 1000
"""Items that one page of a Query looks at, at most: about as many index entries as 1 MB holds."""

Action = dict[str, dict[str, Any]]
"""One action of a transaction, without its table: `{"Put": {…}}`."""


class Table:
    """One DynamoDB table. There is no Scan here, and none is needed.

    Every method but `look` raises UnavailableError when DynamoDB does not answer within the retry
    budget.
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

    async def count(self, **request: Any) -> int:
        """Count the items that a Query finds; it pays for those that its filter drops as well."""
        return sum([answer["Count"] async for answer in self._pages(Select="COUNT", **request)])

    async def load(self, keys: Sequence[Item]) -> list[Item]:
        """Return the items under `keys` as far as they exist, read consistently, in no order."""
        found: list[Item] = []
        for batch in _batches(keys, _KEYS_A_READ):
            pending = batch
            for attempt in range(1, _BATCH_ATTEMPTS + 1):
                wanted = {self._name: {"Keys": pending, "ConsistentRead": True}}
                answer = await self._repeat("batch_get_item", RequestItems=wanted)
                found += answer["Responses"].get(self._name, [])
                left = answer.get("UnprocessedKeys", {}).get(self._name)
                if not left:
                    break
                pending = left["Keys"]
                await self._pause(attempt)
        return found

    async def look(self, keys: Sequence[Item]) -> tuple[list[Item], list[Item]]:
        """Return the items under `keys`, at most 100, and the keys that were not read.

        Half the price of `load`: what is found may be late, and nothing is asked twice.

        Raises:
            ClientError, BotoCoreError: as boto3 does.
        """
        wanted = {self._name: {"Keys": keys}}
        answer = await aws.call(self._client.batch_get_item, RequestItems=wanted)
        unread = answer.get("UnprocessedKeys", {}).get(self._name, {"Keys": []})
        return answer["Responses"].get(self._name, []), unread["Keys"]

    async def delete_one(self, **request: Any) -> None:
        """Delete one item.

        Raises:
            ConditionFailedError: as `update`.
        """
        await self._request("delete_item", **request)

    async def delete(self, keys: Sequence[Item]) -> None:
        """Delete the items under `keys`; not as one step."""
        for batch in _batches(keys, _KEYS_A_DELETE):
            pending: list[Any] = [{"DeleteRequest": {"Key": key}} for key in batch]
            for attempt in range(1, _BATCH_ATTEMPTS + 1):
                wanted = {self._name: pending}
                answer = await self._repeat("batch_write_item", RequestItems=wanted)
                pending = answer.get("UnprocessedItems", {}).get(self._name, [])
                if not pending:
                    break
                await self._pause(attempt)

    async def update(self, **request: Any) -> None:
        """Update one item.

        Raises:
            ConditionFailedError: its condition failed. After a lost answer that may be the
                doing of the same update.
        """
        await self._request("update_item", **request)

    async def transact(self, actions: Sequence[Action]) -> None:
        """Do all actions or none.

        All repetitions carry one token, so that DynamoDB applies them once.

        Raises:
            ConditionFailedError: a condition failed; its items have the places of `actions`. A
                transaction whose answer was lost may fail by its own doing, when another writer has
                built on it.
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
                # What the first page had too little of may be rare: look at more at once.
                request["Limit"] = min(request["Limit"] * 4, _LARGEST_LIMIT)

    async def _pause(self, attempt: int) -> None:
        if attempt == _BATCH_ATTEMPTS:
            raise UnavailableError(f"DynamoDB left items of a batch unprocessed {attempt} times.")
        await self._clock.sleep(aws.pause_s(attempt))

    async def _request(self, operation: str, **request: Any) -> Any:
        return await self._repeat(operation, TableName=self._name, **request)

    async def _repeat(self, operation: str, **request: Any) -> Any:
        return await aws.repeat(getattr(self._client, operation), clock=self._clock, **request)


def _batches(keys: Sequence[Item], size: int) -> Iterator[list[Item]]:
    for start in range(0, len(keys), size):
        yield list(keys[start : start + size])

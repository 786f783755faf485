"""The table in DynamoDB: each request is repeated until it has an answer."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.clock import Clock, SystemClock, pause_s
from a2a_serverless.errors import ConditionFailedError, ConfigurationError, UnavailableError
from a2a_serverless.storage.dynamodb_words import Typed, Words, action_of, plain, query_of, typed
from a2a_serverless.storage.table import (
    TABLE,
    Index,
    Item,
    Key,
    Matches,
    Pause,
    Range,
    RefusedError,
    Table,
    Watch,
    Write,
    key_of,
)
from a2a_serverless.tasks.identity import new_token

_KEYS_A_READ: Final = 100
_KEYS_A_DELETE: Final = 25
_BATCH_ATTEMPTS: Final = 12

_LARGEST_LIMIT: Final = 1000
"""Items that one page of a Query looks at, at most: about as many index entries as 1 MB holds."""

_NO_INDEX: Final = (
    "The table does not have the specified index",
    "Cannot read from backfilling global secondary index",
)
_REFUSED: Final = frozenset({"ValidationException", "ValidationError"})


class DynamoTable(Table):
    """One DynamoDB table. There is no Scan here, and none is needed.

    An error that a repetition cannot cure is raised as boto3 raises it.

    Args:
        name: the table's name.
        indexes: the keys of the table's indexes, by name.
        client: a boto3 client of DynamoDB, by default the process's own.
        clock: by default the system's.
    """

    def __init__(
        self,
        name: str,
        indexes: Mapping[str, Index],
        *,
        client: Any = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.client = client or aws.client("dynamodb")
        self._indexes = {**indexes, "": TABLE}
        self._clock = clock or SystemClock()

    async def load(
        self,
        keys: Iterable[Key],
        *,
        consistent: bool = True,
        once: bool = False,
        only: Sequence[str] = (),
    ) -> dict[Key, Item | None]:
        asked = list(keys)
        # A few attributes have the price of all, but boto3 spends less time on them.
        words = Words()
        options = {"ConsistentRead": consistent, **words.only(only), **words.aliases()}
        if len(asked) == 1 and not once:
            answer = await self._request("get_item", Key=_place(asked[0]), **options)
            return {asked[0]: plain(answer["Item"]) if "Item" in answer else None}
        found: dict[Key, Item | None] = dict.fromkeys(asked)

        async def read(pending: list[Any]) -> list[Any]:
            wanted = {self.name: {"Keys": pending, **options}}
            answer = await self._send("batch_get_item", once=once, RequestItems=wanted)
            items = map(plain, answer["Responses"].get(self.name, []))
            found.update((key_of(item), item) for item in items)
            unread: list[Any] = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
            return unread

        places = [_place(key) for key in asked]
        if not once:
            await self._in_batches(places, _KEYS_A_READ, read)
        elif places:
            for unread in await read(places):
                del found[key_of(plain(unread))]
        return found

    async def query(self, wanted: Range) -> AsyncIterator[list[Item]]:
        async for answer in self._pages(wanted):
            yield [plain(item) for item in answer["Items"]]

    async def count(self, wanted: Range) -> Matches:
        counted = replace(wanted, only=())
        pages = [answer async for answer in self._pages(counted, Select="COUNT")]
        passed = sum(page["Count"] for page in pages)
        return Matches(passed, sum(page["ScannedCount"] for page in pages))

    async def write(self, *writes: Write, exactly: bool = False, once: bool = False) -> None:
        actions = [action_of(write) for write in writes]
        try:
            if len(actions) == 1 and not exactly:
                ((kind, action),) = actions
                await self._request(f"{kind.lower()}_item", once=once, **action)
                return
            await self._send(
                "transact_write_items",
                TransactItems=[
                    {kind: {"TableName": self.name, **action}} for kind, action in actions
                ],
                # All repetitions carry one token, so that DynamoDB applies them once.
                ClientRequestToken=new_token(),
            )
        except ConditionFailedError as failed:
            items = {at: plain(item) if item else None for at, item in failed.items.items()}
            raise ConditionFailedError(items) from failed

    async def delete(self, keys: Iterable[Key]) -> None:
        async def write(pending: list[Any]) -> list[Any]:
            answer = await self._send("batch_write_item", RequestItems={self.name: pending})
            left: list[Any] = answer.get("UnprocessedItems", {}).get(self.name, [])
            return left

        deletes = [{"DeleteRequest": {"Key": _place(key)}} for key in keys]
        await self._in_batches(deletes, _KEYS_A_DELETE, write)

    def watch(self, partition: str) -> AbstractContextManager[Watch]:  # noqa: ARG002 - DynamoDB does not tell
        return nullcontext(Pause(self._clock))

    async def _pages(self, wanted: Range, **more: Any) -> AsyncIterator[Any]:
        request = query_of(wanted, self._indexes[wanted.index]) | more
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
                await self._clock.sleep(pause_s(attempt))
                pending = await step(pending)
                attempt += 1

    async def _request(self, operation: str, **request: Any) -> Any:
        return await self._send(operation, TableName=self.name, **request)

    async def _send(self, operation: str, *, once: bool = False, **request: Any) -> Any:
        attempts = {"attempts": 1} if once else {}
        try:
            return await self._repeat(operation, **attempts, **request)
        except aws.ERRORS as error:
            if aws.codes_of(error) & _REFUSED:
                raise self._refused(error, request.get("IndexName", "")) from error
            if once:
                raise UnavailableError(f"No answer from AWS: {aws.error_code(error)}.") from error
            raise

    async def _repeat(self, operation: str, **request: Any) -> Any:
        return await aws.repeat(getattr(self.client, operation), clock=self._clock, **request)

    def _refused(self, error: Exception, index: str) -> Exception:
        """Return the error for a request that DynamoDB does not take."""
        if not any(sentence in str(error) for sentence in _NO_INDEX):
            return RefusedError(str(error))
        return ConfigurationError(
            f"The table has no index {index} yet: deploy this release's template, or wait until the"
            " index is filled."
        )


def _place(key: Key) -> Typed:
    return typed(key._asdict())

"""The table in DynamoDB: each request is repeated until it has an answer."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from decimal import Decimal
from time import perf_counter
from typing import Any, ClassVar, Final

from a2a_serverless import aws
from a2a_serverless.clock import Clock, SystemClock, pause_s
from a2a_serverless.errors import ConditionFailedError, ConfigurationError, UnavailableError
from a2a_serverless.spent import took
from a2a_serverless.storage.table import (
    TABLE,
    Added,
    Check,
    Index,
    Item,
    Key,
    Pause,
    Put,
    Range,
    RefusedError,
    Table,
    Update,
    Watch,
    When,
    Write,
    key_of,
)
from a2a_serverless.tasks.identity import new_token

_KEYS_A_READ: Final = 100
_KEYS_A_DELETE: Final = 25
_BATCH_ATTEMPTS: Final = 12

_READS: Final = frozenset({"batch_get_item", "get_item", "query"})

_LARGEST_LIMIT: Final = 1000
"""Items that one page of a Query looks at, at most: about as many index entries as 1 MB holds."""

_NO_INDEX: Final = (
    "The table does not have the specified index",
    "Invalid index",  # as moto says it
    "Cannot read from backfilling global secondary index",
)
_REFUSED: Final = frozenset({"ParamValidationError", "ValidationError", "ValidationException"})


class DynamoTable(Table):
    """One DynamoDB table. There is no Scan here, and none is needed.

    An error that a repetition cannot cure is RefusedError if the request is wrong, and else
    ConfigurationError: the table is missing, or this process may not use it.

    Args:
        name: the table's name.
        indexes: the keys of the table's indexes, by name.
        client: a boto3 client of DynamoDB, by default the process's own.
        clock: by default the system's.
    """

    partition_units: ClassVar[int | None] = 1000
    """AWS's developer guide, "Best practices for designing and using partition keys effectively".

    What a partition takes beyond that, after minutes without use, is not promised.
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
        words = _Words()
        named = ("PK", "SK", *only) if only else ()
        options = {"ConsistentRead": consistent, **words.only(named), **words.aliases()}
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

    async def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        async for answer in self._pages(wanted):
            yield [plain(item) for item in answer["Items"]]

    async def count(self, wanted: Range) -> int:
        pages = self._pages(replace(wanted, only=()), Select="COUNT")
        return sum([page["Count"] async for page in pages])

    async def write(self, *writes: Write, exactly: bool = False) -> None:
        actions = [_action_of(write) for write in writes]
        try:
            # A transaction costs twice as many units; see `Table.write` for what it is needed for.
            if len(actions) == 1 and not exactly:
                ((kind, action),) = actions
                await self._request(f"{kind.lower()}_item", **action)
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
        request = _query_of(wanted, self._indexes[wanted.index]) | more
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
                # It leaves items unprocessed when it throttles: at once it would leave them again.
                await self._clock.sleep(pause_s(attempt))
                pending = await step(pending)
                attempt += 1

    async def _request(self, operation: str, **request: Any) -> Any:
        return await self._send(operation, TableName=self.name, **request)

    async def _send(self, operation: str, *, once: bool = False, **request: Any) -> Any:
        budget = {"budget_s": 0} if once else {}
        try:
            return await self._repeat(operation, **budget, **request)
        except aws.ERRORS as error:
            if aws.codes_of(error) & _REFUSED:
                raise self._refused(error, request.get("IndexName", "")) from error
            if once:
                raise UnavailableError(f"No answer from AWS: {aws.error_code(error)}.") from error
            raise ConfigurationError(
                f"The table {self.name} cannot be used: {str(error).rstrip('.')}; check its name"
                " (A2A_TABLE), the region and the credentials."
            ) from error

    async def _repeat(self, operation: str, **request: Any) -> Any:
        began, answer = perf_counter(), {}
        try:
            answer = await aws.repeat(
                getattr(self.client, operation),
                clock=self._clock,
                ReturnConsumedCapacity="TOTAL",
                **request,
            )
            return answer
        finally:
            took(began, "read" if operation in _READS else "write", _units_in(answer))

    def _refused(self, error: Exception, index: str) -> Exception:
        """Return the error for a request that DynamoDB does not take."""
        if not any(sentence in str(error) for sentence in _NO_INDEX):
            return RefusedError(str(error))
        return ConfigurationError(
            f"The table has no index {index} yet: deploy this release's template, or wait until the"
            " index is filled."
        )


def definition_of(
    indexes: Mapping[str, Index], *, numbers: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the arguments of `CreateTable` for a table with indexes, except its name.

    Args:
        indexes: the keys of the indexes, by name.
        numbers: the keys that are numbers; all others are texts.
    """
    keys = dict.fromkeys([k for i in (TABLE, *indexes.values()) for k in (i.partition, i.sort)])
    return {
        "AttributeDefinitions": [
            {"AttributeName": key, "AttributeType": "N" if key in numbers else "S"} for key in keys
        ],
        "BillingMode": "PAY_PER_REQUEST",
        "GlobalSecondaryIndexes": [
            {
                "IndexName": name,
                "KeySchema": _key_schema(index),
                "Projection": {
                    "ProjectionType": "INCLUDE",
                    "NonKeyAttributes": sorted(index.projects),
                }
                if index.projects
                else {"ProjectionType": "KEYS_ONLY"},
            }
            for name, index in indexes.items()
        ],
        "KeySchema": _key_schema(TABLE),
    }


def _key_schema(index: Index) -> list[dict[str, str]]:
    return [
        {"AttributeName": index.partition, "KeyType": "HASH"},
        {"AttributeName": index.sort, "KeyType": "RANGE"},
    ]


def _units_in(answer: Mapping[str, Any]) -> float | None:
    """Return the units that an answer reports; None: it reports none, as some emulators."""
    found = answer.get("ConsumedCapacity")
    reports = [found] if isinstance(found, dict) else found or []
    units = [each["CapacityUnits"] for each in reports if "CapacityUnits" in each]
    return sum(units) if units else None


def _place(key: Key) -> _Typed:
    return typed(key._asdict())


# -- values and expressions of the API ---------------------------------------------------------

_Typed = dict[str, Any]
"""An item, or some of its attributes, as DynamoDB's API has it: `{"PK": {"S": "…"}}`."""


def _attribute(value: Any) -> dict[str, Any]:
    """Return a value as DynamoDB's API has it; the reverse of `plain` for each value of an item."""
    match value:
        case None:
            return {"NULL": True}
        case str():
            return {"S": value}
        case int() | float():
            return {"N": str(value)}
        case bytes():
            return {"B": value}
        case (kind, other):
            return {kind: other}
        case _:
            raise TypeError(f"An item has no value of type {type(value).__name__}.")


def typed(values: Mapping[str, Any]) -> _Typed:
    """Return an item as DynamoDB's API has it."""
    return {name: _attribute(value) for name, value in values.items()}


def plain(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item with Python's values.

    A value that no release stores becomes neither str nor int nor bytes, so that a reader sees the
    damage: a number that is not whole becomes a float, and a value of another type the pair of its
    type and itself.
    """
    return {name: _plain(*value.items()) for name, value in item.items()}


def _plain(typed: tuple[str, Any]) -> Any:
    match typed:
        case ("N", number):
            return _number(number)
        case ("NULL", _):
            return None
        case ("B", binary):
            return bytes(binary)
        case ("S", text):
            return text
        case _:
            return typed


def _number(text: str) -> int | float:
    if not set(text) & _FLOAT:
        return int(text)
    number = Decimal(text)
    return int(number) if number == number.to_integral_value() else float(number)


_FLOAT: Final = frozenset(".eE")
"""Characters in which a number that may not be whole differs from a whole one."""


Request = dict[str, Any]
"""Parameters of a request, or one action of a transaction, without the table's name."""


class _Words:
    """The expressions of one request, and the aliases that they use.

    Every name has an alias, because many are reserved words of DynamoDB.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Any] = {}

    def name(self, name: str) -> str:
        """Return the alias of an _attribute's name."""
        return self._names.setdefault(name, f"#n{len(self._names)}")

    def value(self, value: Any) -> str:
        """Return the alias of a value."""
        alias = f":v{len(self._values)}"
        self._values[alias] = _attribute(value)
        return alias

    def condition(self, when: When) -> str:
        """Return a condition or a filter."""
        return " AND ".join(
            self._check(check)
            if isinstance(check, Check)
            else f"({' OR '.join(map(self._check, check))})"
            for check in when
        )

    def _check(self, check: Check) -> str:
        name = self.name(check.name)
        match check.operator:
            case "absent":
                return f"attribute_not_exists({name})"
            case "present":
                return f"attribute_exists({name})"
            case operator:
                return f"{name} {operator} {self.value(check.value)}"

    def change(self, values: Mapping[str, Any], remove: Sequence[str]) -> str:
        """Return what an update does."""
        sets = [
            f"{self.name(name)} = {self.value(new)}"
            for name, new in values.items()
            if not isinstance(new, Added)
        ]
        adds = [
            f"{self.name(name)} {self.value(new.number)}"
            for name, new in values.items()
            if isinstance(new, Added)
        ]
        removes = [self.name(name) for name in remove]
        clauses = {"SET": sets, "REMOVE": removes, "ADD": adds}
        return " ".join(f"{verb} {', '.join(what)}" for verb, what in clauses.items() if what)

    def keys(self, wanted: Range, index: Index) -> str:
        """Return the condition on the keys of a range."""
        partition = f"{self.name(index.partition)} = {self.value(wanted.partition)}"
        first, last = wanted.first, wanted.last
        if first is not None and last is not None:
            ends = f"{self.value(first)} AND {self.value(last)}"
            return f"{partition} AND {self.name(index.sort)} BETWEEN {ends}"
        if first is not None:
            return f"{partition} AND {self.name(index.sort)} >= {self.value(first)}"
        if last is not None:
            return f"{partition} AND {self.name(index.sort)} <= {self.value(last)}"
        return partition

    def only(self, names: Sequence[str]) -> Request:
        """Return the parameter that asks for some attributes; no names: for all."""
        if not names:
            return {}
        return {"ProjectionExpression": ", ".join(map(self.name, dict.fromkeys(names)))}

    def aliases(self) -> Request:
        """Return the parameters that say what the aliases stand for."""
        request: Request = {}
        if self._names:
            request["ExpressionAttributeNames"] = {a: name for name, a in self._names.items()}
        if self._values:
            request["ExpressionAttributeValues"] = self._values
        return request


def _action_of(write: Write) -> tuple[str, Request]:
    """Return the kind of a write and its parameters, such as `("Put", {"Item": …})`."""
    words, request = _Words(), Request()
    if write.when:
        request["ConditionExpression"] = words.condition(write.when)
        # So the refusal brings the item, and the next try needs no read.
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    match write:
        case Put(item=item):
            return "Put", {"Item": typed(item), **request, **words.aliases()}
        case Update(key=key, values=values, remove=remove):
            request |= {
                "Key": typed(key._asdict()),
                "UpdateExpression": words.change(values, remove),
            }
            return "Update", request | words.aliases()
        case _:
            return "Delete", {"Key": typed(write.key._asdict()), **request, **words.aliases()}


def _query_of(wanted: Range, index: Index) -> Request:
    """Return the parameters of a Query; `index` is the range's, or has the table's own keys."""
    words = _Words()
    request: Request = {"KeyConditionExpression": words.keys(wanted, index)}
    # A global index has no consistent reads.
    if wanted.index:
        request["IndexName"] = wanted.index
    else:
        request["ConsistentRead"] = True
    if wanted.when:
        request["FilterExpression"] = words.condition(wanted.when)
    if wanted.newest_first:
        request["ScanIndexForward"] = False
    if wanted.page is not None:
        request["Limit"] = wanted.page
    return request | words.only(wanted.only) | words.aliases()

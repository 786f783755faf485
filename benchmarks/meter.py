"""Counts what a DynamoDB client sends: requests, bytes, and units.

Plain requests report their units. But a read that finds nothing costs the least units of a read,
for which DynamoDB Local reports 0. DynamoDB Local also reports the units of transactions wrongly,
so they are counted by rule: for each action on the table 2 x the KB of the larger of the item
before and after it, rounded up, and for each index 1 x the KB of each entry put or deleted.
`plain_units` is the same rule for a plain write, which can be compared with what DynamoDB Local
reports.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from a2a_serverless_tools.local.provision import table_definition

Item = Mapping[str, Any]

_TRANSACTION = "TransactWriteItems"
_WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"})
_LEAST = "least_read_units"
_BEFORE = "items_before"


@dataclass
class Usage:
    """The requests that were sent, and their cost."""

    requests: int = 0
    sent_bytes: int = 0
    write_units: float = 0
    read_units: float = 0
    index_units: Counter[str] = field(default_factory=Counter, compare=False)
    """Write units of transactions in each index, which are among `write_units`."""
    kinds: Counter[str] = field(default_factory=Counter, compare=False)
    """Requests by what they do to which items, such as `GetItem HEAD`."""


class Meter:
    """Measures a client's requests to one table; `observer` is another client of the same table.

    Threads may share the client.
    """

    def __init__(self, client: Any, observer: Any, table: str) -> None:
        self._observer = observer
        self._table = table
        self._indexes = table_definition(stream=False)["GlobalSecondaryIndexes"]
        self._usage = Usage()
        self._lock = threading.Lock()
        events = client.meta.events
        events.register("provide-client-params.dynamodb.*", self._ask_for_units)
        events.register("before-call.dynamodb.*", _note_least)
        events.register("before-call.dynamodb.TransactWriteItems", self._note_before)
        events.register("before-send.dynamodb.*", self._count)
        events.register("after-call.dynamodb.*", self._add_units)

    @contextmanager
    def measure(self) -> Iterator[Usage]:
        """Yield the usage of the block, which is complete at its end."""
        before, self._usage = self._usage, Usage()
        try:
            yield self._usage
        finally:
            self._usage = before

    def plain_units(self, before: Item, after: Item) -> float:
        """Return the write units of a plain write that turns `before` into `after`; {}: no item."""
        return self._units(before, after, table_factor=1)

    def entries(self, item: Item) -> list[Item]:
        """Return the entries of an item in the indexes."""
        return [entry for index in self._indexes if (entry := _entry(index, item))]

    def _ask_for_units(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        if "ReturnConsumedCapacity" in model.input_shape.members:
            params["ReturnConsumedCapacity"] = "TOTAL"

    def _note_before(self, params: Mapping[str, Any], context: dict[str, Any], **_: Any) -> None:
        actions = json.loads(params["body"])["TransactItems"]
        context[_BEFORE] = [(action, self._stored(_key_of(action))) for action in actions]

    def _count(self, request: Any, event_name: str, **_: Any) -> None:
        with self._lock:
            self._usage.requests += 1
            self._usage.sent_bytes += len(request.body)
            self._usage.kinds[_kind(event_name.rpartition(".")[2], json.loads(request.body))] += 1

    def _add_units(
        self, parsed: dict[str, Any], model: Any, context: Mapping[str, Any], **_: Any
    ) -> None:
        if model.name == _TRANSACTION:
            pairs = [(before, self._stored(_key_of(action))) for action, before in context[_BEFORE]]
            written = sum(self._units(*pair, table_factor=2) for pair in pairs)
            with self._lock:
                self._usage.write_units += written
                for pair in pairs:
                    self._usage.index_units.update(self._in_indexes(*pair))
            return
        consumed = parsed.get("ConsumedCapacity", [])
        consumed = consumed if isinstance(consumed, list) else [consumed]
        units = sum(one["CapacityUnits"] for one in consumed)
        with self._lock:
            if model.name in _WRITES:
                self._usage.write_units += units
            else:
                self._usage.read_units += max(units, context[_LEAST])

    def _stored(self, key: Item) -> Item:
        answer = self._observer.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        item: Item = answer.get("Item", {})
        return item

    def _units(self, before: Item, after: Item, *, table_factor: int) -> float:
        units = table_factor * max(1, kilobytes(before), kilobytes(after))
        return units + sum(self._in_indexes(before, after).values())

    def _in_indexes(self, before: Item, after: Item) -> dict[str, int]:
        """Return the write units of a change in each index."""
        units = {}
        for index in self._indexes:
            old, new = _entry(index, before), _entry(index, after)
            if old == new:
                continue
            keys = [attribute["AttributeName"] for attribute in index["KeySchema"]]
            is_moved = any(old.get(name) != new.get(name) for name in keys)
            sizes = kilobytes(old), kilobytes(new)
            units[index["IndexName"]] = sum(sizes) if is_moved else max(sizes)
        return units


def _kind(operation: str, request: Mapping[str, Any]) -> str:
    """Return a request's operation, its index if any, and the kinds of its items."""
    found = {
        value["S"].partition("#")[0]
        for key in _keys(request)
        for value in [key.get("SK", {})]
        if "S" in value
    }
    index = request.get("IndexName", "")
    values = request.get("ExpressionAttributeValues", {}) if operation == "Query" else {}
    found |= {str(v["S"]).partition("#")[0] for v in values.values() if "S" in v and not index}
    return " ".join(filter(None, (operation, index, ", ".join(sorted(found)))))


def _keys(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the keys and items in a request."""
    if isinstance(value, list):
        for each in value:
            yield from _keys(each)
    elif isinstance(value, dict):
        if "PK" in value and "SK" in value:
            yield value
        else:
            for each in value.values():
                yield from _keys(each)


def _note_least(params: Mapping[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
    context[_LEAST] = _least_read_units(model.name, json.loads(params["body"]))


def _least_read_units(operation: str, request: Mapping[str, Any]) -> float:
    """Return what a read costs if it finds nothing: as much as 4 KB, for each key."""
    match operation:
        case "GetItem" | "Query":
            return 1 if request.get("ConsistentRead") else 0.5
        case "BatchGetItem":
            tables = request["RequestItems"].values()
            return sum(
                len(table["Keys"]) * (1 if table.get("ConsistentRead") else 0.5) for table in tables
            )
        case _:
            return 0


def kilobytes(item: Item) -> int:
    """Return the size of an item in KB, rounded up; 0 if there is none."""
    return -(-item_bytes(item) // 1024)


def item_bytes(item: Item) -> int:
    """Return the size of an item in bytes, as DynamoDB counts it."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: Mapping[str, Any]) -> int:
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "B":
            return len(content)
        case "N":
            return -(-len(content.strip("-").rstrip("0")) // 2) + 1
        case _:
            return 1


def _entry(index: Mapping[str, Any], item: Item) -> Item:
    """Return the entry of an item in an index; {} when the item is not in it."""
    keys = [attribute["AttributeName"] for attribute in index["KeySchema"]]
    if not all(name in item for name in keys):
        return {}
    projected = index["Projection"].get("NonKeyAttributes", [])
    return {name: item[name] for name in ("PK", "SK", *keys, *projected) if name in item}


def _key_of(action: Mapping[str, Any]) -> Item:
    ((_, request),) = action.items()
    source = request["Key"] if "Key" in request else request["Item"]
    return {name: source[name] for name in ("PK", "SK")}

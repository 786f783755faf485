"""Items, conditions and changes as DynamoDB's API has them: typed values and expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from a2a_serverless.storage.table import (
    Added,
    Check,
    CopyOf,
    Delete,
    Index,
    Kept,
    Put,
    Range,
    Update,
    When,
    Write,
)

Typed = dict[str, Any]
"""An item, or some of its attributes, as DynamoDB's API has it: `{"PK": {"S": "…"}}`."""


def attribute(value: Any) -> dict[str, Any]:
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


def typed(values: Mapping[str, Any]) -> Typed:
    """Return an item as DynamoDB's API has it."""
    return {name: attribute(value) for name, value in values.items()}


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
    number = float(text)
    return int(number) if number.is_integer() else number


_FLOAT: Final = frozenset(".eE")
"""Characters in which a number that may not be whole differs from a whole one."""


Request = dict[str, Any]
"""Parameters of a request, or one action of a transaction, without the table's name."""


class Words:
    """The expressions of one request, and the aliases that they use.

    Every name has an alias, because many are reserved words of DynamoDB.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Any] = {}

    def name(self, name: str) -> str:
        """Return the alias of an attribute's name."""
        return self._names.setdefault(name, f"#n{len(self._names)}")

    def value(self, value: Any) -> str:
        """Return the alias of a value."""
        alias = f":v{len(self._values)}"
        self._values[alias] = attribute(value)
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
            f"{self.name(name)} = {self._new(name, new)}"
            for name, new in values.items()
            if not isinstance(new, Added)
        ]
        adds = [
            f"{self.name(name)} {self.value(new.number)}"
            for name, new in values.items()
            if isinstance(new, Added)
        ]
        clauses = {"SET": sets, "REMOVE": [self.name(name) for name in remove], "ADD": adds}
        return " ".join(f"{verb} {', '.join(what)}" for verb, what in clauses.items() if what)

    def _new(self, name: str, new: Any) -> str:
        match new:
            case Kept(value):
                return f"if_not_exists({self.name(name)}, {self.value(value)})"
            case CopyOf(other):
                return self.name(other)
            case _:
                return self.value(new)

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
        """Return the parameter that asks for some attributes and the keys; no names: for all."""
        if not names:
            return {}
        wanted = dict.fromkeys(("PK", "SK", *names))
        return {"ProjectionExpression": ", ".join(map(self.name, wanted))}

    def aliases(self) -> Request:
        """Return the parameters that say what the aliases stand for."""
        request: Request = {}
        if self._names:
            request["ExpressionAttributeNames"] = {a: name for name, a in self._names.items()}
        if self._values:
            request["ExpressionAttributeValues"] = self._values
        return request


def action_of(write: Write) -> tuple[str, Request]:
    """Return the kind of a write and its parameters, such as `("Put", {"Item": …})`."""
    words, request = Words(), Request()
    if write.when:
        request["ConditionExpression"] = words.condition(write.when)
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
        case Delete(key=key):
            return "Delete", {"Key": typed(key._asdict()), **request, **words.aliases()}


def query_of(wanted: Range, index: Index) -> Request:
    """Return the parameters of a Query; `index` is the range's, or has the table's own keys."""
    words = Words()
    request: Request = {"KeyConditionExpression": words.keys(wanted, index)}
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

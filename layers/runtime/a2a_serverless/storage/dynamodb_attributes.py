"""The values of an item's attributes, as DynamoDB's API has them and as Python has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Item = dict[str, Any]
"""An item, or some of its attributes, as DynamoDB's API has it: `{"PK": {"S": "…"}}`."""


def attribute(value: str | int | bytes | None) -> dict[str, Any]:
    """Return a value as DynamoDB's API has it."""
    match value:
        case None:
            return {"NULL": True}
        case str():
            return {"S": value}
        case int():
            return {"N": str(value)}
        case bytes():
            return {"B": value}


def plain(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item with Python's values; a number that is not whole is a float.

    No release stores one: a reader that asks for an int takes it for damage.
    """
    return {name: _plain(*value.items()) for name, value in item.items()}


def _plain(typed: tuple[str, Any]) -> str | int | float | bytes | None:
    match typed:
        case ("N", number):
            return _number(number)
        case ("NULL", _):
            return None
        case ("B", binary):
            return bytes(binary)
        case (_, text):
            return str(text)


def _number(text: str) -> int | float:
    if not set(text) & _FLOAT:
        return int(text)
    number = float(text)
    return int(number) if number.is_integer() else number


_FLOAT: Final = frozenset(".eE")
"""Characters that only a number has which may not be whole."""


def due_of(item: Mapping[str, Any]) -> int:
    """Return the millisecond in which an item of the due index is due.

    A number that is not whole counts as its millisecond; without a number it is due at once.
    """
    due_at = plain(item).get("due_at")
    return int(due_at) if isinstance(due_at, int | float) else 0


def seconds(ms: int) -> int:
    """Return a time in milliseconds as whole seconds, rounded up, as `expires_at` has it."""
    return -(-ms // 1000)

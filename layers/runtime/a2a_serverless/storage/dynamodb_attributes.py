"""The values of an item's attributes, as DynamoDB's API has them and as Python has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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

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
    """Return an item with Python's values."""
    return {name: _plain(*value.items()) for name, value in item.items()}


def _plain(typed: tuple[str, Any]) -> str | int | bytes | None:
    match typed:
        case ("N", number):
            return int(float(number)) if set(number) & _FLOAT else int(number)
        case ("NULL", _):
            return None
        case ("B", binary):
            return bytes(binary)
        case (_, text):
            return str(text)


_FLOAT: Final = frozenset(".eE")
"""Characters of a number that is not whole; this release stores none."""


def seconds(ms: int) -> int:
    """Return a time in milliseconds as whole seconds, rounded up, as `expires_at` has it."""
    return -(-ms // 1000)

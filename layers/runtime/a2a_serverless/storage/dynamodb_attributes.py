"""The values of an item's attributes, as DynamoDB's API has them and as Python has them."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Final

Item = dict[str, Any]
"""An item, or some of its attributes, as DynamoDB's API has it: `{"PK": {"S": "…"}}`."""

Forms = Mapping[str, type | UnionType]
"""The types that attributes have in Python, see docs/format.md."""


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


def misfits_of(values: Mapping[str, Any], forms: Forms) -> set[str]:
    """Return the names of the attributes whose form no release writes."""
    return {n for n, form in forms.items() if n in values and not isinstance(values[n], form)}


def _number(text: str) -> int | float:
    if not set(text) & _FLOAT:
        return int(text)
    number = float(text)
    return int(number) if number.is_integer() else number


_FLOAT: Final = frozenset(".eE")
"""Characters in which a number that may not be whole differs from a whole one."""


def due_of(item: Mapping[str, Any]) -> int:
    """Return the millisecond in which an item of the due index is due.

    A number that is not whole is rounded down; without a number the item is due at once.
    """
    due_at = plain(item).get("due_at")
    return int(due_at) if isinstance(due_at, int | float) else 0


def seconds(ms: int) -> int:
    """Return a time in milliseconds as whole seconds, rounded up, as `expires_at` has it."""
    return -(-ms // 1000)

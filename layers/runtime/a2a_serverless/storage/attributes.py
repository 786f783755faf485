"""What the codecs of items have in common: the forms of attributes, and times."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any

Forms = Mapping[str, type | UnionType]
"""The types that attributes have, see docs/format.md."""


def misfits_of(values: Mapping[str, Any], forms: Forms) -> set[str]:
    """Return the names of the attributes whose form no release writes."""
    return {n for n, form in forms.items() if n in values and not isinstance(values[n], form)}


def due_of(item: Mapping[str, Any]) -> int:
    """Return the millisecond in which an item of the due index is due.

    A number that is not whole is rounded down; without a number the item is due at once.
    """
    due_at = item.get("due_at")
    return int(due_at) if isinstance(due_at, int | float) else 0


def seconds(ms: int) -> int:
    """Return a time in milliseconds as whole seconds, rounded up, as `expires_at` has it."""
    return -(-ms // 1000)

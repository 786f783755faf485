"""What a transaction does, and what every table refuses because DynamoDB does. Pure code."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from a2a_serverless.errors import ConditionFailedError, ConfigurationError
from a2a_serverless.storage.table import (
    Check,
    Index,
    Item,
    Key,
    Range,
    RefusedError,
    Update,
    When,
    Write,
    changed,
    holds,
)

MAX_WRITES: Final = 100
"""Writes of one transaction, and keys of one request that is not repeated."""
MAX_ITEM_BYTES: Final = 400 * 1024
MAX_TRANSACTION_BYTES: Final = 4 * 1024 * 1024
MAX_KEY_BYTES: Final = (2048, 1024)
"""The longest PK and SK."""

TABLE: Final = Index("PK", "SK")
"""The table's own keys, as those of an index."""


def check_writes(writes: Sequence[Write]) -> None:
    """Refuse what no transaction may have.

    Raises:
        RefusedError: none or more than `MAX_WRITES` writes, two on one item, a key that no item
            has, an update that changes nothing, a key, or one attribute twice, or a comparison by
            order with None.
    """
    if not 1 <= len(writes) <= MAX_WRITES:
        raise RefusedError(f"A transaction has 1 to {MAX_WRITES} writes, not {len(writes)}.")
    check_keys([write.key for write in writes])
    for write in writes:
        _check_when(write.when)
        if isinstance(write, Update):
            names = [*write.values, *write.remove]
            if not names or len(set(names)) < len(names) or {"PK", "SK"} & set(names):
                raise RefusedError("An update changes attributes that are no keys, each once.")


def check_keys(keys: Collection[Key], *, once: bool = False) -> None:
    """Refuse keys that no item has, and a key that is named twice.

    Raises:
        RefusedError: there is such a key; with `once`, also for more than `MAX_WRITES`.
    """
    if len(set(keys)) < len(keys):
        raise RefusedError("A request names each item once.")
    if once and len(keys) > MAX_WRITES:
        raise RefusedError(f"A request that is not repeated has at most {MAX_WRITES} keys.")
    for key in keys:
        for part, longest in zip(key, MAX_KEY_BYTES, strict=True):
            if not part or len(part.encode()) > longest:
                raise RefusedError("A key is empty or too long.")


def outcome(
    writes: Sequence[Write], before: Sequence[Item | None], indexes: Mapping[str, Index]
) -> list[Item | None]:
    """Return the items that a transaction leaves, given those that it finds.

    Raises:
        ConditionFailedError: with the items whose conditions fail, by the places of their writes.
        RefusedError: as `changed` and `check_stored`.
    """
    failed = {
        place: item
        for place, (write, item) in enumerate(zip(writes, before, strict=True))
        if not holds(item, write.when)
    }
    if failed:
        raise ConditionFailedError(failed)
    after = [changed(item, write) for item, write in zip(before, writes, strict=True)]
    check_stored(after, indexes)
    return after


def check_stored(items: Iterable[Item | None], indexes: Mapping[str, Index]) -> None:
    """Refuse items that are too large, or have values by which an index cannot sort.

    Raises:
        RefusedError: an item has more than `MAX_ITEM_BYTES`, all together more than
            `MAX_TRANSACTION_BYTES`, or a key of an index is no text or number, or empty.
    """
    total = 0
    for item in items:
        if item is None:
            continue
        size = size_of(item)
        total += size
        if size > MAX_ITEM_BYTES:
            raise RefusedError(f"An item of {size} bytes exceeds {MAX_ITEM_BYTES} bytes.")
        for index in indexes.values():
            for name in (index.partition, index.sort):
                value = item.get(name, 0)
                if value == "" or not isinstance(value, str | int):
                    raise RefusedError(f"The key {name} of an index is empty or no text or number.")
    if total > MAX_TRANSACTION_BYTES:
        raise RefusedError(f"A transaction of {total} bytes exceeds {MAX_TRANSACTION_BYTES} bytes.")


def size_of(item: Mapping[str, Any]) -> int:
    """Return the bytes of an item, as DynamoDB counts them."""
    return sum([len(name.encode()) + _size(value) for name, value in item.items()])


def _size(value: Any) -> int:
    match value:
        case str():
            return len(value) if value.isascii() else len(value.encode())
        case None:
            return 1
        case bytes():
            return len(value)
        case int():
            return (len(str(abs(value))) + 1) // 2 + 1 + (value < 0)
        case _:
            raise RefusedError(f"An item has no value of type {type(value).__name__}.")


def check_range(wanted: Range, indexes: Mapping[str, Index]) -> Index:
    """Return the index of a range, or the table's own keys.

    Raises:
        ConfigurationError: there is no such index.
        RefusedError: the range filters by its keys, asks for what the index does not project, or
            ends before it begins.
    """
    if wanted.index and wanted.index not in indexes:
        raise ConfigurationError(f"The table has no index {wanted.index}.")
    index = indexes[wanted.index] if wanted.index else TABLE
    _check_when(wanted.when)
    filtered = {check.name for check in _checks(wanted.when)}
    if {index.partition, index.sort} & filtered:
        raise RefusedError("A filter has no keys of its range.")
    if wanted.index and (filtered | set(wanted.only)) - index.attributes:
        raise RefusedError(f"The index {wanted.index} does not have all attributes that are asked.")
    first, last = wanted.first, wanted.last
    if first is not None and last is not None and first > last:  # type: ignore[operator]
        raise RefusedError("A range does not end before it begins.")
    return index


def _check_when(when: When) -> None:
    for check in _checks(when):
        if check.value is None and check.operator in ("<", "<=", ">", ">="):
            raise RefusedError("None has no order.")


def _checks(when: When) -> Iterable[Check]:
    for check in when:
        yield from [check] if isinstance(check, Check) else check

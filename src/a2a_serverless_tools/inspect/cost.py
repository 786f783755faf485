"""The write units of DynamoDB that a task's commits have cost, computed from their sizes. Pure.

An item costs one unit for each KB, also for one that is only begun; a transaction costs twice that.
An entry of an index costs one unit when it is put and one when it is removed; docs/cost.md has the
measured numbers. Renewed leases, cancels, webhooks and reads are not included, because the log does
not have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from a2a_serverless.tasks.entries import (
    Entry,
    StatusChanged,
    TurnEnded,
    TurnOpened,
    encode_entries,
)
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import MAX_INLINE_BYTES

WRITE_UNIT_DOLLARS: Final = 0.625 / 1_000_000
"""The on-demand price in us-east-1, November 2026: aws.amazon.com/dynamodb/pricing/on-demand."""

_UNIT: Final = 1024
_TRANSACTION: Final = 2
_PART_BYTES: Final = 340_000
_EVENT_BYTES: Final = 300
"""Bytes of an EVENT item's keys and attributes besides its body."""
_HEAD_BYTES: Final = 800
"""Bytes of HEAD without its status."""
_INDEXES: Final = 5
"""Index entries that a creation puts: four of HEAD, and that of the first commit in by-id."""
_MOVED: Final = 2
"""Units for removing an entry of an index and putting the next one."""


def write_units(record: Record, *, is_claim: bool) -> int:
    """Return the write units that a commit has cost.

    Args:
        record: the commit.
        is_claim: True if it is the first commit of its attempt, which moves the turn's due time.
    """
    size = len(encode_entries(record.entries))
    sizes = [min(_PART_BYTES, size - start) for start in range(0, max(1, size), _PART_BYTES)]
    items = [_EVENT_BYTES + part for part in sizes] + [_HEAD_BYTES + _status_bytes(record.entries)]
    units = _TRANSACTION * sum(-(-item // _UNIT) for item in items)
    return units + (_INDEXES if record.version == 1 else _of_indexes(record, is_claim=is_claim))


def _of_indexes(record: Record, *, is_claim: bool) -> int:
    kinds = set(map(type, record.entries))
    of_due = 1 if kinds & {TurnOpened, TurnEnded} else _MOVED * is_claim
    return _MOVED * (StatusChanged in kinds) + of_due


def _status_bytes(entries: Sequence[Entry]) -> int:
    """Return the bytes of the status that HEAD keeps; a larger one stays in the log."""
    sizes = [entry.status.ByteSize() for entry in entries if isinstance(entry, StatusChanged)]
    return sizes[-1] if sizes and sizes[-1] <= MAX_INLINE_BYTES else 0

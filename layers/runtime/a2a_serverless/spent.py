"""What a piece of work takes of the table: time, and DynamoDB's units."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import field
from time import perf_counter
from typing import Literal, TypeAlias

from a2a_serverless.values import dataclass

Kind: TypeAlias = Literal["read", "write"]


@dataclass(slots=True, eq=False)
class Spent:
    """The sums since the work began, or since `clear`; safe under threads."""

    milliseconds: float | None = None
    """The time of all requests, also of those at the same time; None: none was measured."""
    _units: dict[Kind, float] = field(default_factory=dict)
    _is_unsure: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        """Begin again."""
        with self._lock:
            self.milliseconds, self._units, self._is_unsure = None, {}, False

    def add(self, milliseconds: float, kind: Kind | None, units: float | None) -> None:
        """Add a request, see `took`."""
        with self._lock:
            self.milliseconds = (self.milliseconds or 0) + milliseconds
            if kind is not None and units is not None:
                self._units[kind] = self._units.get(kind, 0) + units
            self._is_unsure = self._is_unsure or (kind is not None and units is None)

    def units(self, kind: Kind) -> float | None:
        """Return the units of one kind; None: the table reports none, or a request had no report.

        DynamoDB reports none for a refused write, which it counts all the same.
        """
        return self._units.get(kind, 0) if self._units and not self._is_unsure else None


current: ContextVar[Spent | None] = ContextVar("a2a_serverless_spent", default=None)
"""Of the work that the calling code belongs to; asyncio tasks and `aws.call` inherit it."""


def took(began: float, kind: Kind | None = None, units: float | None = None) -> None:
    """Count a request that ends now.

    Args:
        began: the second of `perf_counter` at which it began.
        kind: what its units are; None: its table has none.
        units: as its answer reports them; None: it does not.
    """
    spent = current.get()
    if spent is not None:
        spent.add(1000 * (perf_counter() - began), kind, units)

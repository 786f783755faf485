"""Dataclasses whose comparison, hash and text are written once, and not compiled for each class.

The standard library compiles these methods of every class as it is imported: more than half of what
a frozen class costs, and a tenth of a worker's cold start.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, **options: Any
    ) -> Any:
        """Do what `dataclasses.dataclass` does, for classes that have none of these methods."""

        def made(cls: type) -> Any:
            plain: Any = dataclasses.dataclass(frozen=frozen, eq=False, repr=False, **options)(cls)
            plain.__repr__ = _text
            if eq:
                plain.__eq__, plain.__hash__ = _is_equal, _hash if frozen else None
            return plain

        return made if cls is None else made(cls)


@cache
def _compared(cls: type[Any]) -> Callable[[Any], Any]:
    """Return what an object of a class is compared by."""
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    return attrgetter(*names) if names else lambda _: ()


def _is_equal(value: Any, other: Any) -> Any:
    if value.__class__ is not other.__class__:
        return NotImplemented
    compared = _compared(value.__class__)
    return compared(value) == compared(other)


def _hash(value: Any) -> int:
    return hash(_compared(value.__class__)(value))


def _text(value: Any) -> str:
    shown = [f"{f.name}={getattr(value, f.name)!r}" for f in dataclasses.fields(value) if f.repr]
    return f"{value.__class__.__qualname__}({', '.join(shown)})"

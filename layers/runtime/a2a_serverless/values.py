"""Dataclasses whose methods are shared, or compiled when a class makes its first object.

The standard library compiles the methods of every class as it is imported: more than a tenth of a
worker's cold start. Most classes are for rare paths, and make no object in a short life.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        slots: bool = False,
        **options: Any,
    ) -> Any:
        """Do what `dataclasses.dataclass` does, for classes that have none of these methods."""

        def made(cls: type) -> Any:
            compiled = partial(dataclasses.dataclass, eq=False, repr=False, **options)
            plain: Any = compiled(init=False, slots=slots)(cls)
            plain.__repr__ = _text
            if frozen:
                plain.__setattr__, plain.__delattr__ = _refuse, _refuse
                plain.__getstate__, plain.__setstate__ = _state, _take_state  # for copies
            if eq:
                plain.__eq__, plain.__hash__ = _is_equal, _hash if frozen else None

            def begin(value: Any, /, *given: Any, **named: Any) -> None:
                whole = compiled(frozen=frozen, slots=slots)(_copy(plain))
                plain.__init__ = whole.__init__
                plain.__init__(value, *given, **named)

            plain.__init__ = begin
            return plain

        return made if cls is None else made(cls)


def _copy(cls: type[Any]) -> type[Any]:
    """Return a plain class with the fields of a dataclass and its `__post_init__`."""
    fields = dataclasses.fields(cls)
    names: dict[str, Any] = {field.name: field for field in fields}
    names["__annotations__"] = {field.name: field.type for field in fields}
    # With a docstring, so that none is made of its signature.
    names |= {"__qualname__": cls.__qualname__, "__doc__": cls.__doc__ or cls.__name__}
    if hasattr(cls, "__post_init__"):
        names["__post_init__"] = cls.__post_init__
    return type(cls.__name__, (), names)


def _refuse(value: Any, name: str, *_: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"{value.__class__.__name__}.{name} is not changed")


def _state(value: Any) -> list[Any]:
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


def _take_state(value: Any, state: list[Any]) -> None:
    for field, one in zip(dataclasses.fields(value), state, strict=True):
        object.__setattr__(value, field.name, one)


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

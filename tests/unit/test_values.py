"""Dataclasses whose methods are shared, or compiled at the first object."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import pytest

from a2a_serverless import values

Decorator = Callable[..., Any]


def classes(dataclass: Decorator) -> list[Any]:
    """Objects of classes with every option that is used, by one of the two decorators."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Frozen:
        name: str
        secret: str = field(default="s", repr=False)
        mark: str = field(default="", compare=False)

    @dataclass
    class Plain:
        value: int = 1

    @dataclass(frozen=True)
    class Longer(Frozen):
        more: list[int] = field(default_factory=list)

    @dataclass(eq=False, slots=True)
    class Single:
        number: int = 1
        steps: list[int] = field(default_factory=list, init=False)
        last: str = field(default="none", init=False)

        def __post_init__(self) -> None:
            self.steps.append(self.number)

    @dataclass(frozen=True)
    class Empty:
        pass

    frozen = [Frozen(name="a"), Frozen(name="a", mark="m"), Frozen(name="b")]
    plain = [Plain(), Plain(value=2), Longer(name="a")]
    return [*frozen, *plain, Single(), Single(), Empty(), Empty()]


def pickled(value: Any) -> Any:
    """A value after it was pickled; its class has no name from which it could be imported."""
    made, given, state = value.__reduce_ex__(4)[:3]
    again = made(*given)
    again.__setstate__(state)
    return again


def refused(call: Callable[..., object], *given: object, **named: object) -> str:
    """What a class or function says of an argument that it does not take; empty: it takes it."""
    try:
        call(*given, **named)
    except TypeError as error:
        return str(error)
    return ""


def test_they_are_the_standard_librarys() -> None:
    """Comparison, hash and text are equal to those that `dataclasses` compiles."""
    ours, theirs = classes(values.dataclass), classes(dataclasses.dataclass)
    assert list(map(repr, ours)) == list(map(repr, theirs))
    for one, other in zip(ours, theirs, strict=True):
        assert [one == each for each in ours] == [other == each for each in theirs]
        assert refused(hash, one) == refused(hash, other)
        if not refused(hash, one) and type(one).__name__ != "Single":  # whose hash is its address
            assert hash(one) == hash(other)
        assert one != 1
        assert repr(replace(one)) == repr(one)
        assert refused(type(one), unknown=1) == refused(type(other), unknown=1) != ""
    assert len({ours[0], ours[1], ours[2], ours[-1], ours[-2]}) == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        ours[0].name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del ours[0].name
    for one in (ours[1], ours[5]):
        assert repr(copy.deepcopy(one)) == repr(pickled(one)) == repr(one)

"""Dataclasses whose methods are shared, or compiled at the first object."""

from __future__ import annotations

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
    return [
        *frozen,
        Plain(),
        Plain(value=2),
        Longer(name="a"),
        Single(),
        Single(),
        Empty(),
        Empty(),
    ]


def hashed(value: Any) -> Any:
    """The hash, or that there is none."""
    try:
        return hash(value)
    except TypeError:
        return "unhashable"


def refused(cls: Any) -> str:
    """What a class says of an argument that it does not have."""
    with pytest.raises(TypeError) as caught:
        cls(unknown=1)
    return str(caught.value)


def test_they_are_the_standard_librarys() -> None:
    """Comparison, hash and text are equal to those that `dataclasses` compiles."""
    ours, theirs = classes(values.dataclass), classes(dataclasses.dataclass)
    assert list(map(repr, ours)) == list(map(repr, theirs))
    for one, other in zip(ours, theirs, strict=True):
        assert [one == each for each in ours] == [other == each for each in theirs]
        assert hashed(one) == hashed(other) or type(one).__name__ == "Single"  # by its address
        assert one != 1
        assert repr(replace(one)) == repr(one)
        texts = [refused(type(each)) for each in (one, other)]
        assert texts[0] == texts[1]
    assert len({ours[0], ours[1], ours[2], ours[-1], ours[-2]}) == 3


def test_a_frozen_one_stays_as_it_is() -> None:
    """An attribute of a frozen value cannot be set."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        classes(values.dataclass)[0].name = "b"

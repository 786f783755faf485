"""What a check is, and what it finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from tests.live.subject import Subject

Figures: TypeAlias = Mapping[str, object]
"""Measured values by their names, as JSON has them; seconds and bytes say so in the name."""


class Outcome(StrEnum):
    """How a check came out."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_POSSIBLE = "not possible here"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check has found; `says` is empty where it passed."""

    name: str
    proves: str
    outcome: Outcome
    says: str = ""
    figures: Figures = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Check:
    """One check. `run` returns what it has measured.

    `run` raises BrokenError where the subject is broken, NotPossibleError where it cannot tell.
    `needs` raises the latter without a call, and is asked first: what would run is known before.
    """

    name: str
    proves: str
    run: Callable[[Subject], Awaitable[Figures]]
    needs: Callable[[Subject], object] = lambda _: None
    seconds: int = 5
    """How long it takes on AWS, roughly."""


class BrokenError(Exception):
    """The subject does not do what the check proves; the text is one sentence."""

    def __init__(self, says: str, **figures: object) -> None:
        super().__init__(says)
        self.figures = figures


class NotPossibleError(Exception):
    """Nothing can be found out here; the text is the reason."""


def require(holds: object, says: str, **figures: object) -> None:
    """Go on if it holds.

    Raises:
        BrokenError: it does not.
    """
    if not holds:
        raise BrokenError(says, **figures)

"""What a check is, what it finds, and what it makes or changes meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from tests.live.account import is_gone

if TYPE_CHECKING:
    from tests.live.subject import Subject

Figures: TypeAlias = Mapping[str, object]
"""Measured values by their names, as JSON has them; seconds and bytes say so in the name."""


@dataclass(frozen=True)
class Check:
    """One check. `run` returns what it has measured.

    `run` raises BrokenError where the subject is broken, NotPossibleError where it cannot tell.
    """

    name: str
    proves: str
    run: Callable[[Subject], Awaitable[Figures]]


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


@dataclass
class Made:
    """What is to be undone, oldest first: kind and name, and what undoes it.

    `ledger` gets a line for each thing before it is made, so that its name outlives this process.
    """

    ledger: Path
    things: list[tuple[str, Callable[[], Awaitable[Any]]]] = field(default_factory=list)

    def note(self, kind: str, name: str, undo: Callable[[], Awaitable[Any]]) -> None:
        """Note what is about to be made or changed."""
        self.things.append((f"{kind} {name}", undo))
        with self.ledger.open("a", encoding="utf-8") as file:
            file.write(f"{kind} {name}\n")

    async def undo(self) -> list[str]:
        """Undo all, newest first; return what remains, each with the reason.

        What does not exist counts as undone: its making may have failed.
        """
        remains: list[str] = []
        while self.things:
            thing, undo = self.things.pop()
            try:
                await undo()
            except Exception as error:  # noqa: BLE001 - what remains has to be named
                # The text of an error of AWS or a library may quote a request, and with it a key.
                is_ours = isinstance(error, BrokenError | ConfigurationError)
                if not is_gone(error):
                    remains.append(f"{thing}: {error if is_ours else aws.error_code(error)}")
        return remains

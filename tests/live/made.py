"""What the checks make or change: noted before it happens, undone after each check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from tests.live.account import is_gone
from tests.live.findings import BrokenError


@dataclass(frozen=True)
class Thing:
    """Something that was made or changed, by kind and name, and what undoes it."""

    kind: str
    name: str
    undo: Callable[[], Awaitable[Any]]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass
class Made:
    """What is to be undone, oldest first.

    `ledger` gets a line for each thing before it is made, so that its name outlives this process.
    """

    ledger: Path
    things: list[Thing] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """All that was ever noted."""

    def note(self, kind: str, name: str, undo: Callable[[], Awaitable[Any]]) -> None:
        """Note what is about to be made or changed."""
        thing = Thing(kind, name, undo)
        self.things.append(thing)
        self.names.append(str(thing))
        with self.ledger.open("a", encoding="utf-8") as file:
            file.write(f"{thing}\n")

    async def undo(self, before: int = 0) -> list[str]:
        """Undo all but the first ones, newest first; return what remains, each with the reason.

        What does not exist counts as undone: its making may have failed.
        """
        remains: list[str] = []
        while len(self.things) > before:
            thing = self.things.pop()
            try:
                await thing.undo()
            except Exception as error:  # noqa: BLE001 - what remains has to be named
                if not is_gone(error):
                    remains.append(f"{thing}: {_reason(error)}")
        return remains


def _reason(error: Exception) -> str:
    """Return what an error says, and of one of AWS's or a library's the code alone.

    The text of those may quote a request, and with it a key.
    """
    is_ours = isinstance(error, BrokenError | ConfigurationError)
    return str(error) if is_ours else aws.error_code(error)

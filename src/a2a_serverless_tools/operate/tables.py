"""Rows of what a person looks at: the terminal and the pages draw the same ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless_tools.operate.wording import iso

NUMBER: Final = "number"
"""The look of a column of numbers."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands at one place of a table; as text it is one line for a terminal."""

    text: str = ""
    look: str = ""
    """How a page shows it: a class of its style sheet."""
    more: tuple[tuple[str, str], ...] = ()
    """What stands behind the text, each with its look."""
    at: int | None = None
    """In place of a text: a time, in milliseconds since the epoch. A page says how long ago."""
    task: TaskKey | None = None
    """The task to whose page the text leads."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """The fields of the filter to whose tasks the text leads."""

    def __str__(self) -> str:
        begin = iso(self.at) or f"{'  ' * (self.look == 'sub')}{self.text}"
        return "  ".join(filter(None, (begin, *(text for text, _ in self.more))))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below titles, with what is said above and below them."""

    title: str
    columns: Mapping[str, str]
    """The titles, each with the look of its column: a class of the pages' style sheet."""
    rows: Sequence[Sequence[Cell]]
    none: str = ""
    """What is said if there are no rows."""
    note: str = ""

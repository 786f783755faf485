"""What the tests of the artefact have measured; a plugin prints the lines that show it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

import pytest

from tests.support.summaries import print_section

PROPERTY = "artefact"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line: what was measured, of what, and the values by their unit."""

    kind: str
    name: str
    values: Mapping[str, float]
    note: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: object) -> Figure:
        return cls(**json.loads(str(text)))


def table(figures: Iterable[Figure]) -> Iterator[str]:
    """The lines, those of a kind together."""
    kinds: dict[str, list[Figure]] = {}
    for figure in figures:
        kinds.setdefault(figure.kind, []).append(figure)
    for kind, members in sorted(kinds.items()):
        units = list(members[0].values)
        yield f"{kind:<30}" + "".join(f"{unit:>14}" for unit in units)
        for figure in sorted(members, key=lambda one: one.name):
            cells = "".join(f"{figure.values[unit]:>14,.2f}" for unit in units)
            yield f"  {figure.name:<28}{cells}{figure.note and '  ' + figure.note}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print sizes and times."""
    print_section(
        terminalreporter,
        "artefact",
        PROPERTY,
        lambda values: table([Figure.from_json(value) for value in values]),
    )

"""The card that is made of an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from a2a_serverless.http.card import missing_fields
from a2a_serverless_tools.local.cards import card_of


@pytest.mark.parametrize(
    ("source", "name", "description"),
    [
        ("class A:\n  'Sings.\\n\\nMore.'\nagent = A()", "A", "Sings."),
        ("class A:\n  'Sings\\nand hums.'\nagent: object = A(1)", "A", "Sings and hums."),
        ("'Sings.'\nclass A: ...\nagent = A", "A", "Sings."),
        ("class A: ...\nagent = A()", "A", "An A2A agent."),
        ("class agent:\n  'Sings.'", "agent", "Sings."),
        ("'Sings.'\nfrom x import A\nagent = A(graph, b=1)", "agent", "Sings."),
        ("class A: ...\nagent = b.A()\nx, y = A(), A()", "agent", "An A2A agent."),
        ("\ufeff'Sings.'\nagent = 1", "agent", "Sings."),
        ("class (", "agent", "An A2A agent."),
        ("raise SystemExit", "agent", "An A2A agent."),
        ("", "agent", "An A2A agent."),
    ],
)
def test_a_card_is_of_the_class(tmp_path: Path, source: str, name: str, description: str) -> None:
    """It has name and docstring of the class, else what the file says; nothing of it is run."""
    (tmp_path / "agent.py").write_text(source, encoding="utf-8")
    card = card_of(tmp_path / "agent.py:agent")
    assert (card.name, card.description) == (name, description)
    assert missing_fields(card) == []

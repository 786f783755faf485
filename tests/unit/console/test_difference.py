"""What one text says instead of another."""

from __future__ import annotations

import random

import pytest

from a2a_serverless_tools.console.difference import MOST_CHARACTERS, Difference, difference


def marked(found: Difference) -> str:
    """A difference as one text."""
    marks = {"same": "{}", "gone": "[-{}-]", "new": "[+{}+]"}
    return "".join(marks[piece.kind].format(piece.text) for piece in found.pieces)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("It is 999 EUR.", "It is 120 EUR.", "It is [-999-][+120+] EUR."),
        ("bikes are free.", "bikes cost 8 EUR.", "bikes [-are free-][+cost 8 EUR+]."),
        ("one two", "one", "one[- two-]"),
        ("", "all of it", "[+all of it+]"),
        ("the offer", "the office", "the [-offer-][+office+]"),
        ("a\nb\nc", "a\nx\nc", "a\n[-b-][+x+]\nc"),
        ("a " * 200 + "x" + " b" * 200, "a " * 200 + "y" + " b" * 200, None),
    ],
)
def test_words_that_differ(before: str, after: str, expected: str | None) -> None:
    """Whole words are shown; much that both texts say is shortened to what stands beside them."""
    found = difference(before, after)
    assert not found.is_cut
    if expected is None:
        expected = f"…{'a ' * 40}[-x-][+y+]{' b' * 40}…"
    assert marked(found) == expected


def test_each_text_can_be_read_from_the_pieces() -> None:
    """What is the same and gone is the first text, what is the same and new the second one."""
    chosen = random.Random(7)  # noqa: S311 - the same texts each time
    for _ in range(200):
        words = ["a", "b", " ", "\n", "é", ",", "word"]
        before, after = ("".join(chosen.choices(words, k=chosen.randrange(25))) for _ in range(2))
        found = difference(before, after).pieces
        assert "".join(piece.text for piece in found if piece.kind != "new") == before
        assert "".join(piece.text for piece in found if piece.kind != "gone") == after


@pytest.mark.parametrize("unit", ["a b ", "x", "1,2,", "\u202e"])
def test_texts_without_an_end_are_compared_in_part(unit: str) -> None:
    """However long they are, a bounded part is compared and shown; it says that it is one."""
    found = difference("one " + unit * 500_000, "two " + unit[::-1] * 400_000 + "!")
    assert found.is_cut
    assert sum(len(piece.text) for piece in found.pieces) < 3 * MOST_CHARACTERS

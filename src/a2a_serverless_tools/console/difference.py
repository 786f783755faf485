"""What one text says instead of another, word by word; bounded in time and in length. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final, Literal, TypeAlias

_PieceKind: TypeAlias = Literal["same", "gone", "new"]

MOST_WORDS: Final = 1_000
"""Words, spaces and marks that are compared of each text, from the first difference on."""
MOST_CHARACTERS: Final = 8_000
"""Characters of them."""
_MOST_LENGTH: Final = 200
"""Characters of one word; longer ones are taken apart."""
_AROUND: Final = 80
"""Characters of what both texts say that are shown beside a difference."""
_WORD: Final = re.compile(rf"\w{{1,{_MOST_LENGTH}}}|\s{{1,{_MOST_LENGTH}}}|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of both texts, of the first alone, or of the second alone."""

    kind: _PieceKind
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """The pieces in order: what both texts say is shortened to what stands beside a difference."""

    pieces: tuple[Piece, ...]
    is_cut: bool
    """True if the texts go on behind the pieces, and were not compared there."""


def difference(before: str, after: str) -> Difference:
    """Return what `after` says instead of `before`, from the first difference to the last."""
    start = common(before, after)
    begun = before[max(0, start - _MOST_LENGTH) : start]
    start -= len(begun) - 1 - max(map(begun.rfind, " \n\t"))  # from the beginning of its word on
    end = common(before[start:][::-1], after[start:][::-1])
    first, is_first_cut = _words(before[start : len(before) - end])
    second, is_second_cut = _words(after[start : len(after) - end])
    is_cut = is_first_cut or is_second_cut
    pieces = [Piece("same", before[:start]), *_changes(first, second)]
    if not is_cut:
        pieces.append(Piece("same", before[len(before) - end :]))
    return Difference(tuple(_shortened([piece for piece in pieces if piece.text])), is_cut)


def _changes(first: list[str], second: list[str]) -> Iterator[Piece]:
    """Yield what two lists of words have in common and what not.

    Words that have changed side by side are one change.
    """
    gone = new = between = ""
    for kind, i, j, k, m in SequenceMatcher(None, first, second).get_opcodes():
        if kind == "equal" and (gone or new) and "".join(first[i:j]).isspace():
            between = "".join(first[i:j])
        elif kind == "equal":
            yield from (Piece("gone", gone), Piece("new", new), Piece("same", "".join(first[i:j])))
            gone = new = ""
        else:
            gone += between + "".join(first[i:j])
            new += between + "".join(second[k:m])
            between = ""
    yield from (Piece("gone", gone), Piece("new", new), Piece("same", between))


def common(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _words(text: str) -> tuple[list[str], bool]:
    """Return the first words of a text, with what is between them; True if it has more."""
    words = _WORD.findall(text[:MOST_CHARACTERS])
    return words[:MOST_WORDS], len(words) > MOST_WORDS or len(text) > MOST_CHARACTERS


def _shortened(pieces: list[Piece]) -> Iterator[Piece]:
    for number, piece in enumerate(pieces):
        text = piece.text
        if piece.kind == "same" and len(text) > 2 * _AROUND:
            head = text[:_AROUND] if number else ""
            tail = text[-_AROUND:] if number + 1 < len(pieces) else ""
            text = f"{head}…{tail}"
        yield Piece(piece.kind, text)

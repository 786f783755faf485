"""What a write has done, for the page that it leads to.

The link to that page has a key and not the sentence: else a link in an artifact could have the
console say whatever its author likes.
"""

from __future__ import annotations

import secrets
from typing import Final

_KEPT: Final = 50
"""Sentences that are remembered."""


class Notes:
    """The newest sentences, by keys that only the console knows."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

    def keep(self, sentence: str) -> str:
        """Remember a sentence; return its key."""
        key = secrets.token_urlsafe(9)
        self._kept[key] = sentence
        for old in list(self._kept)[:-_KEPT]:
            del self._kept[old]
        return key

    def get(self, key: str) -> str:
        """Return the sentence of a key; empty for one that the console has not made."""
        return self._kept.get(key, "")

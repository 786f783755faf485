"""Which part of a task's log a page shows: a bounded number of entries, from a place on, chosen."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

Key: TypeAlias = tuple[int, int]
"""A place in the log: a version, and a number in it."""

MOST_ENTRIES: Final = 100
"""Entries that a page shows."""
MOST_OF_ALL: Final = 600_000
"""Characters of them all: an agent decides how many one has."""
SEARCHED: Final = 5_000
"""Entries among which a page looks for a text."""
SEARCHED_CHARACTERS: Final = 8_000_000
"""Characters of them all."""
_KEY: Final = re.compile(r"(\d{1,12})\.(-?\d{1,12})(?:\.[A-Za-z0-9_-]{6})?")
_TURN: Final = re.compile(r"\d{1,9}")


class _Entry(Protocol):
    @property
    def kind(self) -> str: ...

    @property
    def key(self) -> Key: ...

    @property
    def size(self) -> int: ...


E = TypeVar("E", bound=_Entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a page begins or ends; neither `before` nor `after`: at the log's end."""

    before: Key | None = None
    after: Key | None = None

    @classmethod
    def of(cls, asked: Mapping[str, str], turns: Mapping[int, int]) -> Place:
        """Return the place that a query names; the log's end if there is no such place.

        `turns`: the version of the commit that has opened each turn, by the turn's number.
        """
        number = asked.get("turn", "").strip()
        if _TURN.fullmatch(number) and int(number) in turns:
            return cls(after=(turns[int(number)] - 1, _LAST))
        return cls(before=_key(asked.get("before", "")), after=_key(asked.get("after", "")))

    @property
    def fields(self) -> dict[str, str]:
        """Return the place as the fields of a query."""
        known = {"before": self.before, "after": self.after}
        return {name: f"{key[0]}.{key[1]}" for name, key in known.items() if key is not None}


_LAST: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """Which entries of a log a page shows."""

    kind: str = ""
    """Only those of this kind; empty: of all."""
    text: str = ""
    """Only those that contain it, whatever the case."""

    @classmethod
    def of(cls, asked: Mapping[str, str], kinds: Container[str]) -> LogFilter:
        """Return the filter that a query names; a kind that is none of `kinds` chooses all."""
        kind = asked.get("kind", "")
        return cls(kind=kind if kind in kinds else "", text=asked.get("text", "").strip())

    @property
    def fields(self) -> dict[str, str]:
        """Return the filter as the fields of a query."""
        return {k: v for k, v in (("kind", self.kind), ("text", self.text)) if v}


def _key(text: str) -> Key | None:
    found = _KEY.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Generic[E]):
    """The entries of a page in the order of the log, and what lies on both sides of them."""

    entries: Sequence[E]
    first: int
    """The number of the first entry that was looked at, from 1; 0: there was none."""
    last: int
    count: int
    """The entries of the whole log."""
    older: str = ""
    """The query of the page before, without a view; empty: there is none."""
    newer: str = ""


def window(
    entries: Sequence[E], place: Place, which: LogFilter, text_of: Callable[[E], str]
) -> Window[E]:
    """Return the part of a log that a page shows.

    `text_of` returns all that an entry says. What says that something is damaged is always shown,
    and at least one entry is looked at.
    """
    is_forward = place.after is not None
    if place.after is not None:
        start = stop = bisect_right(entries, place.after, key=_key_of)
    else:
        stop = len(entries)
        if place.before is not None:
            stop = bisect_left(entries, place.before, key=_key_of)
        start = stop
    found: list[E] = []
    left, unread, looked = MOST_OF_ALL, SEARCHED_CHARACTERS, 0
    while left > 0 and unread > 0 and len(found) < MOST_ENTRIES and looked < SEARCHED:
        at = stop if is_forward else start - 1
        if not 0 <= at < len(entries):
            break
        start, stop, looked = min(start, at), max(stop, at + 1), looked + bool(which.fields)
        entry = entries[at]
        is_shown = which.kind in ("", entry.kind)
        if is_shown and which.text:
            text = text_of(entry)
            unread -= len(text)
            is_shown = which.text.casefold() in text.casefold()
        if is_shown or entry.kind == "damage":
            found.append(entry)
            left -= entry.size
    has_older, has_newer = 0 < start < stop, start < stop < len(entries)
    return Window(
        entries=found if is_forward else found[::-1],
        first=start + 1 if start < stop else 0,
        last=stop,
        count=len(entries),
        older="before={}.{}".format(*entries[start].key) if has_older else "",
        newer="after={}.{}".format(*entries[stop - 1].key) if has_newer else "",
    )


def _key_of(entry: Any) -> Key:
    key: Key = entry.key
    return key

"""A task that may be damaged, as far as it can be read. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.push import Push


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A task as far as it can be read, for a person who looks at it; nothing is decided from it."""

    head: Head
    records: tuple[Record, ...]
    """The commits up to HEAD's version, in order; those that cannot be read are left out."""
    missing: frozenset[str] = frozenset()
    """Fields of `head` that could not be read: their values say nothing."""
    unreadable: tuple[str, ...] = ()
    """What could not be read, as clauses such as `HEAD has no turn`."""
    damage: tuple[tuple[int, str], ...] = ()
    """Those of `unreadable` that are about commits, each with the first version it is about."""
    pushes: tuple[Push, ...] = ()
    """The task's push configurations that can be read, by id."""

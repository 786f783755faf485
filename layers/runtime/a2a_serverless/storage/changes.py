"""The loop in which values change that are replaced as a whole.

HEAD, the push configurations beside it, and a conversation's queue are such values: each is one
item. A writer decides on the value that it has read, and replaces that one, or nothing. If another
writer was first, the refusal brings the value which that one has made, and the writer decides anew.
So a decision is a pure function, and may be asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, Final, Generic, TypeVar

from a2a_serverless.clock import Clock, pause_s
from a2a_serverless.errors import ConditionFailedError, UnavailableError
from a2a_serverless.storage.table import Item, Table, Write
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import new_token
from a2a_serverless.tasks.push import Push
from a2a_serverless.values import dataclass

T = TypeVar("T")
V = TypeVar("V", Head, Push)

MOST_TRIES: Final = 200
"""How often a change, or a commit, is tried while others change its value. Of those that try at the
same time one succeeds each time, so that the pauses between need not grow."""
_AT_ONCE: Final = 5
"""So many of those tries follow one another without a pause. What was read before a pause is of the
past after it: a writer that paused before each try would lose to one that does not pause."""


@dataclass(slots=True, eq=False)
class Change(Generic[T]):
    """What becomes of one value, which has a `mark` that tells it from those before it."""

    before: T
    """The value as it was read, or a guess, which saves the read; None: there is none."""
    decide: Callable[[T], T]
    """Returns the value that takes its place; the same one, or None: nothing is written."""
    replaced: Callable[[Any, Any], Write]
    """Returns the write that puts one value in the place of another, if that has not changed."""
    read: Callable[[Item | None], T]
    """Returns the value that an item holds; None: it is gone."""
    after: T = field(init=False)
    """The value that was decided on, and is stored once the loop has ended."""
    is_stored: bool = field(default=False, init=False)
    """True once a transaction with its write is known to have passed."""

    def write(self) -> Write | None:
        """Decide, and return the write; None: there is nothing to write."""
        self.after = self.decide(self.before)
        if self.after is None or self.after is self.before:
            return None
        return self.replaced(self.before, self.after)

    def is_done(self, item: Item | None) -> bool:
        """Take the value as it is stored; return True if it is the one that was to be written."""
        self.before = self.read(item)
        mark = getattr(self.before, "mark", None)
        return mark is not None and mark == getattr(self.after, "mark", None)


async def pause_after(clock: Clock, attempt: int) -> None:
    """Wait after each fifth attempt that has lost to another writer."""
    if attempt % _AT_ONCE == 0:
        await clock.sleep(pause_s(1))


def marked(value: V) -> V:
    """Return a value with a mark of its own: each write is told from all others by it."""
    return replace(value, mark=new_token())


def changing(
    value: V,
    decide: Callable[[V], V | None],
    replaced: Callable[[V, V], Write],
    read: Callable[[Item], V | None],
) -> Change[V | None]:
    """Return the change of a value that is there; it becomes None where that is gone."""

    def decided(now: V | None) -> V | None:
        after = None if now is None else decide(now)
        return after if after is None or after is now else marked(after)

    return Change(value, decided, replaced, lambda item: None if item is None else read(item))


async def change(
    table: Table, clock: Clock, *changes: Change[Any], also: Sequence[Write] = ()
) -> None:
    """Make changes in one transaction, and with them the writes `also`.

    Raises:
        ConditionFailedError: one of the writes `also` was refused: `items` has their places.
        UnavailableError: no answer within the retry budget, or too many races were lost.
    """
    for attempt in range(1, MOST_TRIES + 1):
        wanted = [(one, write) for one in changes if (write := one.write()) is not None]
        writes = [*also, *[write for _, write in wanted]]
        if not writes:
            return
        try:
            # In one transaction: no crash leaves one of the values without the others.
            await table.write(*writes)
        except ConditionFailedError as failed:
            # The writes `also` rest on what their caller has read: it decides anew.
            if min(failed.items) < len(also):
                raise
            is_done = [
                wanted[place - len(also)][0].is_done(item) for place, item in failed.items.items()
            ]
            # An earlier request was applied, and its answer lost.
            if all(is_done) and not also:
                return
        else:
            for one, _ in wanted:
                one.is_stored = True
            return
        await pause_after(clock, attempt)
    msg = f"Others have changed {writes[-1].key.PK} {MOST_TRIES} times in a row; try again."
    raise UnavailableError(msg)

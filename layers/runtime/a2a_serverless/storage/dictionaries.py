"""A table in dictionaries: for development and tests, and as the model of every other table."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, ClassVar

from a2a_serverless.clock import Clock, Waker
from a2a_serverless.storage.blobs import MemoryBlobs
from a2a_serverless.storage.table import (
    TABLE,
    Index,
    Item,
    Key,
    Range,
    Table,
    Watch,
    Write,
    check_keys,
    check_range,
    check_writes,
    holds,
    outcome,
)


class MemoryTable(Table):
    """Items of this process, lost with it. Safe under threads.

    Args:
        indexes: the table's indexes, by name.
    """

    wakes: ClassVar[bool] = True
    lag_s: ClassVar[float] = 0.0

    def __init__(self, indexes: Mapping[str, Index]) -> None:
        self._indexes = dict(indexes)
        # Loops of several threads use it: that of the agents, and the heartbeat's.
        self._lock = threading.RLock()
        self._items: dict[Key, Item] = {}
        self._orders: dict[str, defaultdict[str, list[tuple[Any, Key]]]] = {
            index: defaultdict(list) for index in ("", *indexes)
        }
        self._wakers: defaultdict[str, set[Waker]] = defaultdict(set)

    def blobs_beside(self, clock: Clock, *, keep_s: float) -> MemoryBlobs:  # noqa: ARG002
        return MemoryBlobs(clock)

    async def load(
        self,
        keys: Iterable[Key],
        *,
        consistent: bool = True,  # noqa: ARG002 - every read is
        once: bool = False,
        only: Sequence[str] = (),
    ) -> dict[Key, Item | None]:
        asked = list(keys)
        check_keys(asked, once=once)
        with self._lock:
            found = {key: self._items.get(key) for key in asked}
        return part_of(found, only)

    async def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        index = check_range(wanted, self._indexes)
        only = wanted.only or (index.attributes if wanted.index else ())
        with self._lock:
            found = self._in(wanted)
        size = wanted.page or len(found)
        for start in range(0, len(found), size or 1):
            page = found[start : start + size]
            yield [some(item, only) for item in page if holds(item, wanted.when)]

    async def write(self, *writes: Write, exactly: bool = False) -> None:  # noqa: ARG002 - no answer is lost
        check_writes(writes)
        with self._lock:
            before = [self._items.get(write.key) for write in writes]
            after = outcome(writes, before, self._indexes)
            for write, old, new in zip(writes, before, after, strict=True):
                self._store(write.key, old, new)
            for waker in {w for write in writes for w in self._wakers.get(write.key.PK, ())}:
                waker.wake()

    @contextmanager
    def watch(self, partition: str) -> Iterator[Watch]:
        waker = Waker()
        with self._lock:
            self._wakers[partition].add(waker)
        try:
            yield waker
        finally:
            with self._lock:
                self._wakers[partition].discard(waker)
                if not self._wakers[partition]:
                    del self._wakers[partition]

    def _store(self, key: Key, before: Item | None, after: Item | None) -> None:
        for name, index in {"": TABLE, **self._indexes}.items():
            old, new = _entry(before, index), _entry(after, index)
            if old == new:
                continue
            orders = self._orders[name]
            if old is not None:
                order = orders[old[0]]
                order.pop(bisect_left(order, (old[1], key)))
                if not order:
                    del orders[old[0]]
            if new is not None:
                insort(orders[new[0]], (new[1], key))
        if after is None:
            self._items.pop(key, None)
        else:
            self._items[key] = after

    def _in(self, wanted: Range) -> list[Item]:
        """Return the items of a range, before its filter."""
        order = self._orders[wanted.index].get(wanted.partition, [])
        first = 0 if wanted.first is None else bisect_left(order, wanted.first, key=itemgetter(0))
        last = len(order)
        if wanted.last is not None:
            last = bisect_right(order, wanted.last, key=itemgetter(0))
        found = [self._items[key] for _, key in order[first:last]]
        return found[::-1] if wanted.newest_first else found


def _entry(item: Item | None, index: Index) -> tuple[str, Any] | None:
    """Return the place of an item in an index; None if it is not there."""
    if item is None or index.partition not in item or index.sort not in item:
        return None
    return item[index.partition], item[index.sort]


def some(item: Item, only: Collection[str]) -> Item:
    """Return a copy of an item, or of some of its attributes."""
    return {n: v for n, v in item.items() if n in only} if only else dict(item)


def part_of(found: Mapping[Key, Item | None], only: Sequence[str]) -> dict[Key, Item | None]:
    """Return what `Table.load` does: copies of items, or of their keys and some attributes."""
    names = ("PK", "SK", *only) if only else ()
    return {key: None if item is None else some(item, names) for key, item in found.items()}

"""Storage in dictionaries, and what a table in them tells of commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from a2a_serverless.clock import Clock
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.keys import KeyStore
from a2a_serverless.storage.layout import EVENTS, INDEXES, tells_of_push
from a2a_serverless.storage.leases import PLACES, Slots
from a2a_serverless.storage.table import Item, Key, Pause, Watch
from a2a_serverless.wiring import OBSERVER


class PolledTable(MemoryTable):
    """A table that does not tell of writes, as DynamoDB: its readers poll by a clock."""

    wakes = False

    def __init__(self, clock: Clock) -> None:
        super().__init__(INDEXES)
        self._clock = clock

    @contextmanager
    def watch(self, partition: str) -> Iterator[Watch]:
        yield Pause(self._clock)


def memory_storage(**options: Any) -> DurableStorage:
    """A storage on a table of its own."""
    return DurableStorage(MemoryTable(INDEXES), **{"observer": OBSERVER, **options})


def memory_keys(clock: Clock | None = None) -> KeyStore:
    """Published keys on a table of their own."""
    return KeyStore(MemoryTable(INDEXES), clock=clock)


def memory_slots(clock: Clock | None = None) -> Slots:
    """Slots of slow requests, on a table of their own."""
    return Slots(MemoryTable(INDEXES), kind=PLACES, clock=clock)


def items_of(storage: DurableStorage) -> dict[Key, Item]:
    """The items of a storage, read without an event loop; to be read alone."""
    assert isinstance(storage.table, MemoryTable)
    return storage.table._items


def on_insert(
    table: MemoryTable, listener: Callable[[Item], None], *, also_rewritten: bool = False
) -> Callable[[], None]:
    """Tell `listener` of every item that is made from now on; return a function to stop.

    It is called in the writer's thread, in the order of the writes.
    """
    store, is_told = table._store, True

    def stored(key: Key, before: Item | None, after: Item | None) -> None:
        store(key, before, after)
        if is_told and (also_rewritten or before is None) and after is not None:
            listener(dict(after))

    def stop() -> None:
        nonlocal is_told
        is_told = False

    table._store = stored  # type: ignore[method-assign]
    return stop


def commits_of(storage: DurableStorage) -> list[Item]:
    """The first items of the commits of all scopes from now on, as they are made."""
    assert isinstance(storage.table, MemoryTable)
    made: list[Item] = []

    def take(item: Item) -> None:
        if item["SK"].startswith(EVENTS) and item["SK"].endswith("#000"):
            made.append(item)

    on_insert(storage.table, take)
    return made


def webhooks_set_in(storage: DurableStorage) -> list[Item]:
    """The push configurations of all scopes from now on, each time that one is set."""
    assert isinstance(storage.table, MemoryTable)
    made: list[Item] = []

    def take(item: Item) -> None:
        if tells_of_push(item["SK"], item):
            made.append(item)

    on_insert(storage.table, take, also_rewritten=True)
    return made

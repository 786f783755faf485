"""Storage in dictionaries, and what a table in them tells of commits."""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from a2a_serverless.clock import Clock
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.keys import KeyStore
from a2a_serverless.storage.layout import EVENTS, INDEXES, tells_of_push
from a2a_serverless.storage.leases import PLACES, Slots
from a2a_serverless.storage.table import Index, Item, Key, Pause, Range, Table, Watch, Write
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


class LaggingTable(MemoryTable):
    """A table whose indexes are as it was `late_s` seconds ago, as those of DynamoDB may be."""

    lag_s: ClassVar[float] = Table.lag_s

    def __init__(self, indexes: Mapping[str, Index], clock: Clock, *, late_s: float) -> None:
        super().__init__(indexes)
        self._shown = MemoryTable(indexes)
        self._late_ms = int(late_s * 1000)
        self._clock = clock
        self._writes: deque[tuple[int, Key, Item | None]] = deque()

    async def write(self, *writes: Write, **options: Any) -> None:
        await super().write(*writes, **options)
        now_ms = self._clock.now_ms()
        self._writes += [(now_ms, one.key, self._items.get(one.key)) for one in writes]

    async def query(self, wanted: Range) -> AsyncGenerator[list[Item], None]:
        async for page in MemoryTable.query(self._seen(wanted), wanted):
            yield page

    def stored(self) -> list[Item]:
        """All items that have not expired, by a scan of the whole table."""
        now_s = self._clock.now_ms() // 1000
        found = (one for one in self._items.values() if one.get("expires_at", now_s) >= now_s)
        return [*found, *(one for one in self._items.values() if one.get("expires_at") == 1)]

    def _seen(self, wanted: Range) -> MemoryTable:
        if not wanted.index:
            return self
        seen_ms = self._clock.now_ms() - self._late_ms
        while self._writes and self._writes[0][0] <= seen_ms:
            _, key, item = self._writes.popleft()
            self._shown._store(key, self._shown._items.get(key), item)
        return self._shown


def memory_storage(**options: Any) -> DurableStorage:
    return DurableStorage(MemoryTable(INDEXES), **{"observer": OBSERVER, **options})


def memory_keys(clock: Clock | None = None) -> KeyStore:
    return KeyStore(MemoryTable(INDEXES), clock=clock)


def memory_slots(clock: Clock | None = None) -> Slots:
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


def _made_in(
    storage: DurableStorage, is_wanted: Callable[[Item], bool], *, also_rewritten: bool = False
) -> list[Item]:
    assert isinstance(storage.table, MemoryTable)
    made: list[Item] = []

    def take(item: Item) -> None:
        made.extend([item] if is_wanted(item) else ())

    on_insert(storage.table, take, also_rewritten=also_rewritten)
    return made


def commits_of(storage: DurableStorage) -> list[Item]:
    """The first items of the commits of all scopes from now on, as they are made."""
    return _made_in(storage, lambda it: it["SK"].startswith(EVENTS) and it["SK"].endswith("#000"))


def webhooks_set_in(storage: DurableStorage) -> list[Item]:
    """The push configurations of all scopes from now on, each time that one is set."""
    return _made_in(storage, lambda it: tells_of_push(it["SK"], it), also_rewritten=True)

"""A table whose indexes show a write late, as those of DynamoDB do."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any, ClassVar

from a2a_serverless.clock import Clock
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.table import Index, Item, Key, Range, Table, Write


class LaggingTable(MemoryTable):
    """Dictionaries whose indexes are as the table was `late_s` seconds ago."""

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

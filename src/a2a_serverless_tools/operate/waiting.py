"""The open turns at which the sweeper looks next: which of them wait for a worker, in words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from a2a_serverless.storage.durable import LOOK_AT_ONCE, DurableStorage
from a2a_serverless.storage.finding import Due, due_tasks
from a2a_serverless.storage.layout import HOUR_MS
from a2a_serverless.tasks.attempts import overdue_cancel
from a2a_serverless.tasks.head import ASLEEP, Head
from a2a_serverless.tasks.identity import TaskKey
from a2a_serverless_tools.operate.lists import TaskRow
from a2a_serverless_tools.operate.tables import Cell, Table
from a2a_serverless_tools.operate.wording import age

_NEXT_MS: Final = 2 * HOUR_MS
"""An open turn that is not asleep is due within a lease, the longest wait of a sweep or of a retry:
within this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenTurns:
    """Open turns of all callers, and cancels that are overdue, the longest due first."""

    at: int
    """When they were looked at, in milliseconds since the epoch."""
    rows: tuple[TaskRow, ...]
    unread: tuple[Due, ...]
    """Those whose HEAD could not be read."""
    is_all: bool
    """False: there are more, due later."""

    @property
    def is_calm(self) -> bool:
        """Return True if none waits for a worker, and none was sent again."""
        return self.is_all and not self.unread and not any(map(self._waits, self.rows))

    def _waits(self, row: TaskRow) -> bool:
        """Return True if a turn is overdue, was sent again, or is awake without a worker."""
        lacks_worker = not (row.is_claimed or row.head.turn.parked == ASLEEP)
        return lacks_worker or row.head.turn.resends > 0 or row.is_overdue(self.at)

    def sentence(self) -> str:
        """Return how many there are, and who has them."""
        turns = [row for row in self.rows if row.head.turn.is_open]
        count = len(turns) + len(self.unread)
        asleep = sum(row.head.turn.parked == ASLEEP for row in turns)
        left = sum(bool(row.head.turn.parked) for row in turns) - asleep
        alone = [row for row in turns if not (row.is_claimed or row.head.turn.parked)]
        oldest = min((one.waits_since for one in alone if one.waits_since), default=None)
        parts = [f"{len(turns) - len(alone) - left - asleep} claimed by a worker"]
        parts += [f"{asleep} asleep, to be woken within two hours"] if asleep else []
        parts += [f"{left} in line behind others"] if left else []
        since = f" (the oldest for {age(self.at - oldest)})" if oldest else ""
        parts += [f"{len(alone)} without a worker{since}"]
        parts += [f"{sum(row.head.turn.resends > 0 for row in turns)} sent again by the sweeper"]
        more = "" if self.is_all else ", those that the sweeper looks at next; there are more"
        s = "" if count == 1 else "s"
        return f"Looked at {count:,} open turn{s}{more}: {', '.join(parts)}."

    def table(self, most: int) -> Table:
        """Return those that wait, at most so many."""
        rows = list(self._lines())
        hidden = len(rows) - most
        return Table(
            "Turns that wait",
            {"task": "main-cell", "known": "", "next look of the sweeper": ""},
            rows[:most],
            note=f"{hidden} more are not shown." if hidden > 0 else "",
        )

    def _lines(self) -> Iterator[tuple[Cell, Cell, Cell]]:
        for one in self.unread:
            key = one.scope.digest, one.task_id
            known = Cell("an open turn, of which no more could be read")
            yield Cell(one.task_id, task=key), known, Cell(at=one.due_at)
        for row in filter(self._waits, self.rows):
            cells = row.cells(self.at)
            yield cells["task"], cells["known"], Cell(at=row.head.due_at)


async def open_turns(storage: DurableStorage, limit: int) -> _OpenTurns:
    """Return what is due of the first `limit` tasks at which the sweeper looks next."""
    now = storage.clock.now_ms()
    found = await due_tasks(storage, now + _NEXT_MS, limit=limit + 1)
    keys = [(one.scope.digest, one.task_id) for one in found[:limit]]
    parts = (keys[at : at + LOOK_AT_ONCE] for at in range(0, len(keys), LOOK_AT_ONCE))
    heads: dict[TaskKey, Head | None] = dict.fromkeys(keys)
    for seen in await asyncio.gather(*map(storage.look, parts)):
        heads |= seen
    return _OpenTurns(
        at=now,
        rows=tuple(
            TaskRow(head=head, why=head.attention)
            for head in heads.values()
            if head is not None and (head.turn.is_open or overdue_cancel(head, now_ms=now))
        ),
        unread=tuple(o for o in found[:limit] if heads[o.scope.digest, o.task_id] is None),
        is_all=len(found) <= limit,
    )

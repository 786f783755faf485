"""Following a task's log: one implementation for blocking sends, streams and cancel waits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from a2a.types import Task, TaskArtifactUpdateEvent

from a2a_serverless.errors import TaskNotFoundError
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import ArtifactWritten, Restarted, StatusChanged
from a2a_serverless.tasks.fold import Cursor, Event, Fold, Log, events_of, incarnation_tag
from a2a_serverless.tasks.head import Head
from a2a_serverless.values import dataclass

_FIRST_POLL_S = 0.015
"""Seconds from an event, or from the start, to the next poll: a quick agent's turn is over."""
_FASTEST_POLL_S = 0.025
"""Seconds between later polls: a busy writer collects chunks for four times as long."""
SLOWEST_POLL_S = 1.0
_POLL_SHARE_OF_SILENCE = 0.1
"""A poll waits a tenth of the silence so far: quick while events come, once a second after 10 s.

After a commit of chunks a worker commits no more chunks for `A2A_FLUSH_MS`. In that time a stream
polls once, for the end of the turn, which is committed at once.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailEvent:
    """One event and the cursor that continues after it."""

    cursor: Cursor
    event: Event


class Tail:
    """One subscriber's place in the log of one incarnation of a task.

    `fold` is the task after everything delivered; `head` the newest HEAD seen.
    """

    def __init__(
        self, source: DurableStorage, head: Head, fold: Fold, backlog: list[TailEvent]
    ) -> None:
        self._source = source
        self._backlog = deque(backlog)
        self.head = head
        self.fold = fold

    @classmethod
    async def open(cls, source: DurableStorage, task_id: str, *, is_whole: bool = False) -> Tail:
        """Return a tail that stands at the task's newest commit.

        `is_whole`: its fold knows the messages of all turns.

        Raises:
            TaskNotFoundError: there is no such task.
        """
        log = await source.read(task_id, is_whole=is_whole)
        if log is None:
            raise TaskNotFoundError
        return cls(source, log.head, log.fold(), [])

    @classmethod
    async def resume(
        cls, source: DurableStorage, task_id: str, cursor: Cursor, length: int | None = None
    ) -> tuple[Tail, TailEvent]:
        """Return a tail behind `cursor`, and the Task there with its last `length` messages.

        A cursor of another incarnation, or beyond the log, is ignored: the tail stands at the
        newest commit, and the Task is as it is now.
        """
        log = await source.read(task_id, is_whole=False)
        if log is not None and log.since is not None and cursor.version <= log.since.version:
            log = await source.read(task_id)
        if log is None:
            raise TaskNotFoundError
        is_ours = cursor.tag == incarnation_tag(log.head.incarnation)
        if not is_ours or not 1 <= cursor.version <= log.head.version:
            tail = cls(source, log.head, log.fold(), [])
            return tail, tail.snapshot(length)
        tail = cls(source, log.head, log.fold(cursor.version - 1), [])
        as_of = _task_at(log, cursor, length)
        tail._backlog.extend(d for d in tail._take(log) if d.cursor > cursor)
        return tail, TailEvent(cursor=cursor, event=as_of)

    @property
    def has_more(self) -> bool:
        """Return True if events have been read and not delivered yet."""
        return bool(self._backlog)

    def snapshot(self, length: int | None = None) -> TailEvent:
        """Return the Task now, with its last `length` messages (None: all).

        Its cursor is that of its version's last event.
        """
        cursor = self._cursor(self.fold.version, max(0, self.fold.shown - 1))
        return TailEvent(cursor=cursor, event=self.fold.task(length))

    async def events(
        self,
        *,
        until: Callable[[Head], bool],
        deadline: float,
        stop: float = math.inf,
        may_wait: Callable[[float], Awaitable[bool]] | None = None,
        free_s: float = 0,
        flush_s: float = 0,
    ) -> AsyncIterator[TailEvent]:
        """Yield events as they are committed, until HEAD satisfies `until` and all were delivered.

        `deadline` and `stop` are in monotonic seconds. The iteration ends at `deadline`, even if a
        slow reader has not taken all events yet; but once HEAD satisfies `until`, the remaining
        events are still delivered up to `stop`. `may_wait` is asked once, with the seconds that are
        left, before the first wait that goes beyond `free_s` from the start; False ends the
        iteration. The tail can be continued after that. `flush_s`: the seconds from a commit of
        chunks to the next one, as the workers are set.

        Raises:
            TaskNotFoundError: the task was deleted or has expired.
        """
        clock = self._source.clock
        last_news, quiet_s = clock.monotonic(), 0.0
        free_until = last_news + free_s
        while True:
            news = bool(self._backlog)
            while self._backlog:
                delivered = self._backlog.popleft()
                is_chunk = isinstance(delivered.event, TaskArtifactUpdateEvent)
                quiet_s = flush_s - _FASTEST_POLL_S if is_chunk else 0.0
                yield delivered
                if clock.monotonic() >= (stop if until(self.head) else deadline):
                    return
            now = clock.monotonic()
            if until(self.head) or now >= deadline:
                return
            if may_wait is not None and now >= free_until:
                if not await may_wait(deadline - now):
                    return
                may_wait = None
            last_news = now if news else last_news
            wait_s = (deadline if may_wait is None else min(deadline, free_until)) - now
            if not self._source.table.wakes:
                wait_s = min(wait_s, _poll_interval(now - last_news, quiet_s))
            await self._source.changed(self.head.task_id, self.head.version, wait_s)
            await self.poll()

    async def poll(self) -> None:
        """Read what was committed since the last read; `events` delivers it next."""
        log = await self._source.read(
            self.head.task_id, after=self.fold.version, incarnation=self.head.incarnation
        )
        if log is None:
            raise TaskNotFoundError
        self._backlog.extend(self._take(log))

    def _take(self, log: Log) -> Iterator[TailEvent]:
        self.head = log.head
        for record in log.records:
            if record.version <= self.fold.version:
                continue
            self.fold.add(record)
            for index, event in enumerate(events_of(record, self.fold)):
                yield TailEvent(cursor=self._cursor(record.version, index), event=event)

    def _cursor(self, version: int, index: int) -> Cursor:
        return Cursor(version, index, incarnation_tag(self.head.incarnation))


def _poll_interval(silence_s: float, quiet_s: float = 0) -> float:
    """Return the seconds until the next read after `silence_s` without an event.

    `quiet_s`: the seconds after the last event in which only the turn's end is expected.
    """
    if silence_s < _FIRST_POLL_S:
        return _FIRST_POLL_S
    wait_s = max(_FASTEST_POLL_S, silence_s * _POLL_SHARE_OF_SILENCE, quiet_s - silence_s)
    return min(SLOWEST_POLL_S, wait_s)


def _task_at(log: Log, cursor: Cursor, length: int | None) -> Task:
    """Return the Task after the event at `cursor`, which may lie inside a commit.

    What no event shows counts with the event before it, such as the end of the turn: so the Task is
    the one of a snapshot under the same cursor.
    """
    fold, record = log.fold(cursor.version - 1), log.at(cursor.version)
    shown = 0
    for entry in record.entries:
        has_all = shown > cursor.index
        if has_all and isinstance(entry, Restarted | StatusChanged | ArtifactWritten):
            break
        shown += fold.apply(entry, record)
    return fold.task(length)

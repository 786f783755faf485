"""Storage in the process's memory: for development, and the model that other backends match.

Bodies are kept encoded, so that no stored object is ever shared with a caller. Safe under threads,
because the local stack runs one event loop a door.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import ConcurrencyError, TaskNotFoundError
from a2a_serverless.storage.durable import DurableStorage, Write, context_conflict, record_of
from a2a_serverless.storage.listing import Listing, status_key
from a2a_serverless.storage.log import Due, Log
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import ANONYMOUS, Scope
from a2a_serverless.tasks.rules import ContextWrite, Timing, expiry

Key = tuple[str, str]
"""(scope digest, task id or context id)"""


@dataclass(frozen=True, slots=True)
class _Context:
    """JSON, version, and when it expires, in milliseconds."""

    value: str
    version: int
    expires_at: int


_NO_CONTEXT = _Context("", 0, 0)


@dataclass(slots=True)
class _Tables:
    """What all scoped views share."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    heads: dict[Key, Head] = field(default_factory=dict)
    logs: dict[Key, list[Write]] = field(default_factory=dict)
    contexts: dict[Key, _Context] = field(default_factory=dict)
    waiters: defaultdict[Key, set[_Waiter]] = field(default_factory=lambda: defaultdict(set))


@dataclass(slots=True, eq=False)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    woken: asyncio.Event

    def wake(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.woken.set)


class MemoryStorage(DurableStorage):
    """Tasks in dictionaries; lost with the process."""

    wakes: ClassVar[bool] = True

    def __init__(
        self,
        *,
        scope: Scope = ANONYMOUS,
        clock: Clock | None = None,
        timing: Timing | None = None,
        _tables: _Tables | None = None,
    ) -> None:
        self.scope = scope
        self.clock = clock or SystemClock()
        self.timing = timing or Timing()
        self._tables = _tables or _Tables()

    def for_scope(self, scope: Scope) -> Self:
        return type(self)(scope=scope, clock=self.clock, timing=self.timing, _tables=self._tables)

    async def head(self, task_id: str) -> Head | None:
        with self._tables.lock:
            return self._live(self._key(task_id))

    async def read(
        self, task_id: str, *, after: int = 0, incarnation: str | None = None
    ) -> Log | None:
        with self._tables.lock:
            head = self._live(self._key(task_id))
            if head is None or incarnation not in (None, head.incarnation):
                return None
            writes = self._tables.logs[self._key(task_id)][after:]
        return Log(head=head, records=tuple(record_of(write) for write in writes))

    async def due(self, now_ms: int, *, limit: int = 100) -> list[Due]:
        with self._tables.lock:
            overdue = [
                Due(scope=Scope(head.scope), task_id=head.task_id, due_at=head.due_at)
                for head in self._tables.heads.values()
                if head.due_at is not None
                and head.due_at <= now_ms
                and not head.has_expired(now_ms)
            ]
        return sorted(overdue, key=lambda due: (due.due_at, due.task_id))[:limit]

    async def postpone(self, head: Head, *, due_at: int, sends: int) -> bool:
        with self._tables.lock:
            current = self._live(self._key(head.task_id))
            if current != head or head.due_at is None:
                return False
            self._tables.heads[self._key(head.task_id)] = replace(head, due_at=due_at, sends=sends)
        return True

    async def changed(self, task_id: str, version: int, timeout_s: float) -> None:
        waiter = _Waiter(asyncio.get_running_loop(), asyncio.Event())
        key = self._key(task_id)
        with self._tables.lock:
            head = self._live(key)
            if head is None or head.version > version:
                return
            self._tables.waiters[key].add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.woken.wait()
        except TimeoutError:
            pass
        finally:
            with self._tables.lock:
                self._tables.waiters[key].discard(waiter)
                if not self._tables.waiters[key]:
                    del self._tables.waiters[key]

    async def _insert(self, write: Write) -> Head | None:
        key = self._key(write.after.task_id)
        with self._tables.lock:
            taker = self._live(key)
            if taker is None:
                self._tables.heads[key] = write.after
                self._tables.logs[key] = [write]
            return taker

    async def _apply(self, write: Write) -> None:
        key = self._key(write.after.task_id)
        with self._tables.lock:
            current = self._live(key)
            if current is None or current.incarnation != write.after.incarnation:
                raise TaskNotFoundError
            if current.version + 1 != write.after.version:
                stored = self._tables.logs[key][write.after.version - 1 :][:1]
                if stored and stored[0].commit_id == write.commit_id:
                    return  # repeated by a writer that did not get its answer
                raise ConcurrencyError(current_version=current.version)
            if write.context_write is not None:
                self._write_context(write.after.context_id, write.context_write)
            self._tables.heads[key] = _postponed(write, current)
            self._tables.logs[key].append(write)
            self._wake(key)

    async def _remove(self, head: Head) -> bool:
        key = self._key(head.task_id)
        with self._tables.lock:
            current = self._live(key)
            if current is None or current.incarnation != head.incarnation:
                return False
            del self._tables.heads[key], self._tables.logs[key]
            self._wake(key)
        return True

    async def _context_heads(self, context_id: str) -> list[Head]:
        return [head for head in self._own_heads() if head.context_id == context_id]

    async def _newest(self, listing: Listing, limit: int) -> list[Head]:
        keyed = {status_key(h.status_at, h.task_id): h for h in self._own_heads()}
        matching = (
            keyed[key]
            for key in sorted(keyed, reverse=True)
            if (listing.before is None or key < listing.before) and listing.matches(keyed[key])
        )
        return [head for head, _ in zip(matching, range(limit), strict=False)]

    async def _count(self, listing: Listing) -> int:
        return sum(listing.matches(head) for head in self._own_heads())

    async def _load_context_item(self, context_id: str) -> tuple[str, int] | None:
        with self._tables.lock:
            stored = self._context(self._key(context_id))
        return (stored.value, stored.version) if stored.version else None

    async def _store_context_item(self, context_id: str, write: ContextWrite) -> None:
        with self._tables.lock:
            self._write_context(context_id, write)

    async def _delete_context_item(self, context_id: str) -> None:
        with self._tables.lock:
            self._tables.contexts.pop(self._key(context_id), None)

    def _write_context(self, context_id: str, write: ContextWrite) -> None:
        key, now_ms = self._key(context_id), self.clock.now_ms()
        version = self._context(key).version
        if write.expected_version not in (None, version):
            raise context_conflict(version)
        expires_at = expiry(now_ms, self.timing.ttl_s)
        self._tables.contexts[key] = _Context(write.value, version + 1, expires_at)

    def _context(self, key: Key) -> _Context:
        stored = self._tables.contexts.get(key, _NO_CONTEXT)
        return stored if stored.expires_at > self.clock.now_ms() else _NO_CONTEXT

    def _key(self, name: str) -> Key:
        return (self.scope.digest, name)

    def _live(self, key: Key) -> Head | None:
        head = self._tables.heads.get(key)
        return None if head is None or head.has_expired(self.clock.now_ms()) else head

    def _own_heads(self) -> list[Head]:
        now_ms = self.clock.now_ms()
        with self._tables.lock:
            return [
                head
                for (scope, _), head in self._tables.heads.items()
                if scope == self.scope.digest and not head.has_expired(now_ms)
            ]

    def _wake(self, key: Key) -> None:
        for waiter in self._tables.waiters.get(key, ()):
            waiter.wake()


def _postponed(write: Write, current: Head) -> Head:
    """HEAD after a commit; what the sweeper has postponed since `write.before` was read stays."""
    before, after = write.before, write.after
    if before is None:
        return after
    return replace(
        after,
        sends=current.sends if after.sends == before.sends else after.sends,
        due_at=current.due_at if after.due_at == before.due_at else after.due_at,
    )

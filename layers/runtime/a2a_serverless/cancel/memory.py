"""Cancel flags in the process's memory; safe under threads."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Self

from a2a_serverless.cancel.base import CancelRegistry, CancelScope, OverdueCancel
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import TaskNotFoundError, TaskTerminalStateError
from a2a_serverless.storage.log import TaskLog
from a2a_serverless.tasks.cancels import (
    check_open,
    counts_for,
    deadline_ms,
    is_overdue,
    may_remove,
)
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import ANONYMOUS, Scope

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Flag:
    """A raised flag; its deadline is in milliseconds since the epoch."""

    deadline: int
    incarnation: str


@dataclass(slots=True)
class _Flags:
    """What all scoped views share: the flags, and the scopes that listen."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    raised: dict[Key, _Flag] = field(default_factory=dict)
    scopes: defaultdict[Key, set[MemoryCancelScope]] = field(
        default_factory=lambda: defaultdict(set)
    )

    def forget(self, key: Key, scope: MemoryCancelScope) -> None:
        with self.lock:
            self.scopes[key].discard(scope)
            if not self.scopes[key]:
                del self.scopes[key]


class MemoryCancelScope(CancelScope):
    """Set by the registry, from whatever thread."""

    def __init__(self, flags: _Flags, key: Key) -> None:
        self._flags = flags
        self._key = key
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def release(self) -> None:
        self._flags.forget(self._key, self)

    def set(self) -> None:
        """Wake the turn; in its own loop at once, else as soon as that loop comes to it."""
        if self._loop.is_closed():
            return
        if _running_loop() is self._loop:
            self._event.set()
        else:
            self._loop.call_soon_threadsafe(self._event.set)


class MemoryCancelRegistry(CancelRegistry):
    """Flags in a dictionary; lost with the process.

    A scope trusts the flag of its id: unlike `is_cancelled` it does not ask which incarnation the
    flag is meant for.

    Args:
        log: the tasks; those that are gone or have ended are refused.
        timeout_s: seconds from a request to its deadline.
        scope: the owner.
        clock: by default the system's.
    """

    def __init__(
        self,
        *,
        log: TaskLog,
        timeout_s: float = 10,
        scope: Scope = ANONYMOUS,
        clock: Clock | None = None,
        _flags: _Flags | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.scope = scope
        self._log = log.for_scope(scope)
        self._clock = clock or SystemClock()
        self._flags = _flags or _Flags()

    def for_scope(self, scope: Scope) -> Self:
        return type(self)(
            log=self._log,
            timeout_s=self.timeout_s,
            scope=scope,
            clock=self._clock,
            _flags=self._flags,
        )

    async def request_cancel(self, task_id: str) -> None:
        head = await self._open_head(task_id)
        deadline = deadline_ms(self._clock.now_ms(), self.timeout_s)
        with self._flags.lock:
            raised = self._flags.raised.get(self._key(task_id))
            if raised is None or raised.incarnation != head.incarnation:
                self._flags.raised[self._key(task_id)] = _Flag(deadline, head.incarnation)
        try:
            # Looked at again after the flag is up: a task that ends later finds it and removes it.
            await self._open_head(task_id)
        except (TaskNotFoundError, TaskTerminalStateError):
            await self.cleanup(task_id, incarnation=head.incarnation)
            raise
        with self._flags.lock:
            for scope in self._flags.scopes.get(self._key(task_id), ()):
                scope.set()

    async def is_cancelled(self, task_id: str) -> bool:
        with self._flags.lock:
            flag = self._flags.raised.get(self._key(task_id))
        if flag is None:
            return False
        head = await self._log.head(task_id)
        return counts_for(flag.incarnation, head.incarnation if head else None)

    def on_cancel(self, task_id: str) -> CancelScope:
        scope = MemoryCancelScope(self._flags, self._key(task_id))
        with self._flags.lock:
            self._flags.scopes[self._key(task_id)].add(scope)
            if self._key(task_id) in self._flags.raised:
                scope.set()
        return scope

    async def cleanup(self, task_id: str, *, incarnation: str | None = None) -> None:
        key = self._key(task_id)
        with self._flags.lock:
            self._flags.scopes.pop(key, None)
            flag = self._flags.raised.get(key)
            if flag is not None and may_remove(flag.incarnation, incarnation):
                del self._flags.raised[key]

    async def overdue(self, now_ms: int, *, limit: int = 100) -> list[OverdueCancel]:
        with self._flags.lock:
            raised = self._flags.raised.items()
            passed = [item for item in raised if is_overdue(item[1].deadline, now_ms=now_ms)]
        return [
            OverdueCancel(scope=Scope(scope), task_id=task_id, incarnation=flag.incarnation)
            for (scope, task_id), flag in sorted(passed, key=lambda item: item[1].deadline)[:limit]
        ]

    async def _open_head(self, task_id: str) -> Head:
        return check_open(await self._log.head(task_id))

    def _key(self, task_id: str) -> Key:
        return (self.scope.digest, task_id)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

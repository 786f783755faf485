"""Cancel flags in the process's memory; safe under threads."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Self

from a2a_serverless.cancel.base import CancelRegistry, CancelScope, OverdueCancel
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.tasks.identity import ANONYMOUS, Scope

Key = tuple[str, str]


@dataclass(slots=True)
class _Flags:
    """What all scoped views share: deadlines in milliseconds, and the scopes that listen."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    deadlines: dict[Key, int] = field(default_factory=dict)
    scopes: defaultdict[Key, set[MemoryCancelScope]] = field(
        default_factory=lambda: defaultdict(set)
    )


class MemoryCancelScope(CancelScope):
    """Set by the registry; bound to the loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)


class MemoryCancelRegistry(CancelRegistry):
    """Flags in a dictionary; lost with the process."""

    def __init__(
        self,
        *,
        timeout_s: float = 10,
        scope: Scope = ANONYMOUS,
        clock: Clock | None = None,
        _flags: _Flags | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.scope = scope
        self._clock = clock or SystemClock()
        self._flags = _flags or _Flags()

    def for_scope(self, scope: Scope) -> Self:
        return type(self)(
            timeout_s=self.timeout_s, scope=scope, clock=self._clock, _flags=self._flags
        )

    async def request_cancel(self, task_id: str) -> None:
        deadline = self._clock.now_ms() + int(self.timeout_s * 1000)
        with self._flags.lock:
            self._flags.deadlines.setdefault(self._key(task_id), deadline)
            for scope in self._flags.scopes.get(self._key(task_id), ()):
                scope.set()

    async def is_cancelled(self, task_id: str) -> bool:
        with self._flags.lock:
            return self._key(task_id) in self._flags.deadlines

    def on_cancel(self, task_id: str) -> CancelScope:
        scope = MemoryCancelScope()
        with self._flags.lock:
            self._flags.scopes[self._key(task_id)].add(scope)
            if self._key(task_id) in self._flags.deadlines:
                scope._event.set()
        return scope

    async def cleanup(self, task_id: str) -> None:
        with self._flags.lock:
            self._flags.deadlines.pop(self._key(task_id), None)
            self._flags.scopes.pop(self._key(task_id), None)

    async def overdue(self, now_ms: int, *, limit: int = 100) -> list[OverdueCancel]:
        with self._flags.lock:
            passed = [key for key, deadline in self._flags.deadlines.items() if deadline <= now_ms]
        return [OverdueCancel(scope=Scope(s), task_id=t) for s, t in passed[:limit]]

    def _key(self, task_id: str) -> Key:
        return (self.scope.digest, task_id)

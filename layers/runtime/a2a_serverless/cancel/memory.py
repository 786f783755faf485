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
from a2a_serverless.tasks.identity import ANONYMOUS, Scope
from a2a_serverless.tasks.states import state_name

Key = tuple[str, str]


@dataclass(slots=True)
class _Flags:
    """What all scoped views share: deadlines in milliseconds, and the scopes that listen."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    deadlines: dict[Key, int] = field(default_factory=dict)
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

    Args:
        log: the tasks, where the registry should refuse those that are gone or have ended.
        timeout_s: seconds from a request to its deadline.
        scope: the owner.
        clock: by default the system's.
    """

    def __init__(
        self,
        *,
        log: TaskLog | None = None,
        timeout_s: float = 10,
        scope: Scope = ANONYMOUS,
        clock: Clock | None = None,
        _flags: _Flags | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.scope = scope
        self._log = log and log.for_scope(scope)
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
        deadline = self._clock.now_ms() + int(self.timeout_s * 1000)
        with self._flags.lock:
            self._flags.deadlines.setdefault(self._key(task_id), deadline)
        try:
            # Looked at after the flag is up: a task that ends later finds it and cleans it up.
            await self._refuse_what_is_over(task_id)
        except (TaskNotFoundError, TaskTerminalStateError):
            await self.cleanup(task_id)
            raise
        with self._flags.lock:
            for scope in self._flags.scopes.get(self._key(task_id), ()):
                scope.set()

    async def is_cancelled(self, task_id: str) -> bool:
        with self._flags.lock:
            return self._key(task_id) in self._flags.deadlines

    def on_cancel(self, task_id: str) -> CancelScope:
        scope = MemoryCancelScope(self._flags, self._key(task_id))
        with self._flags.lock:
            self._flags.scopes[self._key(task_id)].add(scope)
            if self._key(task_id) in self._flags.deadlines:
                scope.set()
        return scope

    async def cleanup(self, task_id: str) -> None:
        with self._flags.lock:
            self._flags.deadlines.pop(self._key(task_id), None)
            self._flags.scopes.pop(self._key(task_id), None)

    async def overdue(self, now_ms: int, *, limit: int = 100) -> list[OverdueCancel]:
        with self._flags.lock:
            passed = sorted((at, key) for key, at in self._flags.deadlines.items() if at <= now_ms)
        return [OverdueCancel(scope=Scope(key[0]), task_id=key[1]) for _, key in passed[:limit]]

    async def _refuse_what_is_over(self, task_id: str) -> None:
        if self._log is None:
            return
        head = await self._log.head(task_id)
        if head is None:
            raise TaskNotFoundError
        if head.is_terminal:
            msg = f"The task is {state_name(head.state)}."
            raise TaskTerminalStateError(msg)

    def _key(self, task_id: str) -> Key:
        return (self.scope.digest, task_id)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

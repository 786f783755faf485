"""Event loops of one process that take turns at the interpreter.

One thread runs Python at a time, and each SQL statement and system call lets another one in. Where
several loops have work, they would hand the interpreter to and fro at each of them, and wake a
thread each time: a third of the processor's time of a short turn. So one loop goes on until it
waits, or for `POLL_S`, and then the next one does. One that never waits, such as that of an agent
which awaits `asyncio.sleep(0)` again and again, has no such time after `BUSY_S`.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Final

POLL_S: Final = 0.005
"""Seconds after which a loop that has work looks for input, and lets another loop go first."""
BUSY_S: Final = 0.05
"""Seconds after which a loop that never waits looks for input at each step.

Its looks let other threads run: few short ones would not, as a thread that waits for CPython's
lock asks for it only after 5 ms in which nobody has let go of it.
"""
PATIENCE_S: Final = 0.005
"""Seconds after which a loop goes on beside one that is blocked, as a thread of CPython does."""


class Loop(asyncio.SelectorEventLoop):
    """An event loop that runs by turns with the others of its process.

    What it asks of another one by `call_soon_threadsafe` wakes that one when this one is idle: no
    step may block until that is done.
    """

    def __init__(self) -> None:
        self._input = _Selector()
        super().__init__(self._input)

    def call_when_idle(self, callback: Callable[[], object]) -> None:
        """Call from this loop's thread, once it has nothing else to do, or after `POLL_S`.

        What the call wakes then runs at once, and not beside the rest of what this loop does. It is
        for loops that run no agent: one that blocks would hold it up.
        """
        self._input.postponed.append(partial(self._call, callback))

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - the loop goes on, as after a callback's error
            context = {"message": f"{callback!r} has failed", "exception": error}
            self.call_exception_handler(context)

    def wake(self) -> None:
        """End its wait for input, from any thread."""
        super()._write_to_self()  # type: ignore[misc] # not public: the hook of subclasses

    def _write_to_self(self) -> None:
        """Wake it as `call_soon_threadsafe` asks: when its caller is idle, if that is a `Loop`."""
        try:
            caller = asyncio.get_running_loop()
        except RuntimeError:
            caller = self
        if caller is not self and isinstance(caller, Loop):
            caller.call_when_idle(self.wake)
        else:
            self.wake()


class _Floor:
    """Has one owner at a time, in the order of those who ask. Safe under threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: object = None
        self._changes = 0
        """How often it has had another owner."""
        self.waiting: deque[tuple[object, Lock]] = deque()

    def take(self, owner: object) -> None:
        """Become the owner; without the consent of one that has kept it for `PATIENCE_S`."""
        with self._lock:
            if self._owner is None:
                self._give(owner)
                return
            passed = Lock()
            passed.acquire()
            self.waiting.append(asked := (owner, passed))
            changes = self._changes
        while not passed.acquire(timeout=PATIENCE_S):
            with self._lock:
                if asked not in self.waiting:  # passed on in this moment
                    return
                if changes == self._changes:
                    self.waiting.remove(asked)
                    self._give(owner)
                    return
                changes = self._changes

    def leave(self, owner: object) -> None:
        """Pass it on; do nothing if it was taken away."""
        with self._lock:
            if self._owner is owner:
                following, passed = self.waiting.popleft() if self.waiting else (None, None)
                self._give(following)
                if passed is not None:
                    passed.release()

    def _give(self, owner: object) -> None:
        self._owner = owner
        self._changes += 1


_floor = _Floor()


class _Selector(selectors.DefaultSelector):
    """Waits for input without the floor, and returns with it."""

    def __init__(self) -> None:
        super().__init__()
        self.postponed: deque[Callable[[], object]] = deque()
        self._waited_at = 0.0
        self._look_at = 0.0
        """When a loop that has work looks for input."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            if time.monotonic() < self._look_at:
                return []
            if not (_floor.waiting or self.postponed):
                self._go_on()
                return super().select(0)
        self._call_postponed()
        _floor.leave(self)
        try:
            return super().select(timeout)
        finally:
            _floor.take(self)
            if timeout != 0:
                self._waited_at = time.monotonic()
            self._go_on()

    def close(self) -> None:
        self._call_postponed()
        _floor.leave(self)
        super().close()

    def _go_on(self) -> None:
        now = time.monotonic()
        is_busy = now >= self._waited_at + BUSY_S
        self._look_at = now if is_busy else now + POLL_S

    def _call_postponed(self) -> None:
        while self.postponed:  # a call may add one
            self.postponed.popleft()()

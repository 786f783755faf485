"""Waiting for several things at once, and leaving nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from a2a_serverless.clock import Clock

RECANCEL_S = 1.0
"""Seconds that a cancelled task has before it is cancelled again."""
STOP_GRACE_S = 5.0
"""Seconds that a cancelled task has to end; after that it is left behind."""


async def first_of(
    *waits: Coroutine[Any, Any, Any], tasks: Iterable[asyncio.Future[Any]] = ()
) -> None:
    """Return when one of them is done. `waits` end with the call, `tasks` are left running.

    Exceptions of a wait or a task are not raised here.
    """
    own = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait([*own, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in own:
            wait.cancel()
        await asyncio.gather(*own, return_exceptions=True)


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Call back in another thread's loop; nothing happens if that loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


def error_of(task: asyncio.Future[Any]) -> BaseException | None:
    """Return the exception of a task that is done; None if it runs, or raised none."""
    if not task.done():
        return None
    return asyncio.CancelledError() if task.cancelled() else task.exception()


async def end_tasks(
    *tasks: asyncio.Task[Any], clock: Clock, grace_s: float = STOP_GRACE_S
) -> list[asyncio.Task[Any]]:
    """Cancel tasks and wait for them; return those that run on after `grace_s`.

    A task that swallows a cancellation gets another one every second.
    """
    deadline = clock.monotonic() + grace_s
    running = [task for task in tasks if not task.done()]
    while running:
        for task in running:
            task.cancel()
        left_s = deadline - clock.monotonic()
        if left_s <= 0:
            break
        ended = asyncio.gather(*running, return_exceptions=True)
        await first_of(clock.sleep(min(RECANCEL_S, left_s)), tasks=[ended])
        running = [task for task in running if not task.done()]
    return running


async def limited(
    work: Coroutine[Any, Any, Any], *, clock: Clock, seconds: float
) -> BaseException | None:
    """Run `work` for at most `seconds`; return its exception, TimeoutError if it did not end."""
    task = asyncio.create_task(work)
    try:
        await first_of(clock.sleep(seconds), tasks=[task])
        if not task.done():
            return TimeoutError(f"No end within {seconds} s.")
        return error_of(task)
    finally:
        await end_tasks(task, clock=clock)

"""Work of an agent that takes long: several things at once, and code that blocks."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


async def gathered(*work: Awaitable[T]) -> list[T]:
    """Return the results in order; nothing of `work` runs on when this returns or raises.

    Raises:
        Exception: the first that one of them has raised; the others were cancelled.
        CancelledError: this call, or one of them, was cancelled, and so were all.
    """
    running: list[asyncio.Future[T]] = []
    try:
        for one in work:
            running.append(asyncio.ensure_future(one))  # noqa: PERF401 - what was begun is ended
        waiting = set(running)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # an error or a cancel of one ends all
        return [task.result() for task in running]
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def in_thread(func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a blocking function returns, which runs in a thread with this call's context.

    A thread cannot be stopped. So the first cancel waits for the function's end. Only a second one
    leaves the thread behind; the worker sends it when the time for a cancel is over.

    Raises:
        TypeError: `func` is an async function.
        CancelledError: this call was cancelled; the function's result, or exception, is dropped.
    """
    if inspect.iscoroutinefunction(func):
        name = getattr(func, "__name__", "it")
        msg = f"ctx.run_sync takes a blocking function, and {name} is async: `await {name}(…)`."
        raise TypeError(msg)
    context = contextvars.copy_context()
    running = asyncio.get_running_loop().run_in_executor(
        None, lambda: context.run(func, *args, **kwargs)
    )
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([running])
        finally:
            _leave(running)
        raise


def _leave(running: asyncio.Future[T]) -> None:
    """Log a thread that runs on; retrieve its exception, which asyncio would report as lost."""
    running.add_done_callback(lambda done: done.cancelled() or done.exception())
    if not running.done():
        text = "A function of ctx.run_sync runs on in its thread after the turn was canceled"
        logger.warning(text, extra={"action": "thread_left_behind"})

"""Work of an agent that takes long: several things at once, and code that blocks."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

from a2a_serverless.worker.failures import WrongCallError

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


async def gathered(*work: Awaitable[T]) -> list[T]:
    """Return the results in order; nothing of `work` runs on when this returns or raises.

    Raises:
        WrongCallError: one of them cannot be awaited; the message spells out the right call.
        Exception: the first that one of them has raised; the others were cancelled.
        CancelledError: this call, or one of them, was cancelled, and so were all.
    """
    _refuse_what_cannot_be_awaited(work)
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
        WrongCallError: `func` is an async function, or none; the message spells out the right call.
        CancelledError: this call was cancelled; the function's result, or exception, is dropped.
    """
    _refuse_what_is_no_blocking_function(func)
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


def _refuse_what_is_no_blocking_function(func: object) -> None:
    if inspect.iscoroutinefunction(func):
        name = getattr(func, "__name__", "it")
        msg = f"ctx.run_sync takes a blocking function, and {name} is async: `await {name}(…)`."
        raise WrongCallError(msg)
    if not callable(func):
        kind = type(func).__name__
        raise WrongCallError(
            f"ctx.run_sync takes a function and its arguments, and got a {kind}: write"
            " `await ctx.run_sync(func, …)`, not `ctx.run_sync(func(…))`."
        )


def _refuse_what_cannot_be_awaited(work: Sequence[object]) -> None:
    """Raise WrongCallError unless all of `work` can be awaited; what was begun is closed."""
    wrong = [one for one in work if not inspect.isawaitable(one)]
    if not wrong:
        return
    inner = [one for each in wrong if isinstance(each, list | tuple | set) for one in each]
    for one in (*work, *inner):
        if inspect.iscoroutine(one):
            one.close()  # else it would be named as one whose await was forgotten
    kind = type(wrong[0]).__name__
    way = "ctx.gather(fetch(…))" if callable(wrong[0]) else "ctx.gather(*work)"
    msg = f"ctx.gather takes coroutines, one by one, and got a {kind}: write `await {way}`."
    raise WrongCallError(msg)


def _leave(running: asyncio.Future[T]) -> None:
    """Log a thread that runs on; retrieve its exception, which asyncio would report as lost."""
    running.add_done_callback(lambda done: done.cancelled() or done.exception())
    if not running.done():
        text = "A function of ctx.run_sync runs on in its thread after the turn was canceled"
        logger.warning(text, extra={"action": "thread_left_behind"})

"""Work in the background: a coroutine in a thread of its own, and a loop that survives errors."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

logger = logging.getLogger(__name__)


@contextmanager
def surviving(failure: str, *, action: str) -> Iterator[None]:
    """Log an exception of a `with` block under the text `failure`, and go on after the block."""
    try:
        yield
    except Exception:
        logger.exception(failure, extra={"action": action})


async def repeat(
    step: Callable[[], Awaitable[None]], *, pause_s: float, failure: str, action: str
) -> None:
    """Repeat a step until cancelled, with a pause after each; log the exceptions of a step."""
    while True:
        with surviving(failure, action=action):
            await step()
        await asyncio.sleep(pause_s)


class Background:
    """Runs a coroutine in the background of a `with` block, at whose end it is cancelled.

    Args:
        name: the thread's name.
        main: makes the coroutine, in the new loop.
    """

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._main = main
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop is closed: the coroutine has ended by itself
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        with (
            suppress(asyncio.CancelledError),  # the end of the block
            surviving(f"{self._thread.name} has ended.", action="thread_ended"),
        ):
            asyncio.run(self._watched())

    async def _watched(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        await self._main()

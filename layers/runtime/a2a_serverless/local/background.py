"""A coroutine in a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

logger = logging.getLogger(__name__)


class Background:
    """Runs a coroutine beside a `with` block, at whose end it is cancelled.

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
            with suppress(RuntimeError):  # its loop is closed: the coroutine has ended by itself
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):  # the end of the block
                asyncio.run(self._watched())
        except Exception:
            logger.exception("%s has ended.", self._thread.name, extra={"action": "thread_ended"})

    async def _watched(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        await self._main()

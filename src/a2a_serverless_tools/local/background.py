"""Work in the background: a coroutine in a thread of its own, and a loop that survives errors."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, Self, TypeVar, cast

from a2a_serverless.worker.loops import run_to_end
from a2a_serverless_tools.local.loops import Loop

T = TypeVar("T")

logger = logging.getLogger(__name__)

JOIN_S: Final = 3.0
"""Seconds for which the end of a block waits for its thread."""


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


async def _forever() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()


class Background:
    """Runs a coroutine in the background of a `with` block, at whose end it is cancelled.

    The end of the block waits `JOIN_S` seconds for it; what blocks its thread for longer is left to
    the end of the process.

    Args:
        name: the thread's name.
        main: makes the coroutine, in the new loop; by default one that only waits.
    """

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]] = _forever) -> None:
        self._main = main
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None]

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._thread.join(JOIN_S)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run another coroutine in the thread; it is cancelled at the end of the block, too."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def cancel(self) -> None:
        """Cancel the coroutine before the end of the block, so that several end together."""
        with suppress(RuntimeError):  # the loop is closed: the coroutine has ended by itself
            self._loop.call_soon_threadsafe(self._task.cancel)

    def join(self, within_s: float) -> None:
        """Wait until the coroutine has ended by itself, for some seconds at most."""
        self._thread.join(within_s)

    def _run(self) -> None:
        with (
            suppress(asyncio.CancelledError),  # the end of the block
            surviving(f"{self._thread.name} has ended.", action="thread_ended"),
            asyncio.Runner(loop_factory=Loop) as runner,
        ):
            run_to_end(runner.get_loop(), self._watched())

    async def _watched(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = cast("asyncio.Task[None]", asyncio.current_task())
        self._started.set()
        await self._main()

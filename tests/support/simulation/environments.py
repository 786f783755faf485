"""A Lambda function's environments: a thread, an event loop and a handler each.

On AWS every concurrent invocation has a process of its own, which is frozen between invocations.
Threads with event loops of their own behave the same where it matters: they share no object of a
loop, and a background task that an invocation leaves behind stands still until the next one.
"""

import asyncio
import queue
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from tests.support.handlers import LambdaContext

Handler = Callable[[dict[str, Any], Any], Any]
"""A Lambda handler: takes an event and a context, and returns an answer."""

JOIN_S = 2.0
"""Seconds for which closing waits for running invocations."""


Invocation = tuple[dict[str, Any], Future[Any]]
"""An event, and what becomes of it."""


class Environments:
    """Up to `limit` environments of one function, started as concurrent invocations need them."""

    def __init__(
        self,
        name: str,
        make_handler: Callable[[ExitStack], Handler],
        *,
        limit: int,
        timeout_s: float,
    ) -> None:
        self.name = name
        self.limit = limit
        self._make_handler = make_handler
        self._timeout_s = timeout_s
        self._invocations: queue.SimpleQueue[Invocation | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0
        self._threads: list[threading.Thread] = []
        self._closed = False

    def invoke(self, event: dict[str, Any]) -> Future[Any]:
        """Return a future of the handler's answer to `event`."""
        answer: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self.name} is closed.")
            if self._free:
                self._free -= 1
            elif len(self._threads) < self.limit:
                self._start()
            self._invocations.put((event, answer))
        return answer

    def close(self) -> None:
        """Wait up to `JOIN_S` seconds for running invocations, then leave them to the process."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
            for _ in threads:
                self._invocations.put(None)
        deadline = time.monotonic() + JOIN_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self) -> None:
        name = f"{self.name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        with (
            asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner,
            ExitStack() as environment,
        ):
            asyncio.set_event_loop(runner.get_loop())  # Mangum asks for the thread's loop
            environment.callback(asyncio.set_event_loop, None)
            handler: Handler | None = None
            while (invocation := self._invocations.get()) is not None:
                event, future = invocation
                if not future.set_running_or_notify_cancel():
                    self._release()
                    continue
                context = LambdaContext(str(uuid.uuid4()), self._timeout_s)
                try:
                    handler = handler or self._make_handler(environment)
                    answer = handler(event, context)
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - Lambda's edge: the invocation has failed
                    self._release()
                    future.set_exception(error)
                else:
                    self._release()
                    future.set_result(answer)

    def _release(self) -> None:
        with self._lock:
            self._free += 1

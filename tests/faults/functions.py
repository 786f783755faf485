"""The deployed worker function as a process: an event source, and one environment behind it.

A process that dies is an environment that dies. As on Lambda, an invocation that runs into the
function's timeout ends it, whatever its event loop does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from a2a_serverless import settings
from a2a_serverless.worker import adapter
from a2a_serverless.worker import function as worker_function
from tests.faults.ledger import lines_of
from tests.support.handlers import cold_start
from tests.support.simulation.environments import Environments, Handler
from tests.support.simulation.sources import QueuePump, SqsSource

NAME: Final = "function"
"""The argument that starts such a process."""
SOURCE: Final = "FAULTS_SOURCE"
"""Names the variable with the queue that feeds the function; by default A2A_QUEUE."""
INVOCATIONS: Final = "FAULTS_INVOCATIONS"
"""Names the file to which each invocation writes when it begins and when it ends."""
HASTE: Final = "FAULTS_HASTE"
"""Set: the spare times of shared turns are those of a turn of a few seconds."""


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One that has returned; `seconds` are billed."""

    began: float
    seconds: float


def main() -> int:
    """Feed the function until the process is ended."""
    if os.environ.get(HASTE):
        worker_function.SPARE_S = 1.5  # type: ignore[misc]
        settings.SHARED_SPARE_S = 3  # type: ignore[misc]
        (adapter.WorkerAdapter.__init__.__kwdefaults__ or {})["deadline_margin_s"] = 1.0
    timeout_s = float(os.environ["A2A_RUN_LIMIT_S"])
    function = Environments("worker", lambda _: _handler(timeout_s), limit=1, timeout_s=timeout_s)
    with ExitStack() as stack:
        stack.callback(function.close)
        print("function works", flush=True)  # noqa: T201
        queue = os.environ[os.environ.get(SOURCE, "A2A_QUEUE")]
        asyncio.run(QueuePump(lambda: SqsSource(queue, wait_s=1), function).run())
    return 0


def invocations(path: Path) -> list[Invocation]:
    pairs = (map(float, line.split()) for line in lines_of(path))
    return [Invocation(began=began, seconds=ended - began) for began, ended in pairs]


def _handler(timeout_s: float) -> Handler:
    module = cold_start("worker")

    def handler(event: dict[str, Any], context: Any) -> Any:
        began = time.time()
        timeout = threading.Timer(timeout_s, lambda: os.kill(os.getpid(), signal.SIGKILL))
        timeout.daemon = True
        timeout.start()
        try:
            return module.handler(event, context)
        finally:
            timeout.cancel()
            if path := os.environ.get(INVOCATIONS):
                with Path(path).open("a", encoding="utf-8") as record:
                    record.write(f"{began} {time.time()}\n")

    return handler

"""Workers of a load on emulators: the deployed function behind its event source, or one outside."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from a2a_serverless.settings import load_settings
from a2a_serverless.wiring import aws_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.agents import load_agent
from a2a_serverless_tools.cli.processes import VISIBILITY_S
from benchmarks.cost_system import FUNCTIONS, System
from tests.support.simulation.environments import Environments, Handler
from tests.support.simulation.sources import QueuePump, SqsSource

LIMIT_S = 900
"""The default of WorkerTimeout, in seconds."""
TURN_LIMIT_S = 60
"""TurnTimeout: twice the turn of 30 s, as the page `turns` advises."""
PLACES = 64
"""Turns of one external worker, as fargate.yaml has it."""
SOURCE_POLL_S = 20


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How turns get a worker; without `turns` an external worker runs them."""

    name: str
    turns: int | None

    def workers(self, waiting: float) -> int:
        """Return WorkerConcurrency: three places for each waiting turn, at least 2 workers."""
        return max(2, ceil(3 * waiting / (self.turns or PLACES)))


SETTINGS = {
    "1": Setting(name="one turn each", turns=1),
    "10": Setting(name="N=10", turns=10),
    "25": Setting(name="N=25", turns=25),
    "external": Setting(name="external", turns=None),
}


@dataclass
class Billed:
    """The seconds of the worker function's invocations that have returned."""

    seconds: list[float] = field(default_factory=list)
    running: int = 0


@contextmanager
def workers(system: System, setting: Setting, waiting: float) -> Iterator[Billed]:
    """Run workers of a setting; at the end every invocation has returned."""
    billed = Billed()
    if setting.turns is None:
        with _external():
            yield billed
        return
    os.environ |= {
        "A2A_WORKER_TURNS": str(setting.turns),
        "A2A_RUN_LIMIT_S": str(LIMIT_S),
        "A2A_TURN_LIMIT_S": str(TURN_LIMIT_S),
    }
    function = Environments(
        "worker",
        lambda _: _metered(_handler(), billed, system),
        limit=setting.workers(waiting),
        timeout_s=LIMIT_S,
    )
    pump = QueuePump(lambda: SqsSource(os.environ["A2A_QUEUE"], wait_s=SOURCE_POLL_S), function)
    with _in_thread(pump.run):
        yield billed
        while billed.running:
            time.sleep(0.05)
    function.close()


def _handler() -> Handler:
    """Return the deployed handler, of an environment of its own."""
    path = FUNCTIONS / "worker" / "worker.py"
    spec = importlib.util.spec_from_file_location("deployed_worker", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    handler: Handler = module.handler
    return handler


def _metered(handler: Handler, billed: Billed, system: System) -> Handler:
    def invoke(event: dict[str, Any], context: Any) -> Any:
        billed.running += 1
        system.invoked("worker")
        began = time.monotonic()
        try:
            return handler(event, context)
        finally:
            billed.seconds.append(time.monotonic() - began)
            billed.running -= 1

    return invoke


@contextmanager
def _external() -> Iterator[None]:
    """Run a worker as `a2a-serverless worker` does, in a thread."""
    settings = load_settings().model_copy(update={"visibility_s": VISIBILITY_S})
    backends = aws_backends(settings)
    adapter = WorkerAdapter(backends, load_agent(settings.agent), settings)
    with _in_thread(lambda: adapter.serve(concurrency=PLACES)):
        yield


@contextmanager
def _in_thread(work: Callable[[], Coroutine[Any, Any, Any]]) -> Iterator[None]:
    """Run a coroutine in a loop of its own, and cancel it at the end."""
    made: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def run() -> None:
        task = asyncio.ensure_future(work())
        made.set_result((asyncio.get_running_loop(), task))
        await asyncio.wait([task])

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    loop, task = made.result()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()

"""Workers of one process: each has a thread, an event loop and an agent, as one on Lambda has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from a2a.server.agent_execution import AgentExecutor

from a2a_serverless.queues.fifo import Handle
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.operations import Operation
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.adapter import LONG_POLL_S, WorkerAdapter
from a2a_serverless.worker.agents import TurnAgents
from a2a_serverless_tools.local.background import Background

Worker = tuple[WorkerAdapter, Background]


@contextmanager
def workers(
    backends: Backends,
    agent: Callable[[], AgentExecutor | TurnAgents],
    settings: Settings,
    *,
    count: int,
) -> Iterator[None]:
    """Run what the queue delivers for a `with` block.

    An agent that blocks its thread holds up the turns of its own worker alone. At the end of the
    block turns that still run are given back.

    Args:
        backends: storage and queue.
        agent: makes the agent of one worker.
        settings: A2A_WORKER_TURNS is the number of turns that a worker runs at a time, and
            A2A_RUN_LIMIT_S the longest run of one.
        count: the number of workers.
    """

    async def serve() -> None:
        operations, free = backends.operations, asyncio.LifoQueue[Worker]()
        for _ in range(settings.worker_turns):
            for worker in made:
                free.put_nowait(worker)

        async def work(worker: Worker, handle: Handle[Operation]) -> None:
            adapter, thread = worker
            deadline = adapter.clock.monotonic() + settings.run_limit_s
            await asyncio.wrap_future(thread.start(adapter.process(handle, deadline=deadline)))
            free.put_nowait(worker)

        async with asyncio.TaskGroup() as running:
            while not operations.is_closed:
                worker = await free.get()  # first: a delivery's visibility runs from its receive on
                for handle in await operations.pull(1, LONG_POLL_S):
                    running.create_task(work(worker, handle))
                    break
                else:
                    free.put_nowait(worker)

    with ExitStack() as running:
        threads = [Background(f"worker-{number + 1}") for number in range(count)]
        for thread in threads:
            running.enter_context(thread)
        made = [(WorkerAdapter(backends, agent(), settings), thread) for thread in threads]
        for thread in threads:
            running.callback(thread.cancel)
        running.enter_context(Background("queue", serve))
        running.callback(lambda: asyncio.run(backends.operations.shutdown()))
        yield

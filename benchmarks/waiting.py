"""What waiting turns cost their worker: `python -m benchmarks.waiting [--turns 40] [--seconds 20]`.

One worker on DynamoDB Local runs turns whose agent only awaits. Prints the share of a core that
the worker's process uses meanwhile, its memory, and its requests to DynamoDB a second, by
operation.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from collections import Counter
from typing import Any

from a2a.helpers import new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import Role, SendMessageRequest, TaskState, TaskStatus, TaskStatusUpdateEvent

from a2a_serverless.settings import Settings
from a2a_serverless.tasks.head import Operation, OperationParams
from a2a_serverless.wiring import Backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless_tools.local.provision import table_definition
from tests.support.databases import dynamo_storage
from tests.support.emulators import dynamodb_local
from tests.support.queues import MemoryQueue

TABLE = "tasks"
PATIENCE_S = 60


class WaitingAgent(AgentExecutor):
    """Sets `all_run` when `turns` turns run, and completes them once `released` is set."""

    def __init__(self, turns: int) -> None:
        self.left = turns
        self.all_run = asyncio.Event()
        self.released = asyncio.Event()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.left -= 1
        if not self.left:
            self.all_run.set()
        await self.released.wait()
        await event_queue.enqueue_event(
            TaskStatusUpdateEvent(
                task_id=context.task_id,
                context_id=context.context_id,
                status=TaskStatus(state=TaskState.TASK_STATE_COMPLETED),
            )
        )

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Leave the end to the worker."""


async def send(backends: Backends) -> None:
    """Create a task and enqueue its turn."""
    message = new_text_message("wait", role=Role.ROLE_USER)
    opened = await backends.storage.open_task("context", SendMessageRequest(message=message))
    head = opened.head
    params = OperationParams(
        scope=head.scope,
        task_id=head.task_id,
        context_id=head.context_id,
        incarnation=head.incarnation,
        turn=head.turn.number,
    )
    await backends.operations.send(Operation.to_run(params))


async def measure(client: Any, turns: int, seconds: float) -> None:
    """Print what `turns` waiting turns cost within `seconds`."""
    settings, agent, requests = Settings(), WaitingAgent(turns), Counter[str]()
    backends = Backends(
        storage=dynamo_storage(TABLE, client=client, timing=settings.timing()),
        operations=MemoryQueue(Operation, visibility_s=settings.visibility_s),
    )
    client.meta.events.register(
        "before-send.dynamodb", lambda request, **_: requests.update([_operation_of(request)])
    )
    for _ in range(turns):
        await send(backends)
    worker = WorkerAdapter(backends, agent, settings)
    serving = asyncio.create_task(worker.serve(concurrency=turns))
    async with asyncio.timeout(PATIENCE_S):
        await agent.all_run.wait()
    await asyncio.sleep(2)
    requests.clear()
    began, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    used, passed = time.process_time() - used, time.perf_counter() - began
    each = {operation: round(count / passed, 1) for operation, count in requests.items()}
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{turns} waiting turns: {100 * used / passed:.1f} % of a core, {megabytes:.0f} MB,"
        f" requests a second: {each}"
    )
    agent.released.set()
    await backends.operations.shutdown()
    await serving


def _operation_of(request: Any) -> str:
    target = request.headers["X-Amz-Target"]
    return (target.decode() if isinstance(target, bytes) else str(target)).split(".")[-1]


def main() -> None:
    """Measure on a DynamoDB Local that is started for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=20)
    chosen = parser.parse_args()
    with dynamodb_local() as emulator:
        client = emulator.client(max_pool_connections=64)
        client.create_table(TableName=TABLE, **table_definition(stream=False))
        asyncio.run(measure(client, chosen.turns, chosen.seconds))


if __name__ == "__main__":
    main()

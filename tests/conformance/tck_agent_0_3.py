"""The agent that the A2A project's conformance kit of 0.3 talks to: its page SUT_REQUIREMENTS.

The page `conformance-kit` tells how to run it.
"""

from __future__ import annotations

import asyncio

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part

WORK_S = 0.5
"""Long enough for the kit's next request to find the task at work."""
LONG_RUN_S = 6.0
"""More than twice what the kit waits for an event: it comes back to such a task."""


class KitAgent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        assert context.task_id is not None
        assert context.context_id is not None
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        is_long = context.message.message_id.startswith("test-resubscribe-message-id")
        await asyncio.sleep(WORK_S)
        await task.start_work()
        await asyncio.sleep(LONG_RUN_S if is_long else WORK_S)
        await task.add_artifact([Part(text="Hello World!")], name="response", last_chunk=True)
        said = task.new_agent_message([Part(text="Hello World!")])
        # It asks for more, because most of the kit's tests go on with the task.
        await (task.complete(said) if is_long else task.requires_input(said))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


agent = KitAgent()

"""An agent that asks for credentials and stays until they come another way: by the ledger.

Its first turn ends with a question; the next message goes to its artifact and completes the task.
Each attempt counts itself in the conversation's state.
"""

from __future__ import annotations

import asyncio
import os
from typing import cast

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskState

from a2a_serverless.worker import TaskContext
from a2a_serverless.worker.turn import ActiveTurn
from tests.faults.ledger import Ledger
from tests.support.workers import chunk, status

LOGGED_IN = "logged in"


class Waiting(AgentExecutor):
    def __init__(self) -> None:
        self._ledger = Ledger.of_process()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, said = context.task_id or "", context.get_user_input()
        conversation = TaskContext(context, cast("ActiveTurn", event_queue))
        count = await conversation.load_context() or 0
        self._ledger.note(f"started on {said}, {count}", task_id)
        await conversation.update_context(count + 1)
        if context.current_task is not None:
            await event_queue.enqueue_event(chunk(context, said, artifact_id="out"))
            await event_queue.enqueue_event(status(context, TaskState.TASK_STATE_COMPLETED))
            return
        await event_queue.enqueue_event(chunk(context, f"draft of {os.getpid()}"))
        asked = status(context, TaskState.TASK_STATE_AUTH_REQUIRED, "log in")
        await event_queue.enqueue_event(asked)
        while not self._ledger.count(task_id, LOGGED_IN):  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.02)
        await event_queue.enqueue_event(chunk(context, "secret", artifact_id="out"))
        more = status(context, TaskState.TASK_STATE_INPUT_REQUIRED, "more?")
        await event_queue.enqueue_event(more)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing: no test cancels this agent."""


agent = Waiting

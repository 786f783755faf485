"""An executor of the official SDK, unchanged from the SDK's own server.

It repeats the user's text, a word at a time, as one artifact.
"""

from __future__ import annotations

from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Part
from a2a.utils.errors import InvalidParamsError


class EchoExecutor(AgentExecutor):
    """Echoes the user's text."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.message is None or not context.task_id or not context.context_id:
            raise InvalidParamsError(message="There is no message to echo.")
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        words = context.get_user_input().split()
        for number, word in enumerate(words):
            await updater.add_artifact(
                [Part(text=word if number == 0 else f" {word}")],
                artifact_id="echo",
                name="Echo",
                append=number > 0,
                last_chunk=number == len(words) - 1,
            )
        await updater.complete(updater.new_agent_message([Part(text=f"{len(words)} words.")]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await updater.cancel()


agent = EchoExecutor()
